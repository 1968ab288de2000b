"""A Sweep for the terminal."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moeparity.bisection.flips.report import RoutingFlips
from moeparity.bisection.run.text import checkpoint, machine
from moeparity.bisection.sweep.report import Point, Sweep
from moeparity.errors import shown
from moeparity.metrics.gating import gated_name
from moeparity.metrics.verdict import EXIT_CODES
from moeparity.output.status import state_of, status, status_line, unit
from moeparity.output.tables import COLOUR, Words, plain_grid
from moeparity.output.words import between, percent, quantity

GAP = 2
"""Columns between two cells."""

_WIDE = 24
"""A key or a value longer than this takes several lines of a column."""

_CANNOT = "cannot run"

Cell = tuple[str, str]
"""What stands in a cell, and what stands behind it, or below where the terminal is narrow."""


def print_sweep(sweep: Sweep, console: Console) -> None:
    """Print a sweep: what was swept, and a row per point."""
    opening = status_line(state_of(sweep.exit_code), _status(sweep))
    console.print(opening)
    console.print(_head(sweep))
    reports = [point.report for point in sweep.points if point.report is not None]
    for sentence in dict.fromkeys(warning for report in reports for warning in report.warnings):
        console.print(Words(f"warning: {sentence}", style="yellow"))
    console.print()
    console.print(_table(sweep, console.width))
    contradictions = sum(report.record.contradicts for report in reports)
    if contradictions:
        side, points = reports[0].record.side, quantity(len(reports), "point")
        console.print(Text(f"\nIn {contradictions} of {points} the {side} does not reproduce the record."))
    if reports:
        verdict = reports[0].verdict
        note = (
            f"{gated(sweep)}: {unit(verdict)}, with its {verdict.value.level:.0%} interval. "
            "KL(candidate || reference) over the vocabulary in nats per token.\n"
            "flips: tokens with another expert set in some layer, then token-layers."
        )
        console.print(Text(f"\n{note}", style="dim"))
    console.print()
    console.print(opening)


def _status(sweep: Sweep) -> str:
    """How many points have which verdict."""
    counts = Counter("cannot run" if point.report is None else point.report.verdict.status for point in sweep.points)
    words = ", ".join(f"{counts[word]} {word}" for word in (*EXIT_CODES, "cannot run") if counts[word])
    verdict = next((point.report.verdict for point in sweep.points if point.report is not None), None)
    gate = "no gate" if verdict is None else f"gate {gated_name(verdict.metric)} {verdict.below:g}"
    return status(f"{quantity(len(sweep.points), 'point')}: {words}", gate, sweep.exit_code)


def gated(sweep: Sweep) -> str:
    """The metric that the gate bounds; k3, which it does by default, where no point ran."""
    return next((gated_name(point.report.verdict.metric) for point in sweep.points if point.report is not None), "k3")


def _head(sweep: Sweep) -> RenderableType:
    table = plain_grid(2)
    table.add_row("recipe", sweep.recipe)
    report = next((point.report for point in sweep.points if point.report is not None), None)
    if report is not None:
        table.add_row("checkpoint", checkpoint(report.run))
        table.add_row("machine", machine(report.run))
        table.add_row(
            "gate", f"{gated_name(report.verdict.metric)} below {report.verdict.below:g} per {report.verdict.reduce}"
        )
    return table


def _table(sweep: Sweep, width: int) -> RenderableType:
    """A line per point where all fits; else cells on two lines; else the swept values on a line of their own, too."""
    keys = [_broken(key) for key in sweep.keys]
    values = [[value_word(point.values[key]) for key in sweep.keys] for point in sweep.points]
    key_widths = [min(key_width, _WIDE) for key_width in _widths([keys, *values])]
    space = width - sum(key_widths) - GAP * len(key_widths)
    heads: list[Cell] = [("verdict", ""), (gated(sweep), ""), ("KL", ""), ("flips", ""), ("first divergence", "")]
    cells = [heads, *(list(_cells(point)) for point in sweep.points)]
    for separator in (" ", "\n"):
        texts = [[separator.join(filter(None, cell)) for cell in row] for row in cells]
        widths = _widths([row for row in texts if len(row) == len(heads)])
        widths[0] = max(widths[0], len(_CANNOT))
        if sum(widths) + GAP * (len(widths) - 1) <= space:
            return _columns(keys, key_widths, values, [_row(row, widths) for row in texts])
    return _blocks(sweep, [_row(row, widths) for row in texts])


def _columns(
    keys: Sequence[str], widths: Sequence[int], values: Sequence[Sequence[str]], rows: Sequence[RenderableType]
) -> RenderableType:
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim", pad_edge=False)
    for key, column_width in zip(keys, widths, strict=True):
        table.add_column(key, width=column_width, overflow="fold")
    table.add_column(rows[0])
    for line, row in zip(values, rows[1:], strict=True):
        table.add_row(*line, row)
    return table


def _blocks(sweep: Sweep, rows: Sequence[RenderableType]) -> RenderableType:
    parts: list[RenderableType] = [Padding(rows[0], (0, 0, 0, GAP), style="dim", expand=False)]
    for point, row in zip(sweep.points, rows[1:], strict=True):
        title = ", ".join(f"{key}={value_word(point.values[key])}" for key in sweep.keys)
        parts += [Text(title, overflow="fold"), Padding(row, (0, 0, 0, GAP), expand=False)]
    return Group(*parts)


def _cells(point: Point) -> Iterator[Cell]:
    """Verdict, gated metric, KL, flips, first divergence of a point; verdict and reason of one that could not run."""
    report = point.report
    if report is None:
        yield from ((_CANNOT, ""), (str(point.error), ""))
        return
    value, flips, roots = report.verdict.value, report.flips, report.roots
    yield report.verdict.status, ""
    yield (_number(value.estimate), _between(value.low, value.high)) if roots else ("all bits equal", "")
    yield _number(report.metrics.kl), ""
    yield ("", "") if flips is None else (percent(flips.tokens_any_layer / flips.tokens), _flipped_routes(flips))
    yield (roots[0].node, f"({roots[0].op})") if roots else ("none", "")


def _flipped_routes(flips: RoutingFlips) -> str:
    return percent(sum(layer.set_flips for layer in flips.layers) / sum(layer.tokens for layer in flips.layers))


def _row(texts: Sequence[str], widths: Sequence[int]) -> RenderableType:
    """Cells at fixed widths, so that those of all rows stand below each other; the last may wrap."""
    grid = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
    for column_width in widths[: len(texts) - 1]:
        grid.add_column(width=column_width, no_wrap=True)
    grid.add_column(overflow="fold")
    head, *cells = texts
    grid.add_row(Text(head, style=COLOUR.get(head, "bold red" if head == _CANNOT else "")), *cells)
    return grid


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(line) for text in column for line in text.split("\n")) for column in zip(*rows, strict=True)]


def _between(low: float, high: float) -> str:
    return between(low, high) if math.isinf(low) and math.isinf(high) else f"{_number(low)}..{_number(high)}"


def _number(value: float) -> str:
    return f"{value:.2e}" if value else "0"


def value_word(value: str | float | bool | None) -> str:
    """A value as a recipe writes it."""
    return shown(value) if value is None or isinstance(value, bool) else str(value)


def _broken(key: str) -> str:
    """A long key on several lines, broken behind its dots and colons."""
    lines = [""]
    for part in re.findall(r"[^.:]*[.:]?", key):
        if lines[-1] and len(lines[-1]) + len(part) > _WIDE:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
