"""Sums in order of arrival (`unordered`): one draw is no result, so a side that has one is drawn anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from moeparity.numerics.orders import NATIVE, Order, parse
from moeparity.plan.bind import BoundGraph, Place
from moeparity.plan.sides import Side

DRAWS = 4
"""Further draws of each side that has a sum in arrival order."""

UNORDERED = "unordered"


def arrival_draws(side: Side) -> list[Side]:
    """The side with every `unordered` drawn anew, from seeds 1 to `DRAWS` above its own; [] where it has none."""
    orders = list(_orders(side.plan))
    return [replace(side, plan=_redrawn(side.plan, orders, by)) for by in range(1, DRAWS + 1)] if orders else []


def _redrawn(plan: BoundGraph, orders: Sequence[tuple[Place, Order]], by: int) -> BoundGraph:
    settings = {place: replace(plan.settings[place], value=str(_moved(order, by))) for place, order in orders}
    return replace(plan, settings={**plan.settings, **settings})


def _orders(plan: BoundGraph) -> Iterator[tuple[Place, Order]]:
    """Every order that takes effect and has a level in arrival order."""
    for node in plan.graph.nodes:
        active = plan.active(node)
        for attribute in node.attributes:
            value = str(active.get(attribute.name, NATIVE)) if attribute.order else NATIVE
            if UNORDERED in value:
                yield (node.name, attribute.name), parse(value)


def _moved(order: Order, by: int) -> Order:
    """Every level in arrival order with its seed moved on."""
    moved = (
        replace(level, numbers=(level.numbers[0] + by,)) if level.name == UNORDERED else level for level in order.levels
    )
    return Order(tuple(moved))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The gate's metric of one draw, and the verdict on it; None for a draw of the reference."""

    value: float
    status: str | None


def arrival_reading(candidate: Sequence[Drawn], reference: Sequence[Drawn], metric: str) -> list[str]:
    """What the draws mean, in sentences. `candidate` begins with the draw the recipe names; either may be empty."""
    said = []
    if candidate:
        low, high = min(d.value for d in candidate), max(d.value for d in candidate)
        said.append(
            f"The candidate adds in order of arrival: over {len(candidate)} draws {metric} lies between {low:.3g} and "
            f"{high:.3g}. No single draw is its value."
        )
    if reference:
        furthest = max(d.value for d in reference)
        said.append(
            f"The reference adds in order of arrival: {len(reference)} further draws lie up to {metric} {furthest:.3g} "
            "from the one it is compared in."
        )
    return said


def agreed(candidate: Sequence[Drawn]) -> bool:
    """Whether the verdict is the same on every draw of the candidate."""
    return len({draw.status for draw in candidate}) <= 1
