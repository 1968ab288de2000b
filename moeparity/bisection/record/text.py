"""What was recorded, for the terminal: whether it is reproduced, and what each side computes beside it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from moeparity.bisection.record.report import Record, Recorded
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import bullets, plain_table
from moeparity.output.words import percent

_COLOUR = {"reproduced": "bold green", "not reproduced": "bold red"}


def _record(report: Report) -> Shown:
    # The summary says already that there is none.
    if report.record.status != "no record":
        yield "Record", verdict(report.record)


def _recorded(report: Report) -> Shown:
    if report.recorded is not None:
        yield "Against the recorded data", recorded_table(report.recorded)


def verdict(record: Record) -> RenderableType:
    """Whether the record is reproduced, and what that rests on."""
    line = Text.assemble((record.status.upper(), _COLOUR.get(record.status, "bold")), f"  {record.reading[0]}")
    return Group(line, Padding(bullets(record.reading[1:]), (0, 0, 0, 2), expand=False))


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


SHOWN = {"record": _record, "recorded": _recorded}
