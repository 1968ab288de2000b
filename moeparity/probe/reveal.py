"""Finds a tree from probes that cancel: +M at one leaf, -M at another, units at others. No torch here.

Units below the place where +M and -M meet are lost, so the sum counts the units outside. One pivot is paired with all
other leaves of a group. Leaves that lose the same units are siblings on the pivot's way up, and each set of siblings
becomes a group of its own. After Xie, Gao, Wang and Xue, Revealing Floating-Point Accumulation Orders in
Software/Hardware Implementations (FPRev, USENIX ATC 2025). This project adds random pivots, one batch for all groups of
a depth, subsets of units where counts would round, and fused adders.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from moeparity.probe.shape import Shape


class NoTree(Exception):  # noqa: N818  a finding, told to the user as one
    """The probes contradict every single tree."""


@dataclass(frozen=True, slots=True)
class Block:
    """Probes with one pivot: +M at `plus`, -M at one leaf of `minus` each, units at the others of `units`."""

    plus: int
    minus: Sequence[int]
    units: Sequence[int]


Ask = Callable[[Sequence[Block]], list[list[int]]]
"""For each block, how many units each of its probes leaves."""

Steps = Generator[list[Block], list[list[int]], "list[_Join]"]


@dataclass(slots=True)
class _Join:
    """One merge on the pivot's way up: the leaves of its other children."""

    children: list[list[int]]
    groups: list[_Group] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    """Leaves that are known to be added up before anything else is added to them."""

    leaves: list[int]
    pivot: int = 0
    joins: list[_Join] = field(default_factory=list)


def reveal(ask: Ask, leaves: int, capacity: int) -> Shape:
    """The shape of a sum over `leaves` leaves. ask: counts what is left; counts up to `capacity` are exact.

    Raises NoTree if the counts contradict each other. Beyond `capacity` leaves, fused adders are not recognised.
    """
    draw = random.Random(0)  # noqa: S311
    root = _Group(list(range(leaves)))
    groups, level = [root], [root]
    while level:
        running = [(group, _siblings(group, capacity, draw)) for group in level]
        _run_together(running, ask)
        level = []
        for group, _ in running:
            for join in group.joins:
                join.groups = [_Group(child) for child in join.children]
                level += [child for child in join.groups if len(child.leaves) > 1]
        groups += level
    return _shape(root, groups, ask)


def _run_together(running: Sequence[tuple[_Group, Steps]], ask: Ask) -> None:
    """Run the steps of all groups together, with one batch for all of their questions each time."""
    waiting: list[tuple[_Group, Steps, list[Block]]] = []
    for group, steps in running:
        waiting += _advance(group, steps, None)
    while waiting:
        answers = iter(ask([block for _, _, blocks in waiting for block in blocks]))
        waiting = [
            step for group, steps, blocks in waiting for step in _advance(group, steps, [next(answers) for _ in blocks])
        ]


def _advance(group: _Group, steps: Steps, answer: list[list[int]] | None) -> list[tuple[_Group, Steps, list[Block]]]:
    try:
        return [(group, steps, next(steps) if answer is None else steps.send(answer))]
    except StopIteration as stop:
        group.joins = stop.value
        return []


def _siblings(group: _Group, capacity: int, draw: random.Random) -> Steps:
    """What is merged with the pivot, from the lowest merge upwards."""
    leaves = group.leaves
    group.pivot = draw.choice(leaves)
    partners = [leaf for leaf in leaves if leaf != group.pivot]
    if len(partners) < 2:
        return [_Join([partners])] if partners else []
    if len(leaves) > capacity:
        return (yield from _by_subsets(group.pivot, partners, capacity, draw))
    (visible,) = yield [Block(group.pivot, partners, leaves)]
    return (yield from _by_counts(group.pivot, partners, [len(leaves) - count for count in visible]))


def _by_counts(pivot: int, partners: Sequence[int], hidden: Sequence[int]) -> Steps:
    """Joins from exact counts. hidden: how many leaves the pivot and each leaf of `partners` hide, themselves included.

    An addition hides everything that was merged with the pivot lower down. A fused adder that adds exactly hides only
    the two children with +M and -M, so its other children are seen.
    """
    buckets: dict[int, list[int]] = {}
    for leaf, lost in zip(partners, hidden, strict=True):
        buckets.setdefault(lost, []).append(leaf)
    joins: list[_Join] = []
    before = below = 1
    for lost, alike in sorted(buckets.items()):
        addition = lost == below + len(alike)
        if not addition and joins:
            ((answer,),) = yield [Block(pivot, alike[:1], joins[-1].children[0][:1])]
        if addition or not joins or not answer:
            joins.append(_Join([]))
            before = below
        if lost <= before or len(alike) % (lost - before):
            raise NoTree(f"{len(alike)} of the values hide {lost} others each, where at least {below} were expected")
        joins[-1].children += yield from _children(alike, lost - before)
        below += len(alike)
    return joins


def _children(leaves: list[int], size: int) -> Generator[list[Block], list[list[int]], list[list[int]]]:
    """The leaves of several children of one fused adder, `size` leaves each, child by child."""
    children = []
    while len(leaves) > size > 1:
        first, *partners = leaves
        (visible,) = yield [Block(first, partners, leaves)]
        child = [first, *(leaf for leaf, count in zip(partners, visible, strict=True) if len(leaves) - count <= size)]
        if len(child) != size:
            raise NoTree(f"a fused adder's child of {size} leaves shows {len(child)}")
        children.append(child)
        leaves = [leaf for leaf in leaves if leaf not in set(child)]
    return [*children, *([leaf] for leaf in leaves)] if size == 1 else [*children, leaves]


def _by_subsets(pivot: int, leaves: list[int], capacity: int, draw: random.Random) -> Steps:
    """Joins where counts would round: units are put on few leaves at a time, and their counts sort the others into
    runs.
    """
    runs: list[tuple[list[int], bool]] = [(leaves, False)]
    while not all(single for _, single in runs):
        units_of = {i: draw.sample(run, min(len(run), capacity)) for i, (run, single) in enumerate(runs) if not single}
        counts = yield [Block(pivot, runs[i][0], sample) for i, sample in units_of.items()]
        parts = {i: _by_visible(runs[i][0], visible) for i, visible in zip(units_of, counts, strict=True)}
        # Either all leaves that hide the units of a run lie in its lowest sibling, or the run is one sibling.
        unsure = {i: sample[0] for i, sample in units_of.items() if len(parts[i]) == 1 < len(sample) < len(runs[i][0])}
        peeled = (yield from _lowest_siblings(pivot, {i: runs[i][0] for i in unsure}, unsure)) if unsure else {}
        sorted_runs: list[tuple[list[int], bool]] = []
        for i, (run, single) in enumerate(runs):
            if single or i in peeled:
                sorted_runs += [(run, True)] if single else peeled[i]
            else:
                sorted_runs += [(part, len(part) == 1 or len(parts[i]) == 1) for part in parts[i]]
        runs = sorted_runs
    return [_Join([run]) for run, _ in runs]


def _by_visible(run: Sequence[int], visible: Sequence[int]) -> list[list[int]]:
    """Leaves sorted by how many units they leave: those that leave most lie lowest."""
    parts: dict[int, list[int]] = {}
    for leaf, count in zip(run, visible, strict=True):
        parts.setdefault(count, []).append(leaf)
    return [part for _, part in sorted(parts.items(), reverse=True)]


def _lowest_siblings(
    pivot: int, runs: dict[int, list[int]], of: dict[int, int]
) -> Generator[list[Block], list[list[int]], dict[int, list[tuple[list[int], bool]]]]:
    """Each run split into its lowest sibling, which contains leaf `of`, and the unsorted rest, if there is one."""
    counts = yield [Block(pivot, [of[i]], run) for i, run in runs.items()]
    parts = {i: [(run, True)] for i, run in runs.items()}
    for (i, run), (outside,) in zip(runs.items(), counts, strict=True):
        if outside:
            partners = [leaf for leaf in run if leaf != of[i]]
            visible = yield [Block(pivot, [of[i]], [leaf]) for leaf in partners]
            above = [leaf for leaf, (count,) in zip(partners, visible, strict=True) if count]
            upper = set(above)
            parts[i] = [([leaf for leaf in run if leaf not in upper], True), (above, False)]
    return parts


def _shape(root: _Group, groups: Sequence[_Group], ask: Ask) -> Shape:
    """One shape of all groups' merges; children of one adder that swamps its terms are put together."""
    fused = _fused_joins(groups, ask)
    merges: list[tuple[int, ...]] = []
    leaves = len(root.leaves)

    def children(group: _Group) -> list[int]:
        """The operands of a group's last merge."""
        values = [group.pivot]
        for number, join in enumerate(group.joins):
            if number:
                merges.append(tuple(values))
                values = [leaves + len(merges) - 1]
            for child in join.groups:
                values += children(child) if (id(group), number) in fused else [value_of(child)]
        return values

    def value_of(group: _Group) -> int:
        if len(group.leaves) == 1:
            return group.leaves[0]
        merges.append(tuple(children(group)))
        return leaves + len(merges) - 1

    if leaves > 1:
        value_of(root)
    return Shape(leaves, tuple(merges))


def _fused_joins(groups: Sequence[_Group], ask: Ask) -> set[tuple[int, int]]:
    """Joins, as (group, number), whose other child is not a value of its own but further terms of the same fused adder.

    The probe has +M and -M on two children of that child and one unit on the pivot: if the child is a value of its own,
    it is 0 before the unit is added.
    """
    joins = [
        (group, number, join.groups[0])
        for group in groups
        for number, join in enumerate(group.joins)
        if len(join.groups) == 1 and len(join.groups[0].leaves) > 1
    ]
    blocks = [Block(child.pivot, child.joins[-1].children[0][:1], [group.pivot]) for group, _, child in joins]
    counts = ask(blocks) if blocks else []
    return {(id(group), number) for (group, number, _), (count,) in zip(joins, counts, strict=True) if not count}
