"""Lists the runs below a folder, a row each, including those that can't be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moeparity import paths
from moeparity.bisection.runs.file import NAME, RunFile, read_run
from moeparity.bisection.runs.hold import holder
from moeparity.errors import RunError, Where, display_path


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
