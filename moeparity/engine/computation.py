"""What computes the values of a node: the op's own kernel with its active choices, or a user's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from moeparity.engine import functions
from moeparity.engine.edits import edited, edits_see_rows
from moeparity.inputs.weights.store import Loaded, Weights
from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.joined_steps import Steps
from moeparity.ops.attribute import RefusedError
from moeparity.plan.bound import BoundGraph
from moeparity.plan.graph import Node
from moeparity.plan.region import Region

Size = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What computes a node's values.

    key: equal for two computations that are the same.
    partials: how many partial sums the values consist of.
    active: the op's choices that take effect; empty for a user's function.
    varlen: whether, in a pack whose sequences do not see each other, it computes each sequence by itself.
    copies_history: whether it may be given views of what it reads of earlier tokens.
    sees_rows: whether the bits at one token depend on which other tokens are computed with it.
    joins: whether it may be given the rows of several steps at once, and gives the bits of computing them step after
        step.
    compute: called with what the node reads, its weights, the numbers of sequences and tokens, and those steps.
    """

    key: tuple[object, ...]
    partials: int
    active: Mapping[str, object]
    compute: Callable[[Sequence[torch.Tensor | None], Loaded, Size, Steps | None], tuple[torch.Tensor, ...]]
    sees_rows: bool = True
    joins: bool = False
    varlen: bool = False
    copies_history: bool = False


def op_numerics(plan: BoundGraph, node: Node, rounded: Mapping[str, object]) -> Numerics:
    """The op's own kernel with the node's active values. `rounded` gives some sites another dtype.

    Parameters, weights and edits are those of the node as the plan runs it. They are part of the key, since the same
    choices with other weights are another computation.
    """
    node = plan.as_run(node)
    choices = {**plan.told_to(node), **plan.active(node)}
    active = {**choices, **rounded}
    at = node.op.settings(active)
    dtype, kernel = plan.dtype_of(node.name), node.op.load()

    def compute(
        tensors: Sequence[torch.Tensor | None], loaded: Loaded, _: Size, steps: Steps | None
    ) -> tuple[torch.Tensor, ...]:
        joined = {} if steps is None else {"steps": steps}

        def called(*reads: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
            out: Any = kernel(*reads, w=weights_of(loaded, node, dtype), p=node.params, at=at, **joined)
            return out if isinstance(out, tuple) else (out,)

        try:
            return edited(node, called, tensors) if node.edits else called(*tensors)
        except RefusedError as error:
            raise plan.refusal(node, error.attribute, error.reason) from None

    partials = plan.partials[node.values[0]]
    return Numerics(
        key=(dtype, node.computation, *active.items()),
        partials=partials,
        active=active,
        compute=compute,
        sees_rows=edits_see_rows(node) or node.op.sees_rows(choices, node.params),
        joins=node.op.joins(choices) and not node.edits,
        varlen=node.op.varlen(choices),
        copies_history=node.op.copies_history(choices),
    )


def weights_of(loaded: Loaded, node: Node, dtype: str) -> Weights:
    """The weights of a node as it is run; none for a node without weights, whichever segment is loaded."""
    return loaded.of(node, dtype) if node.weights else {}


def region_numerics(plan: BoundGraph, node: Node, region: Region, function: Callable[..., Any]) -> Numerics:
    """A user's function in place of the nodes of a region."""
    dtype = plan.dtype_of(node.name)

    def compute(
        tensors: Sequence[torch.Tensor | None], loaded: Loaded, size: Size, _: Steps | None
    ) -> tuple[torch.Tensor, ...]:
        weights = {
            f"{functions.short(name)}.{port}": tensor
            for name in region.nodes
            for port, tensor in loaded[name, plan.dtype_of(name)].items()
        }
        custom_node = functions.custom_node(region, plan.graph, weights, torch_dtype(dtype))
        return functions.call(function, [t for t in tensors if t is not None], custom_node, region, node, size)

    return Numerics(key=(dtype, region.call, region.nodes), partials=1, active={}, compute=compute)
