"""Token files: the sequences both variants are run on, and what was recorded of them."""

from __future__ import annotations

from moeparity.tokens.read import read_tokens
from moeparity.tokens.tokenset import TokenSet

__all__ = ["TokenSet", "read_tokens"]
