"""The two sides of a recipe, bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moeparity.errors import Where
from moeparity.plan.bind import BoundGraph, bind
from moeparity.plan.engine_profile import Profile, Rule, overrides, placement_rules
from moeparity.plan.graph import Graph
from moeparity.plan.region import regions
from moeparity.plan.spec import schema

REFERENCE: Final = "reference"
CANDIDATE: Final = "candidate"
SIDES: Final = (REFERENCE, CANDIDATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a recipe, or a mixture of both: a plan and the number of sequences computed together."""

    plan: BoundGraph
    micro_batch: int


def bound_side(
    graph: Graph,
    variant: schema.Variant,
    profile: Profile,
    dtype: str,
    where: Where,
    sequences: int | None = None,
    over: tuple[Rule, ...] = (),
) -> Side:
    """A recipe's variant on a graph; `dtype` is the checkpoint's, taken where the variant names none.

    Without `sequences` (how many there are is not known yet), a micro-batch of 0 stands for all of them. `over` goes
    on top of what the variant sets.
    """
    set_rules = overrides(variant.set, where)
    placement = placement_rules(variant.placement, where)
    plan = bind(graph, profile, variant.dtype or dtype, set_rules, regions(graph, variant.impl, where), placement, over)
    size = variant.micro_batch or sequences or 0
    return Side(plan=plan, micro_batch=size if sequences is None else min(size, sequences))
