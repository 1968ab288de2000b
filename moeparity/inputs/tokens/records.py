"""Recorded routes against the model they are said to be of."""

from __future__ import annotations

from moeparity.errors import TokensError, Where
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.graph import Graph


def check_fits(tokens: TokenSet, graph: Graph, where: Where) -> None:
    """Raises TokensError unless the recorded routes have the model's MoE layers, its top_k and its experts."""
    if tokens.routed_experts is None:
        return
    routers = [node for node in graph.nodes if node.op.routes]
    experts = max((ref.count for node in graph.nodes for ref in node.weights.values() if ref.each), default=0)
    expected = [len(routers), routers[0].params["top_k"] if routers else 0]
    given = list(tokens.routed_experts.shape[2:])
    if given != expected:
        dense = f" Leave out the {graph.layers - len(routers)} dense layers." if given[0] == graph.layers else ""
        raise TokensError(
            f"{where}: routed_experts holds {given[0]} layers of {given[1]} experts per token; the model has "
            f"{expected[0]} MoE layers, top {expected[1]}.{dense}"
        )
    largest = int(tokens.routed_experts.max())
    if largest >= experts:
        raise TokensError(
            f"{where}: routed_experts names expert {largest}; the model has experts 0..{experts - 1}. Record logical "
            "experts, not the physical places a load balancer gave them."
        )
