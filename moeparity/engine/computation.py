"""What computes the values of a node: the op's own kernel with its active choices, or a user's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from moeparity.engine import functions
from moeparity.engine.carried import Carried
from moeparity.engine.edits import edited, edits_see_rows, resets_states
from moeparity.inputs.weights.loaded import Loaded, Weights, asks_for
from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.joined_steps import Steps
from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.text import Text
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node
from moeparity.plan.region import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInputs:
    """What a computation is called with.

    tensors: what the node reads; None in place of what it does not read. loaded: its segment's weights. size: the
    numbers of sequences and tokens. steps: those whose rows are joined. carried: the states that the call takes over
    from earlier steps. text: the tokens before each row.
    """

    tensors: Sequence[torch.Tensor | None]
    loaded: Loaded
    size: tuple[int, int]
    steps: Steps | None = None
    carried: Carried | None = None
    text: Text | None = None


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
    resets: whether a sequence that begins does so without the state that another one left.
    reads_text: whether it is told the tokens before each row.
    compute: gives the outputs, and after them the states that `carried` asks for.
    """

    key: tuple[object, ...]
    partials: int
    active: Mapping[str, object]
    compute: Callable[[CallInputs], tuple[torch.Tensor, ...]]
    sees_rows: bool = True
    joins: bool = False
    varlen: bool = False
    copies_history: bool = False
    resets: bool = True
    reads_text: bool = False


def op_numerics(plan: Plan, node: Node, rounded: Mapping[str, object]) -> Numerics:
    """The op's own kernel with the node's active values. `rounded` gives some sites another dtype.

    Parameters, weights and edits are those of the node as the plan runs it. They are part of the key, since the same
    choices with other weights are another computation.
    """
    node = plan.as_run(node)
    choices = {**plan.told_to(node), **plan.active(node)}
    active = {**choices, **rounded}
    at = node.op.settings(active)
    dtype, kernel, asks = plan.dtype_of(node.name), node.op.load(), asks_for(node, active)

    def compute(call_inputs: CallInputs) -> tuple[torch.Tensor, ...]:
        carried = call_inputs.carried
        further: dict[str, Any] = {
            name: value
            for name, value in (("steps", call_inputs.steps), ("text", call_inputs.text))
            if value is not None
        }
        if carried is not None:
            further |= {"state": carried.state(at), "ends": tuple(carried.ends)}
        states: tuple[torch.Tensor, ...] = ()

        def called(*reads: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
            nonlocal states
            weights = weights_of(call_inputs.loaded, node, dtype, asks)
            out: Any = kernel(*reads, w=weights, p=node.params, at=at, **further)
            ports = out if isinstance(out, tuple) else (out,)
            states = ports[len(node.outputs) :] if carried is not None else ()
            return ports if carried is None else ports[: len(node.outputs)]

        try:
            return (edited(node, called, call_inputs.tensors) if node.edits else called(*call_inputs.tensors)) + states
        except RefusedError as error:
            raise plan.refusal(node, error.attribute, error.reason) from None

    partials = plan.partials[node.values[0]]
    return Numerics(
        key=(dtype, node.computation, *active.items()),
        partials=partials,
        active=active,
        compute=compute,
        sees_rows=edits_see_rows(node) or node.op.tokens.sees_rows(choices, node.params),
        joins=node.op.tokens.joins(choices) and not node.edits,
        varlen=node.op.tokens.varlen(choices),
        copies_history=node.op.tokens.copies_history(choices),
        resets=resets_states(node),
        reads_text=node.op.tokens.reads_text(choices),
    )


def weights_of(loaded: Loaded, node: Node, dtype: str, beside: tuple[str, ...]) -> Weights:
    """The weights of a node as it is run, with what of `loaded.BESIDE` is asked for; none for a node without weights,
    whichever segment is loaded.
    """
    return loaded.of(node, dtype, beside) if node.weights or beside else {}


def region_numerics(plan: Plan, node: Node, region: Region, function: Callable[..., Any]) -> Numerics:
    """A user's function in place of the nodes of a region."""
    dtype = plan.dtype_of(node.name)

    def compute(call_inputs: CallInputs) -> tuple[torch.Tensor, ...]:
        weights = {
            f"{functions.short(name)}.{port}": tensor
            for name in region.nodes
            for port, tensor in call_inputs.loaded[name, plan.dtype_of(name)].items()
        }
        custom_node = functions.custom_node(region, plan.graph, weights, torch_dtype(dtype))
        tensors = [tensor for tensor in call_inputs.tensors if tensor is not None]
        return functions.call(function, tensors, custom_node, region, node, call_inputs.size)

    return Numerics(key=(dtype, region.call, region.nodes), partials=1, active={}, compute=compute)
