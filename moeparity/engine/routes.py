"""Forced routes (routing replay): a walker whose routers hand on what another walker's routers chose.

Engines differ in what a replay takes over: the expert ids alone, which each side weights itself (verl's R2 and R3,
slime, vLLM, SGLang); the routing weights too; and the order of the slots, in which a combine may add. What none of them
records, and could, are the router's logits. A forced walker takes over one of these, and keeps its own numerics for
everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from moeparity.errors import SpecError
from moeparity.plan.bound import BoundGraph
from moeparity.plan.changed import in_all_phases

Replayed = Literal["ids", "ids+weights", "ids+weights+order", "logits"]
Routes = Literal["natural", Replayed]
NATURAL: Final = "natural"
IDS: Final = "ids"
WEIGHTS: Final = "ids+weights"
ORDER: Final = "ids+weights+order"
LOGITS: Final = "logits"
REPLAYED: tuple[Replayed, ...] = (IDS, WEIGHTS, ORDER)
"""What is taken over of routes, from the least to the most; `natural` takes over nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """What a walker's routers take over, and the name of the walker they take it `of`.

    ids: the set of experts of each token. The walker's own scores are gathered there and made into weights as its own
        numerics say. The slots come in the order in which its own router ranks these experts; a token whose own set
        is the forced one keeps its own slots, ties included.
    ids+weights: and each expert's routing weight, in the dtype it has there.
    ids+weights+order: and the slots: bit for bit the other walker's routes. The own logits are not read.
    logits: not the routes, but what the other walker's router reads; the own router makes routes of them.

    Where the two plans differ in a choice that later ops go along with (`router:scaling`), the weights taken over are
    those that the other walker's router gives under the choice of this one, so that nothing is scaled twice.
    """

    of: Any
    replayed: Replayed


def replayed_plan(plan: BoundGraph, source: BoundGraph) -> BoundGraph:
    """The plan whose router outputs a forced walker takes over. The forced walker has the plan `plan` in one of its
    phases; the routes come from a walker with the plan `source`.

    Raises SpecError if a router's scores or routes are inside a user's function, or if `source` refuses a choice of
    `plan` that later ops depend on.
    """
    for side in (plan, source):
        hidden = side.replaced()
        for node in side.graph.nodes:
            if node.op.role.routes and node.name in hidden:
                region = hidden[node.name]
                raise SpecError(
                    f"{region.where}: impl {region.call} stands in place of {node.name}, so its routes cannot be "
                    "forced. Leave the router out of its `nodes`."
                )
    followed = {name for node in plan.graph.nodes for name in node.op.choices_elsewhere}
    routers = [node for node in plan.graph.nodes if node.op.role.routes]
    places = [(node.name, a.name) for node in routers for a in node.attributes if a.name in followed]
    own_settings = {place: plan.settings[place] for place in places}
    alike = all(
        in_phase.settings[place].value == own_settings[place].value for in_phase in source.distinct for place in places
    )
    return source if alike else in_all_phases(source, own_settings)
