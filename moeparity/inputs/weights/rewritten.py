"""The weights of a node that a fault rewrites: read part by part, possibly from other checkpoints, then changed.

A tensor gets the same address modulo 64 as the checkpoint's own, since that changes the bits of some kernels: a fault
is to change numbers, not addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from moeparity.errors import CheckpointError, Where
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.rounded_to_fp8 import through_fp8
from moeparity.inputs.weights.source import Entry, Packed
from moeparity.numerics.addresses import placed
from moeparity.numerics.dtypes import torch_dtype
from moeparity.plan.edits import Part, Verb
from moeparity.plan.graph import Node, WeightRef

Read = Callable[[Part], torch.Tensor]
"""A part before its edits -> the tensor that it is, or is a part of, with its scales as they are to be."""
Scales = Callable[[Part], torch.Tensor | None]
"""A part -> the scales of its codes, where it has any."""


def weights_of(node: Node, dtype: str, device: torch.device, read: Read) -> dict[str, torch.Tensor]:
    """The weights of a rewritten node by port, in the layout of `WeightStore.node`."""
    # All experts of a stack are parts of one tensor, which is made anew each time where it is quantised, and may have
    # the scales of another one.
    read = lru_cache(maxsize=2)(read)
    stacks: dict[str, list[WeightRef]] = {}
    for port in node.op.weights:
        if port.name in node.weights:
            stacks.setdefault(port.stack or port.name, []).append(node.weights[port.name])
    return {name: _weight(refs, dtype, device, read) for name, refs in stacks.items()}


def scales_of(node: Node, read: Scales) -> dict[str, torch.Tensor]:
    """The scales of a node's weights whose codes a GEMM can multiply, by stack and `_scales`, fp32 [.., rows, groups of
    columns]: one row below another as in `WeightStore.node`. Edits leave no codes.
    """
    # All experts of a stack are parts of one tensor.
    read = lru_cache(maxsize=1)(read)
    stacks: dict[str, list[torch.Tensor | None]] = {}
    for port in node.op.weights:
        ref = node.weights.get(port.name)
        if ref is None or (ref.stacked is not None and port.stack in stacks):
            continue
        each = [None if part.edits else read(replace(part, expert=None)) for part in ref.pieces]
        of_port = None if any(scales is None for scales in each) else _together(each, ref)
        stacks.setdefault(port.stack or port.name, []).append(of_port)
    return {
        f"{name}_scales": torch.cat([part for part in parts if part is not None], -2)
        for name, parts in stacks.items()
        if all(part is not None for part in parts)
    }


def input_scales(node: Node, read: Callable[[str], torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """The static scales of what a node's weights are multiplied with, by stack and `_input_scale`: the largest of a
    layer's experts, fp32 [], of a stack [experts]. read: the scale beside a weight of this name.
    """
    scales: dict[str, torch.Tensor] = {}
    for port in node.op.weights:
        ref, name = node.weights.get(port.name), f"{port.stack or port.name}_input_scale"
        static = [] if ref is None else [read(tensor) for tensor in ref.names]
        scales_of_file = [scale for scale in static if scale is not None]
        if ref is not None and scales_of_file and len(scales_of_file) == len(static):
            largest = torch.stack([*scales_of_file, scales.get(name, scales_of_file[0]).max()]).max()
            scales[name] = largest.expand(ref.count) if ref.each or ref.stacked else largest
    return scales


def _together(each: Sequence[torch.Tensor | None], ref: WeightRef) -> torch.Tensor:
    scales = [part for part in each if part is not None]
    if ref.stacked is not None:
        experts = [part.expert for part in ref.pieces]
        return torch.stack([of[expert] for of, expert in zip(scales, experts, strict=True)])
    return torch.stack(scales) if ref.each else scales[0]


def refuse_others(nodes: Iterable[Node], open_other: Callable[[str], Checkpoint], entries: Mapping[str, Entry]) -> None:
    """Check the other checkpoints from which faults take weights. Raises CheckpointError if a tensor is missing there,
    has another shape, or has no scales where this checkpoint's has.
    """
    for node in nodes:
        for ref in node.weights.values():
            for part in (part for part in ref.parts if part.scales_checkpoint):
                codes = entries[part.name].packed
                if codes is not None:
                    _refuse_scales(part, node, codes, open_other(part.scales_checkpoint).require(part.name, ref.where))
            others = [(each.name, folder) for each in ref.parts for folder in (each.checkpoint, each.amax) if folder]
            for name, folder in others:
                entry = open_other(folder).require(name, ref.where)
                if entry.shape != ref.stored:
                    raise CheckpointError(
                        f"{Where(entry.file)}: {name} has shape {list(entry.shape)}; at {node.name} it is to "
                        f"stand in place of one of {list(ref.stored)}. Give a checkpoint of the same model."
                    )


def _refuse_scales(part: Part, node: Node, codes: Packed, entry: Entry) -> None:
    scales = entry.packed
    if scales is None or (scales.form, scales.block) != (codes.form, codes.block):
        present = "not quantised" if scales is None else f"{scales.form.name} in blocks of {list(scales.block)}"
        raise CheckpointError(
            f"{Where(entry.file)}: {part.name} is {present}; at {node.name} its scales are to stand beside codes of "
            f"{codes.form.name} in blocks of {list(codes.block)}. Give a checkpoint of the same format."
        )


def _weight(refs: Sequence[WeightRef], dtype: str, device: torch.device, read: Read) -> torch.Tensor:
    first = refs[0]
    target = torch.float32 if first.keep_fp32 and not (first.each and first.stacked is None) else torch_dtype(dtype)
    if first.stacked is not None:
        own_weight = read(Part(name=first.names[0]))
        stack = placed(torch.stack([part_of(part, read) for part in first.pieces]), own_weight).to(device, target)
        return stack if first.outputs_first or stack.dim() < 3 else stack.transpose(1, 2)
    if first.each:
        by_port = [[part_of(part, read) for part in ref.pieces] for ref in refs]
        return torch.stack([torch.cat(rows) for rows in zip(*by_port, strict=True)]).to(device, target)
    (part,) = first.pieces
    return placed(part_of(part, read), read(Part(name=first.names[0]))).to(device, target)


def part_of(part: Part, read: Read) -> torch.Tensor:
    """A part with its edits."""
    tensor = _stored(replace(part, amax=""), read)
    for verb, number in part.edits:
        if verb == "fp8" and part.amax:
            scaled_as = _stored(Part(name=part.name, expert=part.expert, checkpoint=part.amax), read)
            tensor = through_fp8(tensor, int(number), scaled_as)
        else:
            tensor = _EDITS[verb](tensor, number)
    return tensor


def _stored(part: Part, read: Read) -> torch.Tensor:
    """A part before its edits."""
    tensor = read(replace(part, expert=None, edits=()))
    return tensor if part.expert is None else tensor[part.expert]


def _pairs(tensor: torch.Tensor, _: float) -> torch.Tensor:
    return tensor.view(*tensor.shape[:-1], -1, 2).flip(-1).flatten(-2)


def _halves(tensor: torch.Tensor, _: float) -> torch.Tensor:
    return tensor.view(*tensor.shape[:-1], 2, -1).flip(-2).flatten(-2)


def _row_halves(tensor: torch.Tensor, _: float) -> torch.Tensor:
    return torch.cat(tensor.chunk(2)[::-1])


_EDITS: Mapping[Verb, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "times": lambda tensor, number: tensor * number,
    "filled": torch.full_like,
    "transposed": lambda tensor, _: tensor.mT.contiguous().view(tensor.shape),
    "fp8": lambda tensor, block: through_fp8(tensor, int(block)),
    "halves": _halves,
    "row_halves": _row_halves,
    "pairs": _pairs,
}
