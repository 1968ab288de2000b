"""Lists of runs, and what changed between two runs, as shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeparity import paths
from moeparity.bisection.runs.file import NAME, RunFile, read_run
from moeparity.bisection.runs.hold import holder
from moeparity.bisection.runs.report import Change, Comparison
from moeparity.errors import RunError, Where, display_path
from moeparity.output.blocks import Block, Column, Document, State, Status, group, lines, table
from moeparity.output.words import enumerated, quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in a list. state: `finished`, `unfinished`, which process works in it, or why it can't be read."""

    name: str
    kind: str = ""
    recipe: str = ""
    verdict: str = ""
    value: str = ""
    when: str = ""
    machine: str = ""
    state: str


def runs_below(folder: Path) -> list[RunRow]:
    """The runs in this folder and in folders one or two levels below it, by name. Raises RunError without such a
    folder.
    """
    if not paths.is_folder(folder):
        raise RunError(f"{Where(folder)}: there is no such folder; expected one with runs (--run) in it.")
    return [_row(path.parent) for pattern in ("", "*/", "*/*/") for path in sorted(folder.glob(f"{pattern}{NAME}"))]


def _row(folder: Path) -> RunRow:
    name = display_path(folder)
    try:
        run = read_run(folder)
    except RunError as error:
        return RunRow(name=name, state=str(error))
    outcome = run.outcome
    return RunRow(
        name=name,
        kind=run.kind,
        recipe=run.recipe,
        verdict=_verdict(run),
        value="" if outcome is None or outcome.metric is None else f"{outcome.metric} {_number(outcome.value)}",
        when=(run.finished or run.begun)[:16].replace("T", " "),
        machine=f"{run.environment.get('host', '')}, {run.environment.get('cpu', '')}",
        state="finished" if run.finished is not None else _unfinished(folder),
    )


def _verdict(run: RunFile) -> str:
    if run.outcome is None:
        return ""
    return run.outcome.verdict or f"exit {run.outcome.exit_code}"


def _number(value: float | str | None) -> str:
    return f"{value:.2e}" if isinstance(value, float) else str(value)


def _unfinished(folder: Path) -> str:
    by = holder(folder)
    return "unfinished" if by is None else f"{by} is at work in it"


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
