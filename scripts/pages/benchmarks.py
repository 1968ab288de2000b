"""Tables and a figure that benchmarks make, run once however many pages ask for them."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from scripts.pages.page import printed


def attribution_table(_: str) -> str:
    """What an attribution costs, of docs/generated/attribution.md."""
    return _attribution()[0]


def attribution_figure(_: str) -> str:
    """The same drawn, as SVG."""
    return _attribution()[1]


@cache
def _attribution() -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        figure = Path(folder) / "cost.svg"
        # Counts need no repeats.
        table = printed("benchmarks.attribution", "--repeats", "1", "--threads", "1", "--plot", str(figure))("")
        return table, figure.read_text("utf-8")
