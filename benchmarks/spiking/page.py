"""The page of the benchmark."""

from collections.abc import Sequence

from benchmarks.spiking.runs import Figures, Size


def page(figures: Sequence[Figures], size: Size, steps: int) -> str:
    """The page, as Markdown."""
    return ""
