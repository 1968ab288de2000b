"""What a report says of its tokens: warnings, and metrics by class."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.data import ReportData
from moeparity.bisection.tokens.data import ClassMetrics
from moeparity.output.blocks import Group, Lines, Table, columns, group, table, warnings
from moeparity.output.words import percent


def show_warnings(report: ReportData) -> Iterator[Lines]:
    """What is to be known before anything else."""
    yield from warnings(report.warnings)


def show_classes(report: ReportData) -> Iterator[Group]:
    """k3, |delta| and flips by class of token."""
    if len(report.classes) > 1:
        yield group("By class of token", classes_table(report.classes))


def classes_table(classes: tuple[ClassMetrics, ...]) -> Table:
    """A row for each class."""
    rows = [
        (
            metrics.name,
            str(metrics.scored_tokens),
            f"{metrics.k3:.3g}",
            f"{metrics.mean_abs_delta:.3g}",
            percent(metrics.set_flips / metrics.token_layers) if metrics.token_layers else "",
        )
        for metrics in classes
    ]
    return table(columns("scored", "k3", "mean |delta|", "expert set differs", first="class"), rows)
