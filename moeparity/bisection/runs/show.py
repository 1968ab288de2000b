"""Lists of runs, and what changed between two runs, as shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from moeparity.bisection.runs.listing import RunRow
from moeparity.bisection.runs.report import Change, Comparison
from moeparity.output.blocks import Block, Column, Document, State, Status, group, lines, table
from moeparity.output.words import enumerated, quantity

_TITLES = ("run", "recipe", "verdict", "figure", "when", "machine", "state")


def listed(rows: Sequence[RunRow], where: str) -> Iterator[Block]:
    """A line for each run."""
    if not rows:
        yield lines(f"no runs in {where}; `moeparity bisect RECIPE --run DIR` keeps one")
        return
    readable = [
        (row.name, row.recipe if row.kind == "bisect" else f"{row.kind} of {row.recipe}", row.verdict, row.value,
         row.when, row.machine, row.state)
        for row in rows if row.kind
    ]  # fmt: skip
    if readable:
        yield table([Column(title, "name") for title in _TITLES], readable)
    yield lines(*(f"cannot be read: {row.state}" for row in rows if not row.kind))


def document(comparison: Comparison) -> Document:
    """What changed; changes in what was computed come first."""
    subject = f"{comparison.first.folder}, {comparison.second.folder}"
    return Document(command="diff", subject=subject, blocks=tuple(_blocks(comparison)))


def _blocks(comparison: Comparison) -> Iterator[Block]:
    yield _status(comparison)
    heads = (comparison.first, comparison.second)
    yield lines(*(f"{head.folder}: {head.kind} of {head.recipe}, {head.finished}, {head.machine}" for head in heads))
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
        if changes:
            yield group(title, _changes(changes))
    closing = list(_closing(comparison))
    if closing:
        yield group("In words", lines(*closing))


def _status(comparison: Comparison) -> Status:
    code = comparison.exit_code
    if code == 0:
        beside = " and environment" if comparison.environment else ""
        return Status("pass", f"nothing but cost{beside} changed; exit 0")
    if code == 3:
        return Status("inconclusive", f"the reports are not compared: {comparison.not_compared}; exit 3")
    parts = {"choices": comparison.choices, "weights or tokens": comparison.digests, "results": comparison.values}
    state: State = "fail"
    return Status(state, f"{enumerated([name for name, part in parts.items() if part])} changed; exit 1")


def _changes(changes: Iterable[Change]) -> Block:
    rows = [(change.what, _shown(change.first), _shown(change.second)) for change in changes]
    return table([Column("", "name"), Column("first", "name"), Column("second", "name")], rows)


def _shown(value: str | None) -> str:
    return "not there" if value is None else value


def _closing(comparison: Comparison) -> Iterator[str]:
    nodes = comparison.nodes
    if comparison.key:
        differing_keys = enumerated([change.what for change in comparison.key])
        yield f"Single nodes cannot be compared: the runs differ in {differing_keys}."
    elif nodes is not None and nodes.changed:
        verb = "differs" if nodes.changed == 1 else "differ"
        every = quantity(nodes.compared, "node")
        yield f"Of {every}, {nodes.changed} {verb} in {nodes.by}, the first is {nodes.first}."
    elif nodes is not None:
        yield f"All {quantity(nodes.compared, 'node')} have the same {nodes.by}."
    if comparison.values:
        counts = ", ".join(f"{name} {count}" for name, count in comparison.values.items())
        yield f"Values of the reports that are not equal, by section: {counts}."
    if comparison.not_compared and comparison.exit_code != 3:
        yield f"The reports are not compared: {comparison.not_compared}."
