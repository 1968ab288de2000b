"""Which weights differ: the verdict, both sides, what was found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from moeparity.errors import counted
from moeparity.evidence.census.outcome import Derived, faults, summed
from moeparity.evidence.weights.report import UNDECIDED, Finding, WeightsReport, WeightsSide
from moeparity.output.blocks import Block, Column, Document, Status, Table, bullets, group, lines, table
from moeparity.output.status import state_of
from moeparity.output.words import few

_MOST = 24
_EXPERT = re.compile(r"(\.experts\.)(\d+)(\.)")


def document(report: WeightsReport, subject: str) -> Document:
    """The verdict, both sides, what was found."""
    return Document(command="weights", subject=subject, blocks=tuple(_blocks(report)))


def _blocks(report: WeightsReport) -> Iterator[Block]:
    sides = tuple((name, _side(side)) for name, side in (("A", report.a), ("B", report.b)) if side is not None)
    yield Status(state_of(report.exit_code), _verdict(report), lines=sides)
    if report.derived:
        shown = [*faults(report.derived), *(each for each in report.derived if each.outcome == "apart")]
        below = lines(summed(report.derived))
        yield group("Tensors made of weights", *((_derived_table(shown), below) if shown else (below,)))
    if report.findings:
        yield group("What was found", _table(report.findings))
    if report.constant:
        yield lines(f"one number only, on both sides: {few(report.constant, 4)}")
    if report.aside:
        yield bullets(report.aside[:_MOST])


def _verdict(report: WeightsReport) -> str:
    code = f"exit {report.exit_code}"
    certain = [finding for finding in report.findings if finding.sort not in UNDECIDED]
    stale = faults(report.derived)
    not_followed = f"{counted(len(stale), 'tensor')} made of weights did not follow" if stale else ""
    parted = sum(each.outcome == "apart" for each in report.derived)
    if parted and not stale and not certain:
        return f"{counted(parted, 'tensor')} made of weights hold neither what these were nor what they are; {code}"
    if report.only_derived:
        return f"{not_followed or 'all tensors made of weights followed'}; {code}"
    if report.b is None:
        result = (
            counted(len(report.findings), "finding") if report.findings else "nothing doubled, missing or torn apart"
        )
        return f"{counted(report.a.tensors, 'tensor')}, {result}; {code}"
    tensors = len({finding.tensor for finding in certain})
    if stale:
        return f"{not_followed}; {counted(tensors, 'weight')} not as in A; {code}"
    if certain:
        equal = f"{report.equal:,} of {counted(report.compared, 'compared tensor')} equal"
        return f"{counted(tensors, 'tensor')} not as {'it' if tensors == 1 else 'they'} should be, {equal}; {code}"
    if report.exit_code == 3 and not report.findings:
        return f"{counted(report.compared, 'tensor')} have equal bits, and not all ranks have a file; {code}"
    if report.exit_code == 3:
        uncompared = len({finding.tensor for finding in report.findings})
        of_all = f"{report.equal:,} of {counted(report.compared, 'compared tensor')}"
        return f"{of_all} equal, {uncompared:,} not compared; {code}"
    rounded = f", {counted(report.rounded, 'weight')} as codes nearest to the other's" if report.rounded else ""
    return f"{counted(report.compared, 'tensor')} have equal bits{rounded}; {code}"


def _side(side: WeightsSide) -> str:
    words = [side.source, counted(side.tensors, "tensor")]
    words += ["a checkpoint"] if side.checkpoint else [counted(side.ranks, "rank")]
    words += [f"{few(side.formats, 3)}{' multiplied out' if side.cast else ''}"] if side.formats else []
    words += [f"rounded to {side.cast}"] if side.cast else []
    words += [f"no file of {counted(len(side.missing_ranks), 'rank')}"] if side.missing_ranks else []
    return ", ".join(words)


def _derived_table(stale: Sequence[Derived]) -> Table:
    """A line for each tensor that did not follow, or of which that can't be told."""
    rows = [(fault.path, str(fault.outcome), few(fault.sources, 3), fault.says) for fault in stale[:_MOST]]
    if len(stale) > _MOST:
        rows.append((f"and {len(stale) - _MOST} more", "", "", "all of them are in --json"))
    return table([Column(title, "name") for title in ("tensor", "", "made of", "says")], rows)


def _table(findings: Sequence[Finding]) -> Table:
    """A line for each finding; experts of a layer with the same one share a line, in which `*` is each one's number."""
    groups: dict[tuple[str, str, str, str, str], list[int]] = {}
    for finding in findings:
        expert = _EXPERT.search(finding.tensor)
        name = _EXPERT.sub(r"\g<1>*\g<3>", finding.tensor) if expert else finding.tensor
        says = finding.says.replace(expert[0], r".experts.*.") if expert else finding.says
        key = (name, finding.sort, finding.side, finding.rows, says)
        groups.setdefault(key, []).append(int(expert[2]) if expert else -1)
    rows = []
    for (name, sort, side, of_rows, says), experts in list(groups.items())[:_MOST]:
        numbers = [str(expert) for expert in sorted(set(experts))]
        alone = experts[0] >= 0 and not numbers[1:]
        label, sentence = (words.replace("*", numbers[0]) if alone else words for words in (name, says))
        label += f", experts {few(numbers, 8)}" if numbers[1:] else ""
        where = f"{sort} in {side}" if side and " in " not in sort else sort
        every = "all" if sort in ("differs", "incomplete") else ""
        rows.append((label, where, of_rows or every, sentence))
    if len(groups) > _MOST:
        rows.append((f"and {len(groups) - _MOST} more lines", "", "", "all of them are in --json"))
    return table([Column(title, "name") for title in ("tensor", "", "rows", "says")], rows)
