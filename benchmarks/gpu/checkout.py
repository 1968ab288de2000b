"""A checkout that is not installed: where its two mapped folders are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import moeparity

ROOT = Path(__file__).parents[2]


def find_mapped_folders() -> None:
    """Let `moeparity.graphs` and `moeparity.cli` be found at the top of the checkout, as an installation maps them."""
    if importlib.util.find_spec("moeparity.graphs") is None:
        moeparity.__path__.append(str(ROOT))
