"""The verdict of a kernel that was held to a node, in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from moeparity.probe.kernels.alternatives import SEMANTICS, Change, in_words
from moeparity.probe.kernels.certify import NodeVerdict
from moeparity.probe.kernels.launch import Kernel
from moeparity.probe.text import COLUMNS, machine

_MANY, _FEW = 12, 4


def node_text(kernel: Kernel, target: str, verdict: NodeVerdict) -> str:
    """The verdict, what it rests on, every shape, and what else would give the kernel's bits."""
    holds = "certified" if verdict.holds else "NOT certified"
    active = {name: str(value) for name, value in verdict.node_run.active(verdict.node_run.choices).items()}
    lines = [f"{holds}: {target} against {verdict.node_run.node.name}", machine(), *kernel.rests_on]
    lines += [f"  {line}" for line in _wrapped(in_words(active))]
    if verdict.unclaimed:
        lines += _wrapped(f"no profile speaks of: {in_words(verdict.unclaimed)}")
    lines += ["", *([verdict.race] if verdict.race else _cases(verdict)), ""]
    lines += _wrapped("; ".join(_further(verdict)))
    return "\n".join(lines)


def _cases(verdict: NodeVerdict) -> Iterator[str]:
    for case, comparisons in verdict.cases:
        yield f"{case}"
        yield from (f"    {comparison}" for comparison in comparisons)


def _further(verdict: NodeVerdict) -> Iterator[str]:
    if verdict.race:
        yield "no order or form to name: it is none"
        return
    if not verdict.holds:
        yield from _match_lines(verdict)
        return
    other_count, same = len(verdict.tried.differing), verdict.tried.same
    yield f"{other_count} of {other_count + len(same)} other values of its choices give other bits on the last of these"
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


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, break_long_words=False, break_on_hyphens=False)
