"""Tables and a figure that benchmarks make, run once however many pages ask for them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from scripts.pages.page import ROOT, printed


def gpu_page(_: str) -> str:
    """docs/generated/gpu.md; needs a CUDA GPU."""
    with tempfile.TemporaryDirectory() as folder:
        # It ends with 1 where something is other than it should be, which the page then says.
        subprocess.run([sys.executable, "-m", "benchmarks.gpu", "--out", folder], cwd=ROOT, check=False)  # noqa: S603
        return (Path(folder) / "gpu.md").read_text("utf-8")


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
