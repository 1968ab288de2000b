"""Faults that are tried at nodes, alone and beside what is there already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from moeparity.evidence.explain.faults import PLANTED, fault_places
from moeparity.evidence.explain.few_rows import few_rows
from moeparity.evidence.explain.numbers import READ_OFF_TRIALS, read_off
from moeparity.evidence.explain.plainness import places
from moeparity.evidence.explain.replaced import Choices
from moeparity.evidence.explain.sample import Sample
from moeparity.evidence.explain.solved import matters, solutions
from moeparity.evidence.explain.tries import NOTHING, Tries, scored
from moeparity.evidence.explain.vocabulary import numbers
from moeparity.plan.setting import Place

FEW: Final = 2
"""On so many rows a fault of an expert is tried before it is on all."""


def with_fault(tries: Tries, parent: Choices) -> Iterator[Choices]:
    """The combination with the experts in another order, or a fault that leaves no number open."""
    before = tries.kernels.work
    order = tries.kernels.order(tries.samples[0], parent)
    tries.spent += tries.kernels.work - before
    if order is not None and order not in places(parent):
        yield parent | {(order, PLANTED)}
    for place, number in _places(tries, parent):
        if number is None and tries.reaches((place, PLANTED), parent):
            yield parent | {(place, PLANTED)}


def of_suspects(tries: Tries) -> Iterator[Choices]:
    """A fault of an expert that the values point to, alone; numbers are read off. What has few values comes first; a
    fault that leaves no number open has to give the bits of a few rows before it is tried on all.
    """
    few = few_rows(tries.kernels, NOTHING, tries.samples[0], FEW)
    places = [place for place in _places(tries, NOTHING) if "expert=" in place[0][1]]
    count = Counter(_fault_name(place) for place, _ in places)

    def trials(of: tuple[Place, float | None]) -> int:
        return count[_fault_name(of[0])] * (1 if of[1] is None else READ_OFF_TRIALS)

    for place, number in sorted(places, key=lambda of: (few is not None and of[1] is not None, trials(of))):
        choices = frozenset([(place, PLANTED)])
        if number is not None:
            yield from _read_off(tries, place, number)
        elif few is None or _gives(tries, choices, few):
            yield choices


def _gives(tries: Tries, choices: Choices, sample: Sample) -> bool:
    """Whether choices give every bit of a micro-batch that none of the tries are on; that it was asked counts. Raises
    SpentError.
    """
    tries.refuse_spent()
    before = tries.kernels.work
    score = scored(tries.kernels, choices, [sample])
    tries.spent += tries.kernels.work - before
    return score.exact


def _read_off(tries: Tries, place: Place, number: float) -> Iterator[Choices]:
    def choices(x: float) -> Choices:
        return frozenset([(place, x)])

    yield from map(choices, read_off(lambda x: tries.remainder(choices(x)), number))


def _fault_name(place: Place) -> str:
    return place[1].partition("(")[0]


def with_number_of_fault(tries: Tries, parent: Choices) -> Iterator[Choices]:
    """The combination with a fault that leaves a number open, solved for."""
    for place, number in _places(tries, parent):
        if number is not None and matters(tries, parent, place, number):
            yield from solutions(tries, parent, place, number, near=number != 0)


def _places(tries: Tries, parent: Choices) -> Iterator[tuple[Place, float | None]]:
    """Where a fault may be planted beside what is there; not those that a parameter solved for stands for."""
    kernels, occupied = tries.kernels, places(parent)
    replaced = kernels.replaced
    suspects = kernels.suspects(tries.samples[0], parent)
    solved_for = {place for place, _ in numbers(replaced, replaced.bound(NOTHING))}
    widths = {port.shape[-1] for port in tries.samples[0].results if port.dim()}
    for node in replaced.searched_nodes:
        for place, number in fault_places(replaced.plan.graph, node, suspects, solved_for, widths, tries.checkpoints):
            if place not in occupied:
                yield place, number
