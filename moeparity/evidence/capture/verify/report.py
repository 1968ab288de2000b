"""What a verification found, as plain data and in words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from moeparity.errors import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side's value at a slot."""

    dtype: str
    shape: tuple[int, ...]
    digest: str | None
    stats: Mapping[str, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A call that gave other values than its record.

    `inputs`: `equal` bits, `near` by the tolerance, `differ`, or `unknown`. `slots`: by `input 0` or `output
    0`, the record's value and now's.
    """

    step: int
    level: str
    name: str
    path: str
    nth: int
    phase: str
    inputs: str
    random: bool
    slots: Mapping[str, Sequence[Any]]
    scalars: Mapping[str, Sequence[Any]]
    recorded_stack: tuple[str, ...]
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank's verification came to.

    `first`: the first call whose values differ. `root`: the first whose inputs have equal bits and whose results have
    not, where that is another. `near`: calls whose bits differ and lie within the tolerance; `near_by_elements`: those
    of them of which each element does, since both sides have their values whole; of the others statistics only do.
    `unmatched`: calls that the record has not; `missing`: calls that only the record has.
    """

    rank: int
    compared: int = 0
    differing: int = 0
    near: int = 0
    near_by_elements: int = 0
    untold: int = 0
    unmatched: int = 0
    missing: int = 0
    problem: str = ""
    first: Difference | None = None
    root: Difference | None = None
    first_unmatched: str = ""
    first_missing: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def exit_code(self) -> int:
        """0 all equal, 1 something differs or has no counterpart, 2 nothing could be compared."""
        if self.problem or not self.compared:
            return 2
        return int(bool(self.differing or self.unmatched or self.missing))


def write(report: RankReport, path: Path) -> None:
    """Write a report as JSON."""
    path.write_text(json.dumps(asdict(report)), encoding="utf-8")


def read(path: Path) -> RankReport:
    """A report that `write` wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))
    for name in ("first", "root"):
        if document[name] is not None:
            document[name] = Difference(**document[name])
    return RankReport(**document)


def text(report: RankReport) -> str:
    """A report in words."""
    if report.problem:
        return f"rank {report.rank}: not compared: {report.problem}"
    if not report.compared:
        return f"rank {report.rank}: not compared: no call of the program is in the record."
    if report.exit_code == 0:
        return f"rank {report.rank}: {_compared(report)}, {_as_recorded(report)}{_untold(report)}"
    lines = [f"rank {report.rank}: {_compared(report)}, {report.differing:,} differ{_near(report)}{_untold(report)}"]
    if report.unmatched:
        lines.append(f"  {counted(report.unmatched, 'call')} without a record; the first: {report.first_unmatched}")
    if report.missing:
        lines.append(f"  {counted(report.missing, 'recorded call')} not met; the first: {report.first_missing}")
    if report.first is not None:
        lines += ["  the first that differs:", *_difference(report.first)]
    if report.root is not None and report.root != report.first:
        lines += ["  the first that differs on equal inputs:", *_difference(report.root)]
    return "\n".join(lines)


def _compared(report: RankReport) -> str:
    return f"{counted(report.compared, 'call')} compared"


def _as_recorded(report: RankReport) -> str:
    return f"none differs by more than the tolerance{_near(report)}" if report.near else "all as recorded"


def _near(report: RankReport) -> str:
    if not report.near:
        return ""
    elements, statistics = report.near_by_elements, report.near - report.near_by_elements
    if not elements:
        return f"; {report.near:,} have other bits, of which statistics only were compared"
    if not statistics:
        return f"; {report.near:,} have other bits, of which each element was compared"
    by_element = f"of {elements:,} each element was compared"
    return f"; {report.near:,} have other bits: {by_element}, of {statistics:,} statistics only"


def _untold(report: RankReport) -> str:
    return (
        f"; of {report.untold:,} nothing is known (written in part, or parts of what differs)" if report.untold else ""
    )


def _difference(difference: Difference) -> list[str]:
    words = {
        "equal": f"its inputs have equal bits, {'its arguments' if difference.scalars else 'its results'} have not",
        "near": "its inputs have other bits and lie within the tolerance, its results don't",
        "differ": "its inputs differ already, and no recorded call made them",
        "unknown": "whether its inputs are equal isn't known",
    }[difference.inputs]
    if difference.level == "collective" and difference.inputs == "equal":
        words = "what this rank gave to it has equal bits, what it got has not: look at the other ranks"
    where = f" at {difference.path}" if difference.path else ""
    random = "; it draws from a generator" if difference.random else ""
    call = f"step {difference.step}, {difference.name}{where} ({difference.phase}, call {difference.nth})"
    lines = [f"    {call}: {words}{random}"]
    for slot, (recorded, present) in difference.slots.items():
        lines += [f"      {slot}  recorded {_side(recorded)}", f"      {' ' * len(slot)}  now      {_side(present)}"]
    for slot, (recorded, present) in difference.scalars.items():
        lines.append(f"      argument {slot}  recorded {recorded!r}, now {present!r}")
    for title, stack in (("recorded at", difference.recorded_stack), ("now at", difference.stack)):
        lines += [f"      {title}:", *(f"        {frame}" for frame in stack[-8:])]
    return lines


def _side(side: Mapping[str, Any]) -> str:
    stats = side["stats"] or {}
    numbers = " ".join(f"{name} {number:.6g}" for name, number in stats.items())
    return f"{side['dtype']} {list(side['shape'])} {side['digest'] or 'no digest'} {numbers}".rstrip()
