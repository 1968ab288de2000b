"""The table of docs/combine.md, from the variants that the tests compute."""

from __future__ import annotations

from tests.ops import combine_variants


def table(_: str = "") -> str:
    """A row for each way in which an engine combines."""
    return combine_variants.table()
