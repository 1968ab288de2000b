"""The nearest known choices of users' functions, as shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from moeparity.bisection.data import ReportData
from moeparity.bisection.nearest.data import Nearest
from moeparity.evidence.explain.report import is_near
from moeparity.output.blocks import Group, group, lines
from moeparity.output.words import more, percent

SHOWN_OTHERS = 3
"""At most this many exact answers are shown after the plainest, and as many nodes after the first."""
_LAYER = re.compile(r"layers\[\d+\]")


def show(report: ReportData) -> Iterator[Group]:
    """The group about the known choices nearest to users' functions."""
    if report.nearest:
        yield group(
            "Nearest choices",
            lines(*(line for answers in _alike(report.nearest) for line in nearest_lines(*answers))),
        )


def _alike(answers: Iterable[Nearest]) -> list[list[Nearest]]:
    """Answers for one function that are the same in several layers, grouped."""
    groups: dict[tuple[str, ...], list[Nearest]] = {}
    for answer in answers:
        choices = answer.found[0].choices if answer.explained else ()
        key = (answer.call, *(_LAYER.sub("layers[*]", text) for text in (answer.node, *choices)))
        groups.setdefault(key, []).append(answer)
    return list(groups.values())


def nearest_lines(answer: Nearest, *further: Nearest) -> Iterator[str]:
    """The answer in a few lines of text; `further` are the same answer for other layers."""
    name, cost = f"{answer.call} at {answer.node}", f"{answer.calls} kernel calls"
    if answer.explained:
        first, *others = answer.found
        yield f"nearest to {name}: {first} (all bits equal{first.part_compared}; {answer.tried} tried, {cost})"
        yield from (f"  which is a fault: {fault}" for fault in first.faults)
        yield from (f"  so does {n.place} from {n.least:.7g} to {n.greatest:.7g}" for n in first.between)
        if others:
            words = ", or ".join(map(str, others[:SHOWN_OTHERS])) + more(len(others), SHOWN_OTHERS)
            yield f"  so do{'' if others[1:] else 'es'} {words}"
    else:
        none = f"none of the {answer.tried} tried gives its bits"
        yield f"{name}: {none if answer.tried else 'no choice is open where it stands'} ({cost})"
        if answer.found and is_near(answer.found[0].equal, answer.as_it_is):
            best = answer.found[0]
            yield f"  nearest: {best}, {percent(best.equal)} of elements equal ({percent(answer.as_it_is)} without it)"
        elif answer.tried:
            equal = percent(answer.as_it_is)
            yield f"  {equal} of elements are equal as it is, and nothing tried makes half of the others equal"
    if further:
        nodes = ", ".join(answer.node for answer in further[:SHOWN_OTHERS])
        yield f"  the same at {nodes}{more(len(further), SHOWN_OTHERS)}"
