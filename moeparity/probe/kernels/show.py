"""The verdict on a kernel compared with a node, as shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from moeparity.output.blocks import Block, Document, bullets, group, lines
from moeparity.output.words import quantity
from moeparity.probe.kernels.alternatives import SEMANTICS, Change, in_words
from moeparity.probe.kernels.certify import NodeVerdict
from moeparity.probe.kernels.launch import Kernel
from moeparity.probe.show import certification, machine

_MANY, _FEW = 12, 4


def document(kernel: Kernel, target: str, verdict: NodeVerdict) -> Document:
    """The verdict, what it rests on, every shape, and what else would give the kernel's bits."""
    blocks = tuple(_blocks(kernel, target, verdict))
    return Document(command="kernel certify", subject=f"{target} {verdict.node_run.node.name}", blocks=blocks)


def _blocks(kernel: Kernel, target: str, verdict: NodeVerdict) -> Iterator[Block]:
    yield certification(verdict.holds, f"{target} against {verdict.node_run.node.name}")
    yield lines(machine(), *kernel.rests_on)
    active = {name: str(value) for name, value in verdict.node_run.active(verdict.node_run.choices).items()}
    unclaimed = f"no profile speaks of: {in_words(verdict.unclaimed)}" if verdict.unclaimed else ""
    yield group("Choices of the node", lines(in_words(active), *([unclaimed] if unclaimed else [])))
    if verdict.race:
        yield lines("", verdict.race)
    for case, comparisons in verdict.cases if not verdict.race else ():
        yield group(str(case), lines(*map(str, comparisons)))
    yield group("What else gives these bits" if verdict.holds else "Whose bits they are", bullets(_further(verdict)))


def _further(verdict: NodeVerdict) -> Iterator[str]:
    if verdict.race:
        yield "not named: a race has no fixed order"
        return
    if not verdict.holds:
        yield from _match_lines(verdict)
        return
    other_count, same = len(verdict.tried.differing), verdict.tried.same
    every, give = quantity(other_count + len(same), "other value"), "gives" if other_count == 1 else "give"
    yield f"{other_count} of {every} of its choices {give} other bits in the last case"
    if same:
        words = [in_words(change) for change in same]
        yield f"not told apart from: {', '.join(words[:_MANY])}" + _more(words)
    yield "covers these shapes and this data; not NaN, infinities or overflow; not what ptxas makes of the PTX"


def _match_lines(verdict: NodeVerdict) -> Iterator[str]:
    if not verdict.gives:
        yield "no other values of its choices, one or several together, were found to give the kernel's bits"
    for name, match in verdict.gives.items():
        also = [in_words(change) for change in match.also]
        same = f" (on this data also with {'; '.join(also[:_FEW])}{_more(also, _FEW)})" if also else ""
        stands = _stands(match.change, verdict.node_run.choices)
        kinds = {a.name: a.kind for a in verdict.node_run.node.attributes}
        illegal = [name for name in match.change if kinds[name] == SEMANTICS]
        clause = f"; {', '.join(illegal)} is no legal choice: another model is computed" if illegal else ""
        where = f"where the node has {in_words(stands)}{clause}"
        yield f"the kernel's {name} is that of {in_words(match.change)}{same}, {where}"


def _stands(change: Change, choices: Mapping[str, object]) -> dict[str, str]:
    return {name: str(choices[name]) for name in change}


def _more(words: Sequence[str], most: int = _MANY) -> str:
    return f" and {len(words) - most} more" if len(words) > most else ""
