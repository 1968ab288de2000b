"""The oracle: the fp64 profile on the reference's graph."""

from __future__ import annotations

from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import Profile
from moeparity.plan.sides import Side

ORACLE = "oracle"


def oracle_side(reference: Side, profile: Profile, dtype: str) -> Side:
    """The oracle's profile on the reference's graph and micro-batches; `dtype` is the checkpoint's.

    What is no numerics (an eps, a tie-break rule) is the reference's: the oracle is its exact answer.
    """
    plan = bind(reference.plan.graph, profile, dtype)
    nodes = plan.graph.nodes
    semantics = [(node.name, a.name) for node in nodes for a in node.attributes if a.kind == "semantics"]
    return Side(plan=plan.with_settings(semantics, reference.plan), micro_batch=reference.micro_batch)
