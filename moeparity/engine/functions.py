"""Users' functions in place of kernels: what they are told, and what they may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from moeparity.errors import SpecError
from moeparity.plan.graph import Graph, Node
from moeparity.plan.region import Region
from moeparity.user_code import CAUGHT, error_line

PROBABLE = 0.5
"""A rounded log-probability, or one whose sum lacks a part, may lie a little above 0. What is above this is a logit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomNode:
    """What a user's function is told beside its inputs.

    name, layer: the closing node of the region it replaces, and its layer (None outside the layers).
    inputs: names of the values it is given, in the order they are given.
    weights: `node.port` -> tensor on the run's device, in `dtype`; experts come as the stacks `experts.gate_up`
        [E, 2I, H], gate rows first (gpt-oss: alternating), and `experts.down` [E, H, I], and biases as
        `experts.gate_up_bias` [E, 2I] and `experts.down_bias` [E, H].
    params: `node` -> its parameters.
    config: the fields of config.json.
    """

    name: str
    layer: int | None
    inputs: tuple[str, ...]
    weights: Mapping[str, torch.Tensor]
    params: Mapping[str, Mapping[str, Any]]
    config: Mapping[str, Any]
    dtype: torch.dtype


def custom_node(region: Region, graph: Graph, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> CustomNode:
    """What the function of a region is told; `weights` are those of all its nodes, by `node.port`."""
    nodes = {node.name: node for node in graph.nodes if node.name in region.nodes}
    closing = nodes[region.nodes[-1]]
    return CustomNode(
        name=closing.name,
        layer=closing.layer,
        inputs=region.inputs,
        weights=weights,
        params={short(name): node.params for name, node in nodes.items()},
        config=graph.config,
        dtype=dtype,
    )


def short(node: str) -> str:
    """`layers[0].moe.experts` -> `experts`."""
    return node.rpartition(".")[2]


def call(
    function: Callable[..., Any],
    inputs: list[torch.Tensor],
    node: CustomNode,
    region: Region,
    replaced: Node,
    size: tuple[int, int],
) -> tuple[torch.Tensor, ...]:
    """Run a user's function and check what it returns, `size` sequences and tokens.

    It is given copies of its inputs, which others read too: Megatron-LM's cross entropy writes into its logits.
    Raises SpecError if it raises, if it returns something else than expected, and if it has written into a weight.
    """
    function_there = f"{region.where}: impl {region.call} at {node.name}"
    versions = _versions(node.weights)
    try:
        out = function(*(value.clone() for value in inputs), node=node)
    except CAUGHT as error:
        raise SpecError(f"{function_there} raised {error_line(error, __file__)}.") from error
    for port, version in _versions(node.weights).items():
        if version != versions[port]:
            raise SpecError(f"{function_there} wrote into the weight {port}, which others read. Write into a copy.")
    values = out if isinstance(out, tuple) else (out,)
    if len(values) != len(replaced.outputs) or not all(isinstance(value, torch.Tensor) for value in values):
        kinds = ", ".join(type(value).__name__ for value in values)
        raise SpecError(
            f"{function_there} returned {kinds}; expected {len(replaced.outputs)} tensor(s), as {replaced.op.name}."
        )
    values = tuple(_plain(value, function_there) for value in values)
    device = inputs[-1].device
    for value in values:
        rows = value.movedim(replaced.op.tokens.axis, 1) if value.dim() > 2 else value
        if rows.shape[:2] != size or value.device != device:
            raise SpecError(
                f"{function_there} returned {list(value.shape)} on {value.device}; expected "
                f"[{size[0]}, {size[1]}, ...] on {device}, as its inputs."
            )
    if replaced.op.role.reports:
        _refuse_no_log_probs(values[0], size, node.config.get("vocab_size"), function_there)
    return values


def _versions(weights: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """How often each weight was written into, as torch counts it; of those made in inference mode it doesn't."""
    return {port: weight._version for port, weight in weights.items() if not weight.is_inference()}  # noqa: SLF001


def _plain(value: torch.Tensor, function_there: str) -> torch.Tensor:
    """The tensor without its subclass. Raises SpecError for a subclass that holds its values in other tensors."""
    if is_traceable_wrapper_subclass(value):
        raise SpecError(
            f"{function_there} returned {type(value).__name__}, which holds its values in other tensors. Return a "
            "plain tensor, as `.to_local()` or `.dequantize()` give it."
        )
    return value.as_subclass(torch.Tensor)


def _refuse_no_log_probs(
    value: torch.Tensor, size: tuple[int, int], vocabulary: int | None, function_there: str
) -> None:
    """Raises SpecError for values that cannot be the log-probabilities of all tokens of the vocabulary."""
    expected = "log-probabilities of the whole vocabulary are expected, in a floating dtype of 16 bits or more"
    if (
        not value.is_floating_point()
        or value.element_size() == 1
        or value.dim() != 3
        or vocabulary not in {None, value.shape[-1]}
    ):
        raise SpecError(
            f"{function_there} returned {value.dtype} {list(value.shape)}; {expected}: "
            f"[{size[0]}, {size[1]}, {vocabulary or 'V'}]."
        )
    greatest = value.max().item()
    if greatest > PROBABLE:
        raise SpecError(
            f"{function_there} returned values up to {greatest:.3g}, as logits have; {expected}, and none is above 0."
        )


def refuse_other_shapes(
    node: Node, regions: Mapping[Any, Region], values: Mapping[Any, Sequence[torch.Tensor]]
) -> None:
    """Raises SpecError if a user's function returned another shape than the op that it replaces has in other walkers.

    A shadow that cannot read the other's values has a region and no values.
    """
    expected_ports = next((ports for walker, ports in values.items() if walker not in regions), None)
    for walker, region in regions.items():
        for value, expected in zip(values.get(walker, ()), expected_ports or (), strict=False):
            shapes = [x.movedim(node.op.tokens.axis, 1).shape[2:] if x.dim() > 2 else () for x in (value, expected)]
            if shapes[0] != shapes[1] or value.is_floating_point() != expected.is_floating_point():
                raise SpecError(
                    f"{region.where}: impl {region.call} at {node.name} returned {value.dtype} {list(value.shape)}; "
                    f"op {node.op.name} on the other side gives {expected.dtype} {list(expected.shape)}."
                )
