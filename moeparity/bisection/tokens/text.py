"""What a report says of its tokens, for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType

from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.bisection.tokens.report import ClassMetrics
from moeparity.output.tables import Words, plain_table
from moeparity.output.words import percent


def _warnings(report: Report) -> Shown:
    if report.warnings:
        yield "", Group(*(Words(f"warning: {sentence}", style="yellow") for sentence in report.warnings))


def _classes(report: Report) -> Shown:
    if len(report.classes) > 1:
        yield "By class of token", classes_table(report.classes)


def classes_table(classes: tuple[ClassMetrics, ...]) -> RenderableType:
    """k3, |delta| and flips per class of token."""
    table = plain_table("scored", "k3", "mean |delta|", "expert set differs", names="class", names_first=True)
    for metrics in classes:
        flips = percent(metrics.set_flips / metrics.token_layers) if metrics.token_layers else ""
        table.add_row(
            metrics.name, str(metrics.scored_tokens), f"{metrics.k3:.3g}", f"{metrics.mean_abs_delta:.3g}", flips
        )
    return table


SHOWN = {"warnings": _warnings, "classes": _classes}
