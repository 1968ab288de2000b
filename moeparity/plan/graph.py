"""The expanded graph of one checkpoint: every layer's nodes, with their parameters and weights named."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx

from moeparity.errors import Where
from moeparity.ops.attribute import Attribute, holds
from moeparity.ops.declaration import Op
from moeparity.ops.images import IMAGE_MASK, IMAGES
from moeparity.plan.edits import Edit, Part

SOURCES = ("tokens", "positions", "mask", "grid_positions", IMAGE_MASK, IMAGES)
"""Values that come from outside: token ids and positions [B, T] int64, and mask [B, T] bool, true on real tokens. Of
models that take images also grid_positions [B, T, 3] int64, in time, height and width; image_mask [B, T] bool, true at
image tokens; and images [B, T, parts * hidden], what a vision tower gave, of no width where there are no images.
"""

UNSET = (None, False, "none")
"""Values of a parameter that mean it is not set: attributes that require it do not exist on the node then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRef:
    """The tensor of the checkpoint that a weight port takes; with `each` there is one tensor for each expert.

    `shape` is that of one tensor or, where one tensor of shape `stacked` holds all experts (its axes are experts,
    inputs, outputs; with `outputs_first` experts, outputs, inputs), that of one expert's part. `fields` are the fields
    of config.json that each axis of `shape` was computed from. `keep_fp32` marks tensors that stay fp32 whatever dtype
    the variant runs in. `parts` are set only for a weight that a fault rewrites: one for each expert.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    fields: tuple[tuple[str, ...], ...] = field(compare=False)
    each: bool
    keep_fp32: bool
    where: Where
    stacked: tuple[int, ...] | None = None
    outputs_first: bool = False
    parts: tuple[Part, ...] = ()

    @property
    def count(self) -> int:
        """How many tensors of `shape` there are."""
        return len(self.names) if self.stacked is None else self.stacked[0]

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape of a tensor in the file."""
        return self.stacked or self.shape

    @property
    def pieces(self) -> tuple[Part, ...]:
        """Its parts, rewritten or not: one for each expert where it has several."""
        if self.parts:
            return self.parts
        if self.stacked is not None:
            return tuple(Part(name=self.names[0], expert=expert) for expert in range(self.count))
        return tuple(Part(name=name) for name in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One op at one place. `inputs` are value names: `tokens`, `layers[0].moe.norm`, `layers[0].moe.router.ids`.

    `attributes` are those of the op that exist on this node: the parameters, weights and inputs they require are there.
    `values` are the names of the values it produces: its own name, or `name.part` for each part. `ports` are the op's
    input ports that are connected: optional ones may be left out. `edge_sites` are the attributes that may have another
    value on a single edge. `edits` are what a fault changes beside parameters and weights; `own_weights` is false where
    a fault changes the weights. `computation` is a digest of parameters, weights and edits: nodes of one name, with
    equal digests and choices, compute the same.
    """

    name: str
    op: Op
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, WeightRef]
    params: Mapping[str, Any]
    layer: int | None
    where: Where
    edits: tuple[Edit, ...] = ()
    own_weights: bool = True
    computation: str = field(init=False, repr=False, compare=False)
    attributes: tuple[Attribute, ...] = field(init=False, repr=False, compare=False)
    values: tuple[str, ...] = field(init=False, repr=False, compare=False)
    ports: tuple[str, ...] = field(init=False, repr=False, compare=False)
    edge_sites: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Work out derived fields once: a node never changes, and they are read hundreds of times."""
        object.__setattr__(self, "ports", self.op.inputs[: len(self.inputs)])
        object.__setattr__(self, "attributes", tuple(a for a in self.op.attributes if self._has(a)))
        object.__setattr__(self, "edge_sites", tuple(a.name for a in self.attributes if a.edge))
        parts = tuple(f"{self.name}.{part}" for part in self.outputs)
        object.__setattr__(self, "values", (self.name,) if self.outputs == ("out",) else parts)
        weights = [(port, ref.names, ref.parts) for port, ref in self.weights.items()]
        made_of = repr((sorted(self.params.items()), weights, self.edits)).encode()
        object.__setattr__(self, "computation", hashlib.blake2b(made_of, digest_size=8).hexdigest())

    def heads_of(self, value: str) -> int | None:
        """Into how many heads the node cuts one of its values; None where it does not."""
        heads = self.params.get("heads")
        return heads.get(value.rpartition(".")[2]) if isinstance(heads, dict) else heads

    def _has(self, attribute: Attribute) -> bool:
        return (
            (attribute.parameter is None or self.params[attribute.parameter] not in UNSET)
            and holds(attribute.when_parameters, self.params)
            and (attribute.weight is None or attribute.weight in self.weights)
            and attribute.without_weight not in self.weights
            and (attribute.input is None or attribute.input in self.ports)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Nodes whose weights are loaded and dropped together: `before`, one layer, or `after`."""

    name: str
    nodes: tuple[Node, ...]


def log_probs(nodes: Iterable[Node], output: str) -> list[str]:
    """The nodes that take log-probabilities of the logits `output`."""
    return [node.name for node in nodes if node.op.role.reports and node.inputs == (output,)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """All nodes in execution order, cut into segments; `digraph` holds the same nodes by name, edges along values.

    `config` holds the fields of the config.json it was expanded with, under the names in the file. `output` is the name
    of the logits; `scores` that of the value log-probabilities are read from: the output of a `log_probs` node, or the
    logits where there is none. `sizes` are the sizes declared by the graph file that are whole numbers for this model.
    `cut_from` is the whole graph of which this one is a part (None: it is whole). `makers` maps each value to the node
    that makes it. `pairs` says whether its sequences are pairs, of which a reward model says which is the better one.
    """

    path: Path
    config: Mapping[str, Any] = field(compare=False)
    model_type: str
    segments: tuple[Segment, ...]
    output: str
    ignore: tuple[str, ...]
    digraph: nx.DiGraph[str] = field(compare=False)
    sizes: Mapping[str, int] = field(default_factory=dict, compare=False)
    cut_from: Graph | None = field(default=None, repr=False, compare=False)
    nodes: tuple[Node, ...] = field(init=False, repr=False, compare=False)
    makers: Mapping[str, Node] = field(init=False, repr=False, compare=False)
    pairs: bool = field(init=False, repr=False, compare=False)
    scores: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Work out `nodes`, `makers`, `pairs` and `scores` once."""
        object.__setattr__(self, "nodes", tuple(node for segment in self.segments for node in segment.nodes))
        object.__setattr__(self, "makers", {value: node for node in self.nodes for value in node.values})
        object.__setattr__(self, "pairs", any(node.op.tokens.pairs for node in self.nodes))
        object.__setattr__(self, "scores", next(iter(log_probs(self.nodes, self.output)), self.output))

    @property
    def whole(self) -> Graph:
        """The whole graph, of which this one may be a part."""
        return self.cut_from or self

    @property
    def adapted(self) -> tuple[Node, ...]:
        """The nodes that a LoRA adapter stands beside."""
        return tuple(node for node in self.nodes if node.params.get("adapter") is not None)

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return sum(segment.name.startswith("layers[") for segment in self.segments)
