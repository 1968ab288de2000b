"""A census: every tensor that modules hold at one moment, where it lies, its bits, and of what it was made."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import nn

from moeparity.evidence.capture.apart import unseen_by_program
from moeparity.evidence.capture.seen import extent, problem
from moeparity.evidence.census.forms import Making
from moeparity.evidence.census.lanes import Lanes
from moeparity.evidence.census.origins import Origin, origin_of
from moeparity.evidence.census.sources import WEIGHTS, Sources
from moeparity.evidence.census.walk import HeldTensor, TensorKind, walked
from moeparity.evidence.trace.digest import row_digests

_WHOLE = 1 << 26
"""Bytes of a tensor of unknown origin up to which all are digested; of a larger one, as a KV cache is, a sample."""
_SAMPLES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tensor in a census. path, kind: as `HeldTensor` has them; others, twins: how many further paths, and further
    names. address: of its first element; storage: of its storage, 0 where none can be told. bits: a digest of its bytes
    ("" for weights and for what has none), unread: why it has none. view_of: the weight whose storage it reads. origin:
    of what it was shown to be made, None for unknown. lanes: the sums by which it is compared with that.
    """

    path: str
    kind: TensorKind
    module: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    address: int
    storage: int
    others: int = 0
    twins: tuple[str, ...] = ()
    bits: str = ""
    unread: str = ""
    view_of: str = ""
    origin: Origin | None = None
    lanes: torch.Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Census:
    """What a process held. process: host and number. entries: by path, weights among them. values: the sums of what
    the makings of origins give at this moment. graphs: captured graphs by path. unseen: what was not looked into.
    """

    process: str
    entries: Mapping[str, Entry]
    values: Mapping[Making, Lanes]
    graphs: Mapping[str, int]
    unseen: tuple[str, ...]

    @property
    def unregistered(self) -> list[Entry]:
        """What is neither a parameter nor a buffer."""
        return [entry for entry in self.entries.values() if entry.kind == "attribute"]


def census(modules: Sequence[nn.Module], since: Census | None = None) -> Census:
    """Look at every tensor that modules hold. With `since`, an earlier census of them, origins are taken over from it,
    and only of tensors that it has not are they looked for.

    No code of the modules is run, and no tensor is kept. It takes a transfer from the device for each tensor that is
    not a weight and for each weight that such a tensor was made of.
    """
    with ExitStack() as guards, torch.no_grad():
        unseen_by_program(guards)
        walk = walked(modules)
        sources = Sources(walk)
        by_storage: dict[int, list[HeldTensor]] = {}
        for each in sources.weights:
            by_storage.setdefault(_storage(each.tensor), []).append(each)
        entries: dict[str, Entry] = {}
        values: dict[Making, Lanes] = {}
        for each in walk.tensors:
            earlier = None if since is None else since.entries.get(each.path)
            entry = _entry(each, earlier, sources, by_storage)
            entries[entry.path] = entry
        needed = {making for entry in entries.values() if entry.origin for making in entry.origin.makings}
        for making in needed:
            sources.remember(making.sources)
            sums = sources.lanes(making)
            if sums is not None:
                values[making] = sums
        process = f"{platform.node()}:{os.getpid()}"
        return Census(process=process, entries=entries, values=values, graphs=walk.graphs, unseen=tuple(walk.unseen))


def _entry(
    each: HeldTensor, earlier: Entry | None, sources: Sources, by_storage: Mapping[int, list[HeldTensor]]
) -> Entry:
    tensor, unread = each.tensor, problem(each.tensor) or ""
    storage = 0 if unread else _storage(tensor)
    is_weight = each.kind in WEIGHTS and each.kind != "buffer"
    whole = "" if unread else _whole(each, by_storage.get(storage, ()))
    origin = None if unread or whole or not tensor.numel() else _origin(each, earlier, sources)
    return Entry(
        path=each.path,
        kind=each.kind,
        module=each.module,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=() if "no shape" in unread else tuple(tensor.shape),
        device=str(tensor.device),
        address=0 if unread or not storage else tensor.data_ptr(),
        storage=storage,
        others=len(each.others),
        twins=tuple(each.twins),
        bits="" if unread or is_weight or whole else _bits(tensor, has_origin=origin is not None),
        unread=unread,
        view_of=whole,
        origin=origin,
        lanes=None if origin is None else origin.lanes(tensor.detach()),
    )


def _origin(each: HeldTensor, earlier: Entry | None, sources: Sources) -> Origin | None:
    """What an earlier census says of a tensor of this path, shape and dtype; else what is shown by the tensor now."""
    same = earlier is not None and (earlier.shape, str(earlier.dtype)) == (
        tuple(each.tensor.shape), str(each.tensor.dtype).removeprefix("torch."),
    )  # fmt: skip
    return earlier.origin if same and earlier is not None else origin_of(each, sources)


def _whole(each: HeldTensor, weights: Sequence[HeldTensor]) -> str:
    """The weight whose bytes a tensor reads, the largest of several, "" for none; of a weight, a larger one, or the
    first of those that are the same memory.
    """
    first, last, _ = extent(each.tensor)
    is_weight, size = each.kind in WEIGHTS, each.tensor.numel()
    for weight in sorted(weights, key=lambda weight: -weight.tensor.numel()):
        begin, end, _ = extent(weight.tensor)
        if weight is each or (is_weight and weight.tensor.numel() < size):
            return ""
        is_same = (first, last, each.tensor.shape) == (begin, end, weight.tensor.shape)
        if first < end and begin < last and (is_same or not is_weight or weight.tensor.numel() > size):
            return weight.path
    return ""


def _storage(tensor: torch.Tensor) -> int:
    """Where the storage of a tensor lies; 0 for an empty one."""
    return tensor.untyped_storage().data_ptr()


def _bits(tensor: torch.Tensor, *, has_origin: bool) -> str:
    """A digest of all bytes, of a large tensor of unknown origin that of a sample."""
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach().flatten()
    sampled = tensor.nbytes > _WHOLE and not has_origin
    if sampled:
        flat = flat[:: max(1, flat.numel() * flat.element_size() // _SAMPLES)].contiguous()
    if not flat.numel():
        return "0" * 16
    number = int(row_digests(flat.reshape(1, -1))[0])
    return f"{number & (2**64 - 1):016x}{' sampled' if sampled else ''}"
