"""The report on a job's journals, as shown."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.output.blocks import Block, Column, Document, Status, bullets, table
from moeparity.output.status import state_of
from moeparity.output.words import few, quantity
from moeparity.ranks.differing_fields import ranks_in_words
from moeparity.ranks.report import JobReport, Undeclared

_TITLES = ("rank", "host", "pid", "calls", "last finished", "ended")
_ENDS = {
    "ended": "by itself",
    "left": "by an error of its own",
    "told": "by the difference",
    "lost": "without a word: it was killed, or still runs",
}


def document(report: JobReport, subject: str) -> Document:
    """The verdict, and a row for each rank."""
    return Document(command="ranks", subject=subject, blocks=tuple(_blocks(report)))


def _blocks(report: JobReport) -> Iterator[Block]:
    yield Status(state_of(report.exit_code), _verdict(report))
    rows = []
    for line in report.ranks:
        last = "none" if line.last is None else str(line.last)
        rows.append((str(line.rank), line.host, str(line.pid), str(line.calls), last, _ENDS[line.end]))
    yield table([Column(title, "name") for title in _TITLES], rows)
    if report.undeclared is not None:
        yield bullets([_of_undeclared(report.undeclared)])


def _of_undeclared(weights: Undeclared) -> str:
    was, them = ("was", "it") if weights.tensors == 1 else ("were", "them")
    sentence = f"{quantity(weights.tensors, 'weight tensor')} {was} not compared across ranks, since nothing declares"
    sentence += f" {them} sharded or replicated (Guard(sharded=, replicated=))."
    if not weights.apart:
        return f"{sentence} {weights.moment.capitalize()} all ranks that have {them} hold the same bits."
    return (
        f"{sentence} {weights.moment.capitalize()} ranks hold different bits of {len(weights.apart)}, as they do of"
        f" shards, or of replicas loaded wrongly: {few(weights.apart, 4)}."
    )


def _verdict(report: JobReport) -> str:
    code = f"exit {report.exit_code}"
    if report.difference:
        return f"{report.difference}; {code}" if report.difference[-1] != "." else f"{report.difference[:-1]}; {code}"
    if report.missing:
        return f"{ranks_in_words(report.missing)} left no journal; {code}"
    lost = [line.rank for line in report.ranks if line.end == "lost"]
    if lost:
        by = "by itself" if len(lost) == 1 else "by themselves"
        return f"{ranks_in_words(lost)} did not end {by}, and no rank told of a difference; {code}"
    return f"{quantity(len(report.ranks), 'rank')} in step to the end; {code}"
