"""The oracle: the fp64 profile on the reference's graph."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.plan.bind import bind
from moeparity.plan.changed import with_settings
from moeparity.plan.engine_profile import Profile
from moeparity.plan.graph import Node
from moeparity.plan.setting import FAULT
from moeparity.plan.sides import Side

ORACLE = "oracle"


def oracle_side(reference: Side, profile: Profile, dtype: str) -> Side:
    """The oracle's profile on the reference's graph and micro-batches; `dtype` is the checkpoint's.

    The oracle is the exact answer of the reference's model. So choices that are not numerics (an eps, a tie-break rule)
    are the reference's, and so are attributes that decide whether these take effect.
    """
    plan = bind(reference.plan.graph, profile, dtype, phases=reference.plan.phases)
    places = [(node.name, name) for node in plan.graph.nodes for name in _semantics(node)]
    return Side(plan=with_settings(plan, places, reference.plan), schedule=reference.schedule)


def _semantics(node: Node) -> Iterator[str]:
    """The choices of a node that are not numerics, and the attributes by which these may rest."""
    semantics = [attribute for attribute in node.attributes if attribute.kind == "semantics"]
    conditions = {name for attribute in semantics for name in attribute.when}
    yield from (a.name for a in node.attributes if a in semantics or a.name in conditions)
    yield FAULT
