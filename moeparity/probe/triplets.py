"""Finds a tree from probes of three leaves, for values that can't be negative. No torch here.

One leaf swamps another, but not two that were added up before; so a probe says whether two leaves meet before they meet
a third. With a pivot as one of them, this sorts all other leaves by the place where they meet the pivot, as in a
quicksort with ties; leaves that meet it at the same place form a group of their own. Merges of more than two are not
recognised.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence

from moeparity.probe.shape import Shape

Triplet = tuple[int, int, int]
Ask = Callable[[Sequence[Triplet]], list[bool]]
"""For each (k, i, j), whether i and j are added up before either meets k."""

Steps = Generator[list[Triplet], list[bool], list[list[int]]]

_SAMPLE = 15


def reveal_triplets(ask: Ask, leaves: int) -> Shape:
    """The shape of a sum over `leaves` leaves; if the sum is no tree, some shape is returned nevertheless."""
    draw = random.Random(0)  # noqa: S311
    merges: list[tuple[int, ...]] = []
    level = [list(range(leaves))]
    # Nested groups that begin with the same leaf have different sizes.
    paths: dict[tuple[int, int], tuple[int, list[list[int]]]] = {}
    while level:
        pivots = [draw.choice(group) for group in level]
        sorted_paths = _run_together(
            [_siblings(pivot, group, draw) for pivot, group in zip(pivots, level, strict=True)], ask
        )
        for group, pivot, path in zip(level, pivots, sorted_paths, strict=True):
            paths[group[0], len(group)] = (pivot, path)
        level = [run for path in sorted_paths for run in path if len(run) > 1]

    def value_of(group: list[int]) -> int:
        if len(group) == 1:
            return group[0]
        value, path = paths[group[0], len(group)]
        for run in path:
            merges.append((value, value_of(run)))
            value = leaves + len(merges) - 1
        return value

    if leaves > 1:
        value_of(list(range(leaves)))
    return Shape(leaves, tuple(merges))


def _run_together(running: Sequence[Steps], ask: Ask) -> list[list[list[int]]]:
    """The results of all steps, which are run together with one batch for all of their questions each time."""
    results: dict[int, list[list[int]]] = {}
    waiting = _advance(dict(enumerate(running)), dict.fromkeys(range(len(running))), results)
    while waiting:
        answers = iter(ask([probe for _, probes in waiting.values() for probe in probes]))
        replies = {i: [next(answers) for _ in probes] for i, (_, probes) in waiting.items()}
        waiting = _advance({i: steps for i, (steps, _) in waiting.items()}, replies, results)
    return [results[i] for i in range(len(running))]


def _advance(
    running: dict[int, Steps],
    answers: dict[int, list[bool] | None] | dict[int, list[bool]],
    results: dict[int, list[list[int]]],
) -> dict[int, tuple[Steps, list[Triplet]]]:
    waiting = {}
    for i, steps in running.items():
        answer = answers[i]
        try:
            waiting[i] = (steps, next(steps) if answer is None else steps.send(answer))
        except StopIteration as stop:
            results[i] = stop.value
    return waiting


def _siblings(pivot: int, group: list[int], draw: random.Random) -> Steps:
    """The leaves of `group` sorted by where they meet the pivot, from the lowest place upwards."""
    runs: list[tuple[list[int], bool]] = [([leaf for leaf in group if leaf != pivot], False)]
    while not all(single for _, single in runs):
        open_runs = {i: run for i, (run, single) in enumerate(runs) if not single}
        middle = yield from _middles(pivot, open_runs, draw)
        lower = yield from _replies_by_leaf(open_runs, middle, lambda j, leaf: (j, pivot, leaf))
        above = {i: [leaf for leaf in run if leaf != middle[i] and not lower[i][leaf]] for i, run in open_runs.items()}
        equal_place = yield from _replies_by_leaf(above, middle, lambda j, leaf: (pivot, j, leaf))
        sorted_runs: list[tuple[list[int], bool]] = []
        for i, (run, single) in enumerate(runs):
            if single:
                sorted_runs.append((run, True))
                continue
            below = [leaf for leaf in run if lower[i].get(leaf)]
            equal = [middle[i], *(leaf for leaf in above[i] if equal_place[i][leaf])]
            higher = [leaf for leaf in above[i] if not equal_place[i][leaf]]
            parts = [(below, len(below) == 1), (sorted(equal), True), (higher, len(higher) == 1)]
            sorted_runs += [part for part in parts if part[0]]
        runs = sorted_runs
    return [run for run, _ in runs]


def _middles(
    pivot: int, runs: dict[int, list[int]], draw: random.Random
) -> Generator[list[Triplet], list[bool], dict[int, int]]:
    """For each run, a leaf near its middle: the middle one of a sample, which is sorted by all its pairs."""
    samples = {i: draw.sample(run, _SAMPLE) for i, run in runs.items() if len(run) > 8 * _SAMPLE}
    middles = {i: draw.choice(run) for i, run in runs.items()}
    if not samples:
        return middles
    replies = yield [(b, pivot, a) for sample in samples.values() for a in sample for b in sample if a != b]
    answers = iter(replies)
    for i, sample in samples.items():
        below = {a: sum(next(answers) for b in sample if a != b) for a in sample}
        middles[i] = sorted(sample, key=lambda leaf: below[leaf])[_SAMPLE // 2]
    return middles


def _replies_by_leaf(
    runs: dict[int, list[int]], middle: dict[int, int], probe: Callable[[int, int], Triplet]
) -> Generator[list[Triplet], list[bool], dict[int, dict[int, bool]]]:
    """The answer for each leaf of each run except the middle one."""
    places = [(i, leaf) for i, run in runs.items() for leaf in run if leaf != middle[i]]
    answers: dict[int, dict[int, bool]] = {i: {} for i in runs}
    if places:
        replies = yield [probe(middle[i], leaf) for i, leaf in places]
        for (i, leaf), answer in zip(places, replies, strict=True):
            answers[i][leaf] = answer
    return answers
