"""What a rank holds of the model: a digest of each parameter and buffer, and which ranks must have the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from moeparity.evidence.trace.digest import row_digests
from moeparity.evidence.weights.weight_layout import is_dtensor
from moeparity.ranks.differing_fields import Records, ranks_in_words

WHOLE = "whole"
"""The part of a tensor that every rank holds in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDigest:
    """One tensor of a rank. part: which part of the whole tensor it is. Ranks with the same part must have the same
    bits, ranks with different parts different ones; "" if nobody declared it. constant: all elements are one number.
    """

    shape: tuple[int, ...]
    dtype: str
    bits: str
    part: str
    constant: bool


def parameter_digests(
    modules: Sequence[nn.Module], rank: int, *, sharded: Sequence[str] = (), replicated: Sequence[str] = ()
) -> dict[str, TensorDigest]:
    """Every parameter and buffer of the modules by name, adapters included, with the part that this rank holds.

    sharded, replicated: globs of names of which each rank has its own part, or all. A DTensor says so itself, and so
    does a parameter with Megatron's `tensor_model_parallel`. Takes one transfer from the device.
    """
    named_tensors = list(_tensors(modules))
    local = [tensor.to_local() if is_dtensor(tensor) else tensor for _, tensor in named_tensors]
    sums = [row_digests(tensor.detach().reshape(1, -1))[0] for tensor in local]
    constants = [bool((flat := tensor.detach().reshape(-1)).numel() < 2 or (flat == flat[0]).all()) for tensor in local]
    numbers = torch.stack([total.cpu() for total in sums]).tolist() if sums else []
    return {
        name: TensorDigest(
            shape=tuple(own_tensor.shape),
            dtype=str(own_tensor.dtype).removeprefix("torch."),
            bits=f"{number & (2**64 - 1):016x}",
            part=_part(name, tensor, rank, sharded, replicated),
            constant=constant,
        )
        for (name, tensor), own_tensor, number, constant in zip(named_tensors, local, numbers, constants, strict=True)
    }


def bits_of(tensors: Mapping[str, TensorDigest]) -> dict[str, str]:
    """The digests as fields of a record that all ranks can read."""
    return {
        name: f"{tensor.bits} {tensor.dtype}{list(tensor.shape)}|{tensor.part}|{'constant' if tensor.constant else ''}"
        for name, tensor in tensors.items()
    }


def changed(before: Mapping[str, TensorDigest], after: Mapping[str, TensorDigest]) -> list[str]:
    """Names of tensors whose bits have changed, or that were added or removed."""
    return [name for name in dict.fromkeys((*before, *after)) if _bits(before, name) != _bits(after, name)]


def misplaced(records: Records) -> str | None:
    """What is wrong with the ranks' digests, in words: different parts with equal bits (unless all elements are one
    number), or the same part with different bits. None if nothing is.
    """
    for name in dict.fromkeys(name for record in records.values() for name in record):
        parts: dict[str, dict[str, list[int]]] = {}
        for rank, record in sorted(records.items()):
            bits, part, constant = record[name].split("|") if name in record else ("absent", WHOLE, "")
            if part and not constant:
                parts.setdefault(part, {}).setdefault(bits, []).append(rank)
        words = _unequal(name, parts) or _equal(name, parts)
        if words is not None:
            return words
    return None


def _unequal(name: str, parts: Mapping[str, Mapping[str, list[int]]]) -> str | None:
    for part, by_bits in parts.items():
        if len(by_bits) > 1:
            holders = ", ".join(f"{ranks_in_words(ranks)} {bits}" for bits, ranks in by_bits.items())
            holding = "every rank holds all of it" if part == WHOLE else f"they hold the same part, {part}"
            return f"weights.{name}: {holders}; {holding}"
    return None


def _equal(name: str, parts: Mapping[str, Mapping[str, list[int]]]) -> str | None:
    owners: dict[str, list[list[int]]] = {}
    for by_bits in parts.values():
        for bits, ranks in by_bits.items():
            owners.setdefault(bits, []).append(ranks)
    for bits, holders in owners.items():
        if len(holders) > 1:
            everyone = ranks_in_words(rank for rank_group in holders for rank in rank_group)
            return (
                f"weights.{name}: {everyone} have the same bits {bits.split()[0]}, and should hold different parts. The"
                " same shard was loaded twice, or it is no shard"
            )
    return None


def _tensors(modules: Sequence[nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    for place, module in enumerate(modules):
        head = f"{place}." if len(modules) > 1 else ""
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            yield f"{head}{name}", tensor


def _part(name: str, tensor: torch.Tensor, rank: int, sharded: Sequence[str], replicated: Sequence[str]) -> str:
    if any(fnmatchcase(name, pattern) for pattern in sharded):
        return f"rank {rank}"
    if any(fnmatchcase(name, pattern) for pattern in replicated):
        return WHOLE
    if is_dtensor(tensor):
        coordinate = tensor.device_mesh.get_coordinate() or ()
        places = zip(tensor.placements, coordinate, strict=False)
        part = " ".join(f"{placement}@{at}" for placement, at in places if not placement.is_replicate())
        return part or WHOLE
    if getattr(tensor, "tensor_model_parallel", False):
        return f"rank {rank}"
    return ""


def _bits(tensors: Mapping[str, TensorDigest], name: str) -> str | None:
    return tensors[name].bits if name in tensors else None
