"""Runs, and what changed between two of them, for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from moeparity.bisection.runs.listing import RunRow
from moeparity.bisection.runs.report import Change, Comparison
from moeparity.output.tables import Words, word_table
from moeparity.output.words import enumerated, quantity


def print_runs(rows: Sequence[RunRow], where: str, out: Console) -> None:
    """A line for each run."""
    if not rows:
        out.print(f"no runs in {where}; `moeparity bisect RECIPE --run DIR` keeps one")
        return
    table = word_table("run", "recipe", "verdict", "figure", "when", "machine", "state")
    for row in rows:
        if row.kind:
            recipe = row.recipe if row.kind == "bisect" else f"{row.kind} of {row.recipe}"
            table.add_row(row.name, recipe, row.verdict, row.value, row.when, row.machine, row.state)
    if table.row_count:
        out.print(table)
    for row in rows:
        if not row.kind:
            out.print(Words(f"cannot be read: {row.state}"))


def print_comparison(comparison: Comparison, out: Console) -> None:
    """What changed, what was computed first."""
    opening = Text(_opening(comparison), style="bold")
    out.print(opening)
    for head in (comparison.first, comparison.second):
        out.print(Words(f"{head.folder}: {head.kind} of {head.recipe}, {head.finished}, {head.machine}"))
    choices = [
        Change(what=f"{c.side} {c.address} ({quantity(c.nodes, 'node')})", first=c.first, second=c.second)
        for c in comparison.choices
    ]
    start = () if comparison.start is None else (comparison.start,)
    for title, changes in (
        ("Environment", comparison.environment),
        ("Choices", choices),
        ("Weights and tokens", comparison.digests),
        ("Metrics", comparison.metrics),
        ("First divergence", start),
        ("Toggles", comparison.toggles),
    ):
        _print_changes(title, changes, out)
    for line in _closing(comparison):
        out.print(Words(line))
    out.print(opening)


def _opening(comparison: Comparison) -> str:
    code = comparison.exit_code
    if code == 0:
        beside = " and environment" if comparison.environment else ""
        return f"SAME  nothing but cost{beside} changed; exit 0"
    if code == 3:
        return f"OPEN  the reports are not compared: {comparison.not_compared}; exit 3"
    parts = {"choices": comparison.choices, "weights or tokens": comparison.digests, "results": comparison.values}
    return f"CHANGED  {enumerated([name for name, part in parts.items() if part])}; exit 1"


def _print_changes(title: str, changes: Iterable[Change], out: Console) -> None:
    table = word_table("", "first", "second")
    for change in changes:
        table.add_row(change.what, _shown(change.first), _shown(change.second))
    if table.row_count:
        out.print(Text(f"\n{title}", style="bold"))
        out.print(Padding(table, (0, 0, 0, 2), expand=False))


def _shown(value: str | None) -> str:
    return "not there" if value is None else value


def _closing(comparison: Comparison) -> Iterable[str]:
    yield ""
    nodes = comparison.nodes
    if comparison.key:
        differing_keys = enumerated([change.what for change in comparison.key])
        yield f"Single nodes are not held to each other: the runs have another {differing_keys}."
    elif nodes is not None and nodes.changed:
        yield f"Of {quantity(nodes.compared, 'node')}, {nodes.changed} have other {nodes.by}, the first {nodes.first}."
    elif nodes is not None:
        yield f"All {quantity(nodes.compared, 'node')} have the same {nodes.by}."
    if comparison.values:
        counts = ", ".join(f"{name} {count}" for name, count in comparison.values.items())
        yield f"Values of the reports that are not equal, by section: {counts}."
    if comparison.not_compared and comparison.exit_code != 3:
        yield f"The reports are not compared: {comparison.not_compared}."
