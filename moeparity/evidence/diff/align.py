"""Which call of one pass belongs to which call of the other. Modules are matched by path and n-th call, the ops in them
by their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

from moeparity.evidence.diff.pass_pairs import Run
from moeparity.evidence.trace.records import Call

_SHAPES = (
    "view", "_unsafe_view", "reshape", "expand", "arange", "slice", "select", "split", "narrow", "zeros", "ones",
    "full", "empty", "new_", "repeat", "as_strided", "unflatten", "scalar_tensor", "index", "unsqueeze", "permute",
    "transpose",
)  # fmt: skip
"""Ops whose arguments are sizes and places, which go with how many tokens there are."""
MOST = 4_000_000
"""Products of two sequences' lengths above which ops are paired by name and number alone."""


@dataclass(slots=True)
class Aligned:
    """Pairs of calls, in the order in which the calls of A returned, and the calls that have no partner.

    `loose` holds the ids of A's calls in modules whose ops do not have the same names on both sides. Such a pair counts
    only if what both calls read bears it out.
    """

    pairs: list[tuple[Call, Call]] = field(default_factory=list)
    loose: set[int] = field(default_factory=set)
    only_a: list[Call] = field(default_factory=list)
    only_b: list[Call] = field(default_factory=list)


def align(a: Run, b: Run) -> Aligned:
    """Pairs the calls of two passes. Calls that only make a view of a value are left out: their bits are those of what
    they read.

    If one side does not have a module, its ops count as ops of the module around it.
    """
    aligned = Aligned()
    modules = _modules(a), _modules(b)
    partners = {key: (modules[0][key], modules[1][key]) for key in modules[0] if key in modules[1]}
    aligned.pairs += partners.values()
    for run, of_module, alone in ((a, modules[0], aligned.only_a), (b, modules[1], aligned.only_b)):
        alone += [call for key, call in of_module.items() if key not in partners]
        assert run.calls or not of_module
    scopes = [(None, None), *((scope_a.id, scope_b.id) for scope_a, scope_b in partners.values())]
    shared = {scope_a for scope_a, _ in scopes}, {scope_b for _, scope_b in scopes}
    for scope_a, scope_b in scopes:
        ours, theirs = list(_ops(a, scope_a, shared[0])), list(_ops(b, scope_b, shared[1]))
        _align_ops(a, b, ours, theirs, aligned)
    aligned.pairs.sort(key=lambda pair: a.side.returned(pair[0]))
    return aligned


def _modules(run: Run) -> dict[tuple[str, int], Call]:
    """Calls of modules by path, and which of that path in this pass."""
    counts: dict[str, int] = {}
    modules: dict[tuple[str, int], Call] = {}
    for call in sorted(run.calls, key=lambda call: call.id):
        if call.level == "module":
            nth = counts.get(call.path, 0)
            counts[call.path] = nth + 1
            modules[call.path, nth] = call
    return modules


def _ops(run: Run, scope: int | None, shared: set[int | None]) -> Iterator[Call]:
    """The ops inside a module, and inside modules in it that have no partner, as they were entered."""
    for call in run.children.get(scope, ()):
        if call.level == "module":
            if call.id not in shared:
                yield from _ops(run, call.id, shared)
        elif not _only_views(run, call):
            yield call


def _only_views(run: Run, call: Call) -> bool:
    """Whether all that a call gives are views: their bits are those of what it reads."""
    if call.written or not call.outputs:
        return False
    return all(run.side.value(number).base is not None for number in call.outputs.values())


def _align_ops(a: Run, b: Run, ours: list[Call], theirs: list[Call], aligned: Aligned) -> None:
    """Pairs calls in order if their names are equal in order. Otherwise it pairs calls that give equal bits first, then
    those between them by name.

    If one program does the same in another order, as a loop over experts may, only the pairs that keep one order
    remain.
    """
    names = [[call.name for call in calls] for calls in (ours, theirs)]
    turned = names[0] == names[1] and _in_another_order(a, b, ours, theirs)
    if names[0] == names[1] and not turned:
        aligned.pairs += zip(ours, theirs, strict=True)
        return
    likenesses = (_bits, _reads) if turned else (_bits, _reads, _kind)
    matches = _anchored(a, b, ours, theirs, likenesses) if len(ours) * len(theirs) <= MOST else _counted(ours, theirs)
    aligned.pairs += [(ours[i], theirs[j]) for i, j in matches]
    aligned.loose |= {ours[i].id for i, _ in matches}
    matched = {i for i, _ in matches}, {j for _, j in matches}
    aligned.only_a += [call for i, call in enumerate(ours) if i not in matched[0]]
    aligned.only_b += [call for j, call in enumerate(theirs) if j not in matched[1]]


def _in_another_order(a: Run, b: Run, ours: list[Call], theirs: list[Call]) -> bool:
    """Whether both read the same weights with the same arguments, but not in the same order; or in some place two
    weights, or parts of one, that both have, for other rows, as loops over the experts do that get tokens.
    """
    reads = [[_reads(run, call) for call in calls] for run, calls in ((a, ours), (b, theirs))]
    if reads[0] == reads[1]:
        return False
    return Counter(reads[0]) == Counter(reads[1]) or any(
        (x.weights, x.parts) != (y.weights, y.parts)
        and any(map(b.side.weights.get, x.weights))
        and any(map(a.side.weights.get, y.weights))
        and _rows_read(a, call) != _rows_read(b, partner)
        for x, y, call, partner in zip(*reads, ours, theirs, strict=True)
    )


def _anchored(
    a: Run, b: Run, ours: list[Call], theirs: list[Call], likenesses: Sequence[Callable[[Run, Call], object]]
) -> list[tuple[int, int]]:
    """By ever looser likeness: what calls give, then the weights and numbers they read, then how wide rows are."""
    matches: list[tuple[int, int]] = []
    for likeness in likenesses:
        left, right = ([likeness(run, call) for call in calls] for run, calls in ((a, ours), (b, theirs)))
        edges = [(-1, -1), *matches, (len(ours), len(theirs))]
        for (i, j), (k, m) in pairwise(edges):
            matches += [(i + 1 + p, j + 1 + q) for p, q in _blocks(left[i + 1 : k], right[j + 1 : m])]
        matches.sort()
    return matches


def _blocks(ours: Sequence[object], theirs: Sequence[object]) -> list[tuple[int, int]]:
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return [(block.a + n, block.b + n) for block in blocks for n in range(block.size)]


def _counted(ours: list[Call], theirs: list[Call]) -> list[tuple[int, int]]:
    """The n-th call of a name with the n-th, as long as that keeps their order."""
    places: dict[tuple[str, int], int] = {}
    counts: dict[str, int] = {}
    for j, call in enumerate(theirs):
        places[call.name, counts.setdefault(call.name, 0)] = j
        counts[call.name] += 1
    matches: list[tuple[int, int]] = []
    counts = {}
    for i, call in enumerate(ours):
        number = places.get((call.name, counts.setdefault(call.name, 0)))
        counts[call.name] += 1
        if number is not None and (not matches or number > matches[-1][1]):
            matches.append((i, number))
    return matches


def _bits(run: Run, call: Call) -> object:
    """What a call reads, with the digest of what it gives; what has none is like nothing else."""
    results = [run.side.value(number) for number in (*call.outputs.values(), *call.written.values())]
    digests = tuple(value.digest for value in results)
    return (_reads(run, call), digests) if digests and None not in digests else (run.side.name, call.id)


class Reads(NamedTuple):
    """A call's name, its arguments that are no sizes, and the weights it reads: the digests of whole ones, and where
    the parts that it reads of them begin.
    """

    name: str
    numbers: tuple[str, ...]
    weights: tuple[str | None, ...]
    parts: tuple[int, ...]


def _rows_read(run: Run, call: Call) -> list[str | None]:
    """The digests of all that a call reads but weights."""
    return [run.side.root_digest(number) for number in call.inputs.values() if not run.side.is_weight(number)]


def _reads(run: Run, call: Call) -> Reads:
    of_weights = [number for number in call.inputs.values() if run.side.is_weight(number)]
    roots = [run.side.root_of(number) for number in of_weights]
    return Reads(
        call.name,
        () if sizes(call) else tuple(map(str, call.scalars.items())),
        tuple(run.side.value(root).digest for root in roots),
        tuple(
            run.side.value(n).offset - run.side.value(root).offset for n, root in zip(of_weights, roots, strict=True)
        ),
    )


def _kind(run: Run, call: Call) -> object:
    """A call's name with the width of what it gives."""
    result = next(iter((*call.outputs.values(), *call.written.values())), None)
    shape = () if result is None else run.side.value(result).shape
    return call.name, shape[-1] if shape else None


def sizes(call: Call) -> bool:
    """Whether a call's arguments are sizes and places, which go with how many tokens there are."""
    return call.name.removeprefix("aten.").startswith(_SHAPES)
