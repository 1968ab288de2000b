"""What planting a value of a placement asks for: which nodes, how these are cut, and what makes it show."""

from __future__ import annotations

from moeparity.numerics.collectives.registry import COLLECTIVES, SELECTIONS
from moeparity.numerics.dtypes import CHECKPOINT_NAMES
from moeparity.ops.attribute import Attribute, Value
from moeparity.ops.linear import ROW
from moeparity.ops.placement import NONE
from moeparity.plan.graph import Graph, Node
from tests.planted import quantised as planted_quantised

RANKS = 4

WHOLE_NUMBERS: dict[str, int] = {
    **{
        f"{op}:{name}": RANKS
        for op in ("linear", "attention", "mla", "mla_expand", "experts", "swiglu", "lm_head")
        for name in ("tensor", "blocks")
    },
    "embedding:tensor": RANKS,
    "all_reduce:channels": 2,
    "all_reduce:node": 2,
    "rms_norm:sm_count": 16,
    "rms_norm:tensor": RANKS,
    "combine:expert": RANKS,
    "log_probs:tensor": RANKS,
    "log_probs:block": 64,
    "indexer:allocated": 160,
    "log_probs:top_k": 20,
    **{f"{op}:allocated": 160 for op in ("attention", "mla")},
    **{f"{op}:splits": 2 for op in ("linear", "gate", "lm_head", "experts")},
    **{f"{op}:rows": 1 for op in ("linear", "gate", "lm_head", "experts", "attention", "mla", "mla_expand")},
    **{
        f"{op}:{name}": value
        for op in ("attention", "mla")
        for name, value in {
            "kv_block": 4,
            "l2_bytes": 1 << 12,
            "rescale_above": 1,
            "splits": 2,
            "q_block": 3,
            "split_unit": 2,
            "split_keys": 4,
            "shared_keys": 4,
        }.items()
    },
    **planted_quantised.WHOLE_NUMBERS,
}
"""What is planted where any whole number is allowed."""

NCCL: dict[str, dict[str, Value]] = {
    "all_reduce:channels": {"collective": "nccl.ring"},
    "all_reduce:protocol": {"collective": "nccl.ring", "channels": 2},
    "all_reduce:node": {"collective": "nccl.tree"},
    "all_reduce:pattern": {"collective": "nccl.tree", "node": 2},
}
"""What both sides have beside a planted choice of NCCL's."""

CELLS = (2, 72, 2)
"""Sequences, tokens and micro-batch of a message that NCCL gives two channels: 18 KiB, in cells of 16 (Simple)."""

ROW_WISE = {f"linear:{name}" for name in ("tensor", "blocks", "parallel", "partial", "bias")}
"""What shows at projections that lead back to the residual stream; elsewhere bits may be those of one rank."""


def fits(place: str, node: Node, graph: Graph) -> bool:
    """Whether a value may be planted on this node; all-reduces: those behind a row-wise projection, or a join."""
    if place in ROW_WISE:
        return node.params["parallel"] == ROW
    if place == "all_reduce:reduce":
        joined = _successor(node, graph)
        return _successor(joined, graph).op.name == "all_reduce"
    if node.op.name != "all_reduce":
        return True
    # Of a size that 3, 4, 8 and 16 ranks can share.
    producer = _producer(node, graph)
    return producer.op.name == "linear" and producer.weights["weight"].shape[1] % 48 == 0


def background(attribute: Attribute, place: str, value: Value, node: Node, graph: Graph) -> dict[str, Value]:
    """Addresses both sides set so that the attribute takes effect, and shows."""
    if place == "all_reduce:collective":
        return _for_collective(str(value), node, graph)
    if place in NCCL:
        return _for_nccl(place, node, graph)
    settings: dict[str, Value] = {}
    if attribute.name == "own_keys":
        # What is stored is not what was computed.
        cache = next(
            node_there
            for node_there in graph.nodes
            if node_there.op.name == "kv_cache" and node_there.layer == node.layer
        )
        settings[f"{cache.name}:stored"] = "fp8_e4m3"
    if place == "mla_expand:kv_b_tf32":
        settings[f"{node.inputs[1]}:output"] = "fp32"
    if attribute.needs in ("pieces", "partials"):
        cut = _producer(node, graph) if node.op.name == "all_reduce" else node
        settings[f"{cut.name}:{'expert' if cut.op.name == 'combine' else 'tensor'}"] = RANKS
    if attribute.name == "partial":
        # A library takes no fp64.
        settings[f"{_reduction(node, graph).name}:collective"] = NONE
    if place == "all_reduce:output":
        # A sum of two dtypes, so that every output differs from every other.
        settings |= {f"{cut.name}:partial": "fp32", f"{node.name}:collective": NONE, f"{node.name}:accumulate": "fp32"}
    if place == "all_reduce:sequence":
        settings[f"{node.name}:collective"] = "nccl.ring"
    return settings


def _for_nccl(place: str, node: Node, graph: Graph) -> dict[str, Value]:
    """Partial sums that a channel's chunks, or the sums of two nodes and more, divide otherwise."""
    producer, choices = _producer(node, graph).name, NCCL[place]
    ranks = 6 if place == "all_reduce:pattern" else RANKS
    return {f"{producer}:tensor": ranks} | {f"{node.name}:{name}": value for name, value in choices.items()}


def _for_collective(name: str, node: Node, graph: Graph) -> dict[str, Value]:
    """A number of ranks and a dtype that the collective, or a row of the table, takes; `none` adds from the last rank
    on, as no library does, each addition rounded.
    """
    row_name = SELECTIONS[name].rows[-1][1] if name in SELECTIONS else name
    collective = COLLECTIVES.get(row_name)
    worlds, dtypes = (collective.worlds, collective.dtypes) if collective else ((), CHECKPOINT_NAMES)
    ranks = next(n for n in (RANKS, 8, 16, 3, 2) if not worlds or n in worlds)
    dtype = "bf16" if "bf16" in dtypes else dtypes[0]
    choices: dict[str, Value] = {"order": "reverse", "accumulate": dtype, "output": dtype}
    choices["sequence"] = "scattered" if collective and collective.scatters else "whole"
    producer = _producer(node, graph).name
    cut: dict[str, Value] = {f"{producer}:tensor": ranks, f"{producer}:partial": dtype}
    return cut | {f"{node.name}:{name}": value for name, value in choices.items()}


def _producer(node: Node, graph: Graph) -> Node:
    return next(node_there for node_there in graph.nodes if node.inputs[0] in node_there.values)


def _successor(node: Node, graph: Graph) -> Node:
    name = next(iter(graph.digraph.successors(node.name)))
    return next(node_there for node_there in graph.nodes if node_there.name == name)


def _reduction(node: Node, graph: Graph) -> Node:
    while node.op.name != "all_reduce":
        node = _successor(node, graph)
    return node
