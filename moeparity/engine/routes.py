"""Forced routes (routing replay): a walker whose routers hand on what another walker's routers chose.

Engines differ in what a replay takes over: the expert ids alone, which each side weights itself (verl's R2 and R3,
slime, vLLM, SGLang); the routing weights too; and the order of the slots, in which a combine may add. What none of them
records, and could, are the router's logits. Where attention is sparse, the keys that an indexer chooses are replayed in
the same way (miles' indexer replay). A forced walker takes over one of these, and keeps its own numerics for everything
else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from torch import Tensor

from moeparity.engine.grafts import Graft
from moeparity.errors import SpecError
from moeparity.ops.declaration import Role
from moeparity.plan.bound import Plan
from moeparity.plan.changed import in_all_phases
from moeparity.plan.graph import Graph

Replayed = Literal["ids", "ids+weights", "ids+weights+order", "logits", "keys", "ids+keys"]
Routes = Literal["natural", Replayed]
NATURAL: Final = "natural"
IDS: Final = "ids"
WEIGHTS: Final = "ids+weights"
ORDER: Final = "ids+weights+order"
LOGITS: Final = "logits"
KEYS: Final = "keys"
IDS_AND_KEYS: Final = "ids+keys"
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
    keys, ids+keys: the keys that the other walker's indexers choose, bit for bit, which are counted from the first one
        of a call, so that both walkers need micro-batches of whole sequences; alone, or with the expert ids.

    Where the two plans differ in a choice that later ops go along with (`router:scaling`), the weights taken over are
    those that the other walker's router gives under the choice of this one, so that nothing is scaled twice.
    """

    of: Any
    replayed: Replayed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """What a walker's routers take over from tables, as a trainer that replays a record does.

    of: by the name of a router's value, one row for each token of the grid: ids int64 [B * T, K], which may name an
        expert twice, and weights [B * T, K] in any float. A row of -1 is no route: there the router keeps its own.
    replayed: as in `Forced`, but for router logits. `ids+weights+order` needs a route for every token.
    """

    of: Mapping[str, Tensor]
    replayed: Replayed


def takes_over(replayed: Replayed, role: Role) -> bool:
    """Whether this much of a replay concerns ops of this role."""
    return (role.routes and replayed != KEYS) or (role.picks and replayed in {KEYS, IDS_AND_KEYS})


def tables(routes: Tensor, graph: Graph) -> dict[str, Tensor]:
    """Recorded ids int64 [B, T, MoE layers, K] as `Recorded.of` has them: by the name of each router's ids."""
    routers = [node for node in graph.nodes if node.op.role.routes]
    return {node.values[0]: routes[:, :, place].flatten(0, 1) for place, node in enumerate(routers)}


def by_slot(routes: Tensor, graph: Graph) -> dict[str, Graft]:
    """Grafts that put recorded ids [B, T, MoE layers, K] into the slots of a walker's own weights, whoever these belong
    to; -1 where its own stay.
    """
    grafts: dict[str, Graft] = {}
    for value, ids in tables(routes, graph).items():
        read = partial(ids.clamp, min=0)
        grafts[value] = Graft(read=read, is_recorded=(ids >= 0).all(-1), where="routes", cast=False)
    return grafts


def replayed_plan(plan: Plan, source: Plan) -> Plan:
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
