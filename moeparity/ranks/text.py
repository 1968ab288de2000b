"""What the journals of a job tell, in the terminal."""

from __future__ import annotations

from rich.console import Console

from moeparity.output.status import state_of, status_line
from moeparity.output.tables import bullets, word_table
from moeparity.output.words import few, quantity
from moeparity.ranks.differing_fields import ranks_in_words
from moeparity.ranks.report import JobReport, Undeclared

_ENDS = {
    "ended": "by itself",
    "left": "by an error of its own",
    "told": "by the difference",
    "lost": "without a word: it was killed, or runs on",
}


def print_job(report: JobReport, out: Console) -> None:
    """The verdict, a line for each rank, the verdict again."""
    opening = status_line(state_of(report.exit_code), _verdict(report))
    out.print(opening)
    table = word_table("rank", "host", "pid", "calls", "last finished", "ended")
    for line in report.ranks:
        last = "none" if line.last is None else str(line.last)
        table.add_row(str(line.rank), line.host, str(line.pid), str(line.calls), last, _ENDS[line.end])
    out.print(table)
    if report.undeclared is not None:
        out.print(bullets([_of_undeclared(report.undeclared)]))
    out.print(opening)


def _of_undeclared(weights: Undeclared) -> str:
    sentence = f"{quantity(weights.tensors, 'weight tensor')} held to no other rank's: nobody declared"
    sentence += f" {'it' if weights.tensors == 1 else 'them'} sharded or replicated (Guard(sharded=, replicated=))."
    if not weights.apart:
        return f"{sentence} {weights.moment.capitalize()} all ranks that have them have the same bits."
    return (
        f"{sentence} {weights.moment.capitalize()} ranks have other bits of {len(weights.apart)}, as of shards, or of"
        f" replicas loaded wrongly: {few(weights.apart, 4)}."
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
        return f"{ranks_in_words(lost)} did not end {by}, and no difference was told; {code}"
    return f"{quantity(len(report.ranks), 'rank')} in step to the end; {code}"
