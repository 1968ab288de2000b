"""A WeightsReport for the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console

from moeparity.errors import counted
from moeparity.evidence.weights.report import UNDECIDED, Finding, WeightsReport, WeightsSide
from moeparity.output.status import state_of, status_line
from moeparity.output.tables import bullets, word_table
from moeparity.output.words import few

_MOST = 24
_EXPERT = re.compile(r"(\.experts\.)(\d+)(\.)")


def print_weights(report: WeightsReport, out: Console) -> None:
    """The verdict, both sides, what was found, the verdict again."""
    opening = status_line(state_of(report.exit_code), _verdict(report))
    for name, side in (("A", report.a), ("B", report.b)):
        if side is not None:
            opening.add_row(name, _side(side))
    out.print(opening)
    if report.findings:
        out.print()
        out.print(_table(report.findings))
    if report.constant:
        out.print(f"\none number only, on both sides: {few(report.constant, 4)}")
    if report.aside:
        out.print()
        out.print(bullets(report.aside[:_MOST]))
    if report.findings or report.constant or report.aside:
        out.print()
        out.print(opening)


def _verdict(report: WeightsReport) -> str:
    code = f"exit {report.exit_code}"
    certain = [finding for finding in report.findings if finding.sort not in UNDECIDED]
    if report.b is None:
        result = (
            counted(len(report.findings), "finding") if report.findings else "nothing doubled, missing or torn apart"
        )
        return f"{counted(report.a.tensors, 'tensor')}, {result}; {code}"
    tensors = len({finding.tensor for finding in certain})
    if certain:
        equal = f"{report.equal:,} of {counted(report.compared, 'compared tensor')} equal"
        return f"{counted(tensors, 'tensor')} not as {'it' if tensors == 1 else 'they'} should be, {equal}; {code}"
    if report.exit_code == 3 and not report.findings:
        return f"{counted(report.compared, 'tensor')} have equal bits, and not all ranks have a file; {code}"
    if report.exit_code == 3:
        uncompared = len({finding.tensor for finding in report.findings})
        of_all = f"{report.equal:,} of {counted(report.compared, 'compared tensor')}"
        return f"{of_all} equal, {uncompared:,} not compared; {code}"
    return f"{counted(report.compared, 'tensor')} have equal bits; {code}"


def _side(side: WeightsSide) -> str:
    words = [side.source, counted(side.tensors, "tensor")]
    words += ["a checkpoint"] if side.checkpoint else [counted(side.ranks, "rank")]
    words += [f"rounded to {side.cast}"] if side.cast else []
    words += [f"no file of {counted(len(side.missing_ranks), 'rank')}"] if side.missing_ranks else []
    return ", ".join(words)


def _table(findings: Sequence[Finding]) -> object:
    """A line for each finding; experts of a layer with the same one share a line."""
    groups: dict[tuple[str, str, str, str, str], list[int]] = {}
    for finding in findings:
        expert = _EXPERT.search(finding.tensor)
        name = _EXPERT.sub(r"\g<1>*\g<3>", finding.tensor) if expert else finding.tensor
        key = (name, finding.sort, finding.side, finding.rows, finding.says)
        groups.setdefault(key, []).append(int(expert[2]) if expert else -1)
    table = word_table("tensor", "", "rows", "says")
    for (name, sort, side, rows, says), experts in list(groups.items())[:_MOST]:
        label = name if experts[0] < 0 else name.replace("*", few([str(expert) for expert in sorted(set(experts))], 8))
        where = f"{sort} in {side}" if side and " in " not in sort else sort
        every = "all" if sort in ("differs", "incomplete") else ""
        table.add_row(label, where, rows or every, says)
    if len(groups) > _MOST:
        table.add_row(f"and {len(groups) - _MOST} more lines", "", "", "all of them are in --json")
    return table
