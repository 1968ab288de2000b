"""What the journals of a job tell together; plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moeparity.errors import display_path
from moeparity.output.json import to_json
from moeparity.output.words import quantity
from moeparity.ranks.differing_fields import difference
from moeparity.ranks.journal import RankStory, stories

SCHEMA = "moeparity.ranks/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLine:
    """One rank. last: the last call that it finished. calls: how many were compared. end: how it ended: `ended` by
    itself, `left` by an error of its own, `told` of a difference, `lost` without a word. error: where it left, and by
    which error, "" if it did not.
    """

    rank: int
    host: str
    pid: int
    calls: int
    last: int | None
    end: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undeclared:
    """Weights that were not compared between ranks, since nobody declared them sharded or replicated. tensors: their
    number. apart: the names of those whose bits differ between ranks, as those of shards do, and those that a fault
    changed. moment: when they differed; if none does, when they were looked at.
    """

    tensors: int
    apart: tuple[str, ...]
    moment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """A job by its ranks' journals. difference: the first thing in which they were not in step, or the rank that left
    by an error of its own, in words; "" if there is neither. missing: ranks without a journal. undeclared: None if
    every tensor was declared, none was looked at, or there is one rank.
    """

    folder: str
    ranks: tuple[RankLine, ...]
    missing: tuple[int, ...]
    difference: str
    undeclared: Undeclared | None

    @property
    def exit_code(self) -> int:
        """0 if all ranks ended by themselves in step, 1 if they were not in step, 3 if that can't be told."""
        if self.difference:
            return 1
        return 0 if not self.missing and all(line.end == "ended" for line in self.ranks) else 3

    def to_json(self) -> str:
        """The report as strict JSON."""
        return to_json(SCHEMA, self)


def job_report(folder: Path) -> JobReport:
    """What the journals in a folder tell. Raises RankError for a folder without any, and for a damaged one."""
    job_stories = stories(folder)
    expected = max(story.ranks for story in job_stories)
    return JobReport(
        folder=display_path(folder),
        ranks=tuple(_line(story) for story in job_stories),
        missing=tuple(sorted(set(range(expected)) - {story.rank for story in job_stories})),
        difference=next((story.difference for story in job_stories if story.difference), "")
        or _first_departure(job_stories)
        or _compared(job_stories),
        undeclared=_undeclared(job_stories),
    )


def _line(story: RankStory) -> RankLine:
    end = "ended" if story.ended else "left" if story.fatal_error else "told" if story.difference else "lost"
    calls, error = len(story.calls), story.fatal_error or ""
    return RankLine(rank=story.rank, host=story.host, pid=story.pid, calls=calls, last=story.last, end=end, error=error)


def _first_departure(job_stories: list[RankStory]) -> str:
    """The first rank that left by an error of its own, in words; "" if none did."""
    first = min((story for story in job_stories if story.fatal_error), key=lambda story: story.at, default=None)
    return "" if first is None else f"rank {first.rank} left {first.fatal_error}"


def _compared(job_stories: list[RankStory]) -> str:
    """The first call at which the journals differ, if no rank survived to say so; "" if none does."""
    for call in sorted({call for story in job_stories for call in story.calls}):
        records = {story.rank: story.calls[call] for story in job_stories if call in story.calls}
        words = difference(records)
        if words is not None:
            return f"call {call}: {words}"
    return ""


def _undeclared(job_stories: list[RankStory]) -> Undeclared | None:
    if len(job_stories) == 1:
        return None
    moments = {"at start": [story.at_start for story in job_stories]}
    updates = {story.updates for story in job_stories}
    if len(updates) == 1 and updates != {0}:
        moments[f"after {quantity(updates.pop(), 'update')}"] = [story.latest for story in job_stories]
    tensors: set[str] = set()
    for moment, of_ranks in moments.items():
        bits: dict[str, set[str]] = {}
        for weights in of_ranks:
            if weights is not None:
                for name in weights.undeclared:
                    bits.setdefault(name, set()).add(weights.bits[name])
        tensors |= bits.keys()
        apart = tuple(sorted(name for name, values in bits.items() if len(values) > 1))
        if apart:
            return Undeclared(tensors=len(tensors), apart=apart, moment=moment)
    return Undeclared(tensors=len(tensors), apart=(), moment=" and ".join(moments)) if tensors else None
