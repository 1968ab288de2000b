"""Token files: the sequences that both variants run, and what an engine recorded of them."""

from __future__ import annotations

from moeparity.inputs.tokens.reader import read_tokens
from moeparity.inputs.tokens.tokenset import TokenSet

__all__ = ["TokenSet", "read_tokens"]
