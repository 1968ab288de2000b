"""How the weights of a live program lie: which checkpoint they are of, by which rules, on which of how many ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import nn

from moeparity import paths
from moeparity.documents.checked import read, shipped
from moeparity.errors import SpecError, WeightsError, Where, did_you_mean, display_path, listed
from moeparity.evidence.census.census import Census, census
from moeparity.evidence.weights.fingerprint_files import RankWeights, rank_file, write_rank
from moeparity.evidence.weights.part import Part, PartKind, Shape, part
from moeparity.evidence.weights.segments import Placing, Segment
from moeparity.inputs.weights.checkpoint import INDEX, SINGLE, Checkpoint
from moeparity.numerics.dtypes import torch_dtype
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from moeparity.plan.spec.layout_schema import LayoutFile, WeightRule

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

DTYPES = ("bf16", "fp16", "fp32")
"""What weights may be rounded to before their sums are taken."""

_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What DDP, torch.compile, FSDP and checkpointing put into names."""


class WeightLayout:
    """How a program's parameters hold the tensors of a checkpoint.

    checkpoint: its folder, of which names, shapes and config.json are read, and no weight; without it every parameter
    goes by its own name. layout: a shipped layout's name, or a path to a file (`kind: layout`) with `weights:`. tensor,
    expert: which of how many ranks this is, where parameters are cut without being DTensors; attention: which of those
    that share one sequence's attention (None: as `tensor`). dtype: floating-point
    weights are taken as rounded to it (`bf16`, `fp16`, `fp32`).

    Raises SpecError, CheckpointError, WeightsError.
    """

    def __init__(
        self,
        checkpoint: str | Path | None = None,
        layout: str | Path | None = None,
        *,
        tensor: tuple[int, int] = (0, 1),
        expert: tuple[int, int] = (0, 1),
        attention: tuple[int, int] | None = None,
        dtype: str | None = None,
    ) -> None:
        self.ranks = {"tensor": tensor, "expert": expert}
        placed = {**self.ranks, "attention": attention or tensor}
        for name, (rank, ranks) in placed.items():
            if not 0 <= rank < ranks:
                raise WeightsError(
                    f"{name}=({rank}, {ranks}): expected a rank and how many there are: 0 <= rank < ranks."
                )
        if dtype not in (None, *DTYPES):
            raise WeightsError(f"dtype={dtype!r}: expected one of {listed(DTYPES)}.{did_you_mean(str(dtype), DTYPES)}")
        self.dtype = dtype
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self._cast = None if dtype is None else torch_dtype(dtype)
        self._rules: Sequence[WeightRule] = () if layout is None else _rules(layout)
        shapes, fields = ({}, {}) if checkpoint is None else _stored(Path(checkpoint))
        if self._rules and not shapes:
            raise WeightsError(
                "layout: its rules name tensors of a checkpoint. Give checkpoint= too; of it only names, shapes and "
                "config.json are read."
            )
        self._census: Census | None = None
        self._placing = Placing(shapes=shapes, fields=fields, ranks=placed)

    def parts(self, modules: Sequence[nn.Module]) -> list[Part]:
        """What the parameters and buffers of modules hold, adapters among them. One transfer for each from its device.

        Raises WeightsError where a rule does not fit.
        """
        return [
            own_part
            for name, tensor, kind in self._all_parameters(modules)
            for own_part in self._parts_of(name, tensor, kind)
        ]

    def _all_parameters(self, modules: Sequence[nn.Module]) -> Iterator[tuple[str, torch.Tensor, PartKind]]:
        """Of several modules, such as the stages of a pipeline, names begin with their number, unless they are those of
        a checkpoint.
        """
        for place, module in enumerate(modules):
            head = f"{place}." if len(modules) > 1 and not self._placing.shapes else ""
            yield from ((head + name, tensor, kind) for name, tensor, kind in _parameters(module))

    def write(
        self,
        folder: str | Path,
        modules: Sequence[nn.Module],
        rank: int = 0,
        ranks: int = 1,
        since: str | Path | None = None,
    ) -> Path:
        """Write what this rank of so many holds, for `moeparity weights`: `FOLDER/rank-N/weights.safetensors`, and
        return where that is. It has a census of all tensors that the modules hold, which looks for those again that
        were made of weights in the last one: of this layout, or in the folder `since`, as after a restart.
        """
        earlier = self._census if since is None else rank_file(Path(since), rank).census
        self._census = census(modules, earlier)
        parts = tuple(self.parts(modules))
        own_weights = RankWeights(rank=rank, ranks=ranks, cast=self.dtype or "", parts=parts, census=self._census)
        return write_rank(Path(folder), own_weights)

    def _parts_of(self, name: str, tensor: torch.Tensor, kind: PartKind) -> Iterator[Part]:
        local, offset, shape = _local(tensor)
        if self._cast is not None and local.is_floating_point():
            local = local.to(self._cast)
        for rule in self._rules:
            flipped = rule.transposed and local.dim() > 1
            segments = self._placing.segments(rule, name, _flipped(shape) if flipped else shape)
            if segments is not None:
                values = local.transpose(-1, -2) if flipped else local
                begin = _flipped(offset) if flipped else offset
                yield from (own_part for segment in segments for own_part in self._cut(segment, values, begin, kind))
                return
        stored = self._placing.shapes.get(name, shape)
        if stored != shape:
            raise WeightsError(
                f"{name}: its shape is {list(shape)}, the checkpoint's {list(stored)}. Say in a layout how it is cut."
            )
        if 0 not in local.shape:
            yield part(name, local, shape=shape, start=_start(offset), kind=kind)

    def _cut(self, segment: Segment, values: torch.Tensor, offset: Shape, kind: PartKind) -> Iterator[Part]:
        """The part of a segment that lies in the local values, which begin at `offset` of the parameter."""
        if segment.expert is not None:
            place = segment.expert - offset[0]
            if not 0 <= place < values.shape[0]:
                return
            values, offset = values[place], offset[1:]
        start, slices = [], []
        for first, width, at, begin, length in zip(
            segment.start, segment.size, segment.at, offset, values.shape, strict=True
        ):
            low, high = max(at, begin), min(at + width, begin + length)
            if low >= high:
                return
            start.append(first + low - at)
            slices.append(slice(low - begin, high - begin))
        shape = self._placing.shapes[segment.tensor]
        yield part(segment.tensor, values[tuple(slices)], shape=shape, start=_start(tuple(start)), kind=kind)


def own_name(name: str) -> str:
    """A parameter's name without what wrappers put into it."""
    return ".".join(word for word in name.split(".") if word not in _WRAPPERS)


def _stored(folder: Path) -> tuple[Mapping[str, Shape], Mapping[str, object]]:
    """Names and shapes of a checkpoint's tensors, of a folder without weights those that its config.json implies; and
    the configuration's fields.
    """
    config = Config(folder / "config.json")
    if paths.present(folder / INDEX) or paths.present(folder / SINGLE):
        shapes = {name: entry.shape for name, entry in Checkpoint(folder).stored.items()}
    else:
        refs = (ref for node in expand(config).nodes for ref in node.weights.values())
        shapes = {name: ref.stored for ref in refs for name in ref.names}
    fields = {name: config.get(name) for name in (*config.names, "num_experts", "num_key_value_heads")}
    return shapes, fields


def _rules(layout: str | Path) -> Sequence[WeightRule]:
    text = str(layout)
    layouts = shipped("layouts")
    path = Path(text) if "/" in text or text.endswith(".yaml") else layouts.get(text)
    if path is None:
        raise SpecError(
            f"layout {text!r} is not shipped; expected one of {listed(layouts)}, or a path with `/` or `.yaml`."
            f"{did_you_mean(text, layouts)}"
        )
    if not paths.present(path):
        raise SpecError(f"layout {text!r}: there is no file {display_path(path)}. Check the path.")
    rules = read(path, LayoutFile).weights
    if not rules:
        raise SpecError(f"{Where(path)}: it says nothing of weights. Add `weights:` (docs/weights.md).")
    return rules


def _parameters(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, PartKind]]:
    """Parameters and buffers, also those that have two names, under both."""
    computed = {
        f"{path}.{name}" if path else name
        for path, owner in module.named_modules(remove_duplicate=False)
        for name in owner._non_persistent_buffers_set  # noqa: SLF001
    }
    for name, tensor in module.named_parameters(remove_duplicate=False):
        yield own_name(name), tensor, "parameter"
    for name, buffer in module.named_buffers(remove_duplicate=False):
        yield own_name(name), buffer, "computed" if name in computed else "buffer"


def is_dtensor(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is one; its module, which takes as long to import as torch, is there where any is."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _local(tensor: torch.Tensor) -> tuple[torch.Tensor, Shape, Shape]:
    """What this rank holds of a tensor, where that begins, and the shape of the whole."""
    if not is_dtensor(tensor):
        return tensor.detach(), (0,) * tensor.dim(), tuple(tensor.shape)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local().detach(), tuple(offset), tuple(tensor.shape)


def _flipped(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2])


def _start(offset: Shape) -> Shape:
    return offset if len(offset) > 1 else (*(offset or (0,)), 0)
