"""Faults that are tried at nodes, alone and beside what is there already."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.evidence.explain.faults import PLANTED, fault_places
from moeparity.evidence.explain.plainness import places
from moeparity.evidence.explain.replaced import Choices
from moeparity.evidence.explain.solved import matters, solutions
from moeparity.evidence.explain.tries import NOTHING, Tries
from moeparity.evidence.explain.vocabulary import numbers
from moeparity.plan.setting import Place


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
        for place, number in fault_places(replaced.plan.graph, node, suspects, solved_for, widths):
            if place not in occupied:
                yield place, number
