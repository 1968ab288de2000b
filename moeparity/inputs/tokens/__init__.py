"""Token files: the sequences both variants are run on, and what was recorded of them."""

from __future__ import annotations

from moeparity.inputs.tokens.reader import read_tokens
from moeparity.inputs.tokens.tokenset import TokenSet

__all__ = ["TokenSet", "read_tokens"]
