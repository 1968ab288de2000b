"""The weights of one segment as they were loaded, and what a node may ask for beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from moeparity.inputs.weights.cache_scales import reads_scales
from moeparity.inputs.weights.joined import reads_joined
from moeparity.ops.quantised import rounds_operands
from moeparity.plan.graph import Node

Weights = Mapping[str, torch.Tensor]
"""A node's weights by port."""
SCALES, JOINED = "scales", "joined"
"""What is asked for where a GEMM multiplies a checkpoint's codes; and where its weight has a scale with others."""
BESIDE = frozenset({SCALES, JOINED})
_KEPT = 2
"""A search keeps the rewritten weights of this many nodes, since it asks for those of one node on every micro-batch."""


def asks_for(node: Node, active: Mapping[str, Any]) -> tuple[str, ...]:
    """What of `BESIDE` a node computes with: scales of the checkpoint, what the weights joined with its own have."""
    scales = rounds_operands(active) or reads_scales(node, active)
    return (SCALES,) * scales + (JOINED,) * reads_joined(active)


class Loaded(dict[tuple[str, str], Weights]):
    """(node name, dtype name) -> weights by port, for the nodes of a segment as the graph has them.

    The weights of a node that a fault rewrites, and the scales of a checkpoint's codes, are read when first asked for,
    and kept until the pass leaves the segment.
    """

    def __init__(
        self,
        weights: Mapping[tuple[str, str], Weights] | None = None,
        read: Callable[[Node, str], Weights] | None = None,
        most: int | None = None,
    ) -> None:
        """read: gives the weights of a rewritten node in a dtype, or for `SCALES` the scales of its codes, for `JOINED`
        what it has with others. most: how many of the latest of each are kept (None: all).
        """
        super().__init__(weights or {})
        self._read, self._most = read, most
        self._further: dict[tuple[str, str, str], Weights] = {}

    def of(self, node: Node, dtype: str, beside: tuple[str, ...] = ()) -> Weights:
        """The weights of a node as it is run (rewritten by faults); with what of `BESIDE` is asked for."""
        weights = self[node.name, dtype] if node.own_weights else self._on_demand(node, dtype)
        for name in beside:
            weights = {**weights, **self._on_demand(node, name)}
        return weights

    def _on_demand(self, node: Node, dtype: str) -> Weights:
        key = (node.name, node.computation, dtype)
        if key not in self._further:
            assert self._read is not None, "these weights were loaded without a source of others"
            sort = dtype if dtype in BESIDE else None
            alike = [key_ for key_ in self._further if (key_[2] if key_[2] in BESIDE else None) == sort]
            if len(alike) == self._most:
                del self._further[alike[0]]
            self._further[key] = self._read(node, dtype)
        return self._further[key]

    def beside(self) -> Loaded:
        """The same weights, with a cache of its own for the latest few that were asked for."""
        return Loaded(self, self._read, _KEPT)
