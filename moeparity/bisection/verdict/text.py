"""The verdict for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.metrics.gating import gated_name
from moeparity.output.status import unit
from moeparity.output.tables import COLOUR, plain_grid
from moeparity.output.words import after_estimate, percent


def _section(report: Report) -> Shown:
    yield "Metrics", _verdict(report)


def _verdict(report: Report) -> RenderableType:
    verdict, metrics = report.verdict, report.metrics
    value = verdict.value
    line = Text.assemble(
        (verdict.status.upper(), COLOUR[verdict.status]),
        f"  {gated_name(verdict.metric)} = {value.estimate:.3g} {unit(verdict)}",
        f"{after_estimate(value)}, ",
        f"gate {verdict.below:g}",
    )
    table = plain_grid(1)
    table.add_row(verdict.reason)
    table.add_row(
        f"k1 {metrics.k1:.3g}, k2 {metrics.k2:.3g}, k3 {metrics.k3:.3g}, "
        f"KL(candidate || reference) {metrics.kl:.3g}, KL(reference || candidate) {metrics.kl_reverse:.3g}",
    )
    table.add_row(
        f"|delta log p| mean {metrics.mean_abs_delta:.3g}, max {metrics.max_abs_delta:.3g}; "
        f"top-1 agreement {percent(metrics.top1_agreement)}",
    )
    if (whole := report.distribution) is not None:
        table.add_row(
            f"over the vocabulary: JSD {whole.jsd:.3g}, TV mean {whole.tv:.3g}, max {whole.max_tv:.3g}; "
            f"top-10 Jaccard {whole.top10_jaccard:.4g}; rank of the chosen token off by {whole.rank_change:.3g}",
        )
    if metrics.nonfinite_tokens:
        table.add_row(Text(f"{metrics.nonfinite_tokens} tokens have NaN or infinite logits", style="bold red"))
    return Group(line, Padding(table, (0, 0, 0, 2), expand=False))


SHOWN = {"verdict": _section}
