"""What a report says of its tokens, for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.bisection.tokens.report import ClassMetrics, Recorded
from moeparity.output.tables import plain_table
from moeparity.output.words import percent


def _warnings(report: Report) -> Shown:
    if report.warnings:
        yield "", Group(*(Text(f"warning: {sentence}", style="yellow") for sentence in report.warnings))


def _recorded(report: Report) -> Shown:
    if report.recorded is not None:
        yield "Against the recorded data", recorded_table(report.recorded)


def _classes(report: Report) -> Shown:
    if len(report.classes) > 1:
        yield "By class of token", classes_table(report.classes)


def recorded_table(recorded: Recorded) -> RenderableType:
    """Recorded log-probabilities and routes, a line per side."""
    parts: list[RenderableType] = []
    if recorded.logprobs:
        table = plain_table("mean |delta|", "max |delta|", "k3", "tokens", names="log-probabilities", names_first=True)
        for logprobs in recorded.logprobs:
            numbers = (logprobs.mean_abs_delta, logprobs.max_abs_delta, logprobs.k3)
            table.add_row(logprobs.side, *(f"{number:.3g}" for number in numbers), str(logprobs.tokens))
        parts += [table, Text("delta = log P of the side - the recorded one, in nats, on scored tokens.", style="dim")]
    if recorded.routes:
        table = plain_table("same expert set", "token-layers", names="routes", names_first=True)
        for routes in recorded.routes:
            table.add_row(routes.side, percent(routes.same_sets / routes.token_layers), str(routes.token_layers))
        parts.append(table)
    return Group(*(parts or [Text("no scored token has a recorded log-probability, no token a recorded route")]))


def classes_table(classes: tuple[ClassMetrics, ...]) -> RenderableType:
    """k3, |delta| and flips per class of token."""
    table = plain_table("scored", "k3", "mean |delta|", "expert set differs", names="class", names_first=True)
    for metrics in classes:
        flips = percent(metrics.set_flips / metrics.token_layers) if metrics.token_layers else ""
        table.add_row(
            metrics.name, str(metrics.scored_tokens), f"{metrics.k3:.3g}", f"{metrics.mean_abs_delta:.3g}", flips
        )
    return table


SHOWN = {"warnings": _warnings, "recorded": _recorded, "classes": _classes}
