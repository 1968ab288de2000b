"""A checkpoint folder: config.json and safetensors files, single or sharded, mapped into memory and never copied.

Tensors are views of the mapped file, as `from_pretrained` of transformers leaves them. So their address modulo 64 is
that in the file, which changes the bits of some fp32 kernels on CPU. Those of quantised weights are made anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from moeparity import paths
from moeparity.errors import CheckpointError, Where, did_you_mean
from moeparity.inputs.weights.as_text import taken_apart, without_tower
from moeparity.inputs.weights.packed import on_grid, paired, scales_by_row, unpacked, without_scales
from moeparity.inputs.weights.quantisation import read
from moeparity.inputs.weights.source import Entry, Packed, Piece
from moeparity.plan.edits import Part, ScaleVerb
from moeparity.plan.graph import Graph
from moeparity.progress import Callback, Progress

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADAPTER = "adapter_model.safetensors"
"""The file of a LoRA adapter, as peft writes it."""
READABLE = ("BF16", "F16", "F32")
"""Dtypes of tensors that are weights as they are."""
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.pt")

_NUMBERS = re.compile(r"\d+")


class Checkpoint:
    """Reads a folder's tensors by name; `progress` is told of every file that is opened.

    entries: every tensor as a graph knows it; `stored`: as it lies there. beside: static scales of activations and
    caches, which make no weight. constant: names of matrices in which all elements are equal; None until all values
    were read.

    Raises CheckpointError for everything that is wrong with its files.
    """

    def __init__(self, folder: Path, progress: Callback | None = None) -> None:
        self.folder = folder
        if not paths.present(folder):
            raise CheckpointError(f"{Where(folder)}: no such checkpoint folder. Check the path.")
        self.config_path = folder / "config.json"
        self._files: dict[Path, Any] = {}
        self.entries: dict[str, Entry] = {}
        self.beside: tuple[str, ...] = ()
        self.handed_out = 0
        self.constant: tuple[str, ...] | None = None
        self.progress = progress
        index = folder / INDEX
        if paths.present(index):
            self._open_sharded(index)
        else:
            self._open_single()
        self.stored = self.entries = without_tower(self.entries)
        if any(entry.dtype not in READABLE for entry in self.stored.values()):
            self.entries, self.beside = paired(self.stored, read(self.config_path))
        else:
            self.entries, self.beside = without_scales(self.stored)

    @cached_property
    def formats(self) -> tuple[str, ...]:
        """The formats of its quantised weights, by name, in the order of `moeparity show formats`."""
        return tuple(sorted({entry.packed.form.name for entry in self.entries.values() if entry.packed}))

    def tensor(self, name: str) -> Any:
        """A tensor of the checkpoint. A plain one is a view of the mapped file, in the file's dtype. A quantised weight
        is multiplied out: its codes times their scales, in the dtype that its format gives the product.
        """
        entry = self.entries[name]
        if entry.packed is None:
            return self._read(name, entry).view(entry.shape)
        return unpacked(self.parts(name), entry.packed)

    def fit_to(self, graph: Graph) -> Self:
        """Give the experts that a graph takes one by one from stacks, where the files have them so; returns itself."""
        self.entries = taken_apart(self.entries, graph)
        return self

    def open_beside(self, path: Path) -> dict[str, Entry]:
        """The tensors of a further file, which become entries of the checkpoint."""
        if not paths.present(path):
            raise CheckpointError(
                f"{Where(path.parent)}: holds no {path.name}. Give the folder that peft's save_pretrained wrote."
            )
        before = self.entries
        self.entries = {}
        self._open(path, None, None)
        added, self.entries = self.entries, {**before, **self.entries}
        return added

    def rescaled(self, part: Part, scales_in: Checkpoint) -> torch.Tensor:
        """A quantised weight with other scales: what a fault makes of it. scales_in: the checkpoint with these."""
        stored, packed = self.parts(part.name), self.entries[part.name].packed
        assert packed is not None
        source_of_scales, edits = _edits_of(part)
        scales = self._source(part.name, packed, source_of_scales, scales_in)
        if scales is not packed:
            stored["scales"] = scales_in.stored_tensor(scales.tensors["scales"])
        return unpacked(stored, packed, edits)

    def _source(self, name: str, packed: Packed, source_of_scales: str | None, scales_in: Checkpoint) -> Packed:
        """The tensors of which a weight takes its scales: its own, where the other weight has no codes in such blocks,
        as in a file that leaves some layers as they are.
        """
        source = scales_in.entries[source_of_scales or name].packed
        is_alike = source is not None and (source.form, source.block) == (packed.form, packed.block)
        return source if source is not None and is_alike else packed

    def scales(self, part: Part, scales_in: Checkpoint) -> torch.Tensor | None:
        """The scales of a quantised weight, or what a fault makes of them, fp32 [.., rows, groups of columns]; None
        where it holds no codes that a GEMM multiplies, or where a fault takes its blocks for others. scales_in: the
        checkpoint that holds them.
        """
        entry = self.entries[part.name]
        if entry.packed is None or on_grid(entry.packed) is None or self.reordered(part.name):
            return None
        source_of_scales, edits = _edits_of(part)
        if any(verb == "block" for verb, _ in edits):
            return None
        source = self._source(part.name, entry.packed, source_of_scales, scales_in)
        holder: Checkpoint = self if source is entry.packed else scales_in
        return scales_by_row(holder._of_file(source.tensors["scales"]), entry.packed, entry.shape, edits)

    def reordered(self, name: str) -> bool:
        """Whether inputs that share a scale do not lie side by side (GPTQ's `desc_act`)."""
        packed = self.entries[name].packed
        if packed is None or "index" not in packed.tensors:
            return False
        index = self._of_file(packed.tensors["index"])
        return not bool((index == torch.arange(len(index)) // packed.block[0]).all())

    def input_scale(self, name: str) -> torch.Tensor | None:
        """The static scale of what a weight is multiplied with, fp32 []; None where there is none."""
        scale = f"{name.removesuffix('.weight')}.input_scale"
        return self.beside_tensor(scale).max() if scale in self.beside else None

    def beside_tensor(self, name: str) -> torch.Tensor:
        """A static scale of activations or caches, fp32."""
        scale: torch.Tensor = self._of_file(name).float()
        return scale

    def parts(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors of a quantised weight by role, as they lie in the file."""
        entry = self.entries[name]
        assert entry.packed is not None, f"{name} is no quantised weight"
        parts = {role: self.stored_tensor(tensor) for role, tensor in entry.packed.tensors.items()}
        if "shape" in parts and tuple(parts["shape"].tolist()) != entry.shape:
            raise CheckpointError(
                f"{Where(entry.file)}: {entry.packed.tensors['shape']} says {parts['shape'].tolist()}; expected "
                f"{list(entry.shape)}, as many numbers as {entry.packed.tensors['values']} holds."
            )
        return parts

    def stored_tensor(self, name: str) -> Any:
        """A tensor as it lies in the file, as a view of it."""
        return self._read(name, self.stored[name])

    def _read(self, name: str, entry: Entry) -> Any:
        tensor = self._of_file(name, entry)
        self.handed_out += tensor.nbytes
        return tensor

    def _of_file(self, name: str, entry: Entry | None = None) -> Any:
        """A tensor that is not counted as handed out: scales, beside the weight that is made with them."""
        entry = entry or self.stored[name]
        piece = entry.piece or Piece(name=name)
        tensor = self._files[entry.file].get_tensor(piece.name)
        tensor = tensor if piece.expert is None else tensor[piece.expert]
        tensor = tensor.mT if piece.transposed else tensor
        return tensor if piece.rows is None else tensor[slice(*piece.rows)]

    def require(self, name: str, needed_by: Where) -> Entry:
        """The entry of a tensor that must exist; raises CheckpointError, which names `needed_by`."""
        if name not in self.entries:
            # Suggest only names with the same numbers: another layer's or expert's tensor is nearest by spelling, but
            # not a typo.
            similar = [entry for entry in self.entries if _NUMBERS.findall(entry) == _NUMBERS.findall(name)]
            raise CheckpointError(
                f"{Where(self.folder)}: tensor {name!r} is missing; {needed_by} needs it."
                f"{did_you_mean(name, similar, cutoff=0.9)} Is the checkpoint complete, and does its model_type fit?"
            )
        return self.entries[name]

    def _open_single(self) -> None:
        # An adapter has no config.json, so it is no model; a fault may take an older one's matrices.
        path = next((path for path in (self.folder / SINGLE, self.folder / ADAPTER) if paths.present(path)), None)
        if path is not None:
            self._open(path, None, None)
            return
        pickled = next((name for name in PICKLED if paths.present(self.folder / name)), None)
        if pickled:
            raise CheckpointError(
                f"{Where(self.folder / pickled)}: pickled weights are not read, since a pickle can run code. "
                "Convert them to safetensors with save_pretrained."
            )
        raise CheckpointError(f"{Where(self.folder)}: holds neither {SINGLE} nor {INDEX}. Is this a checkpoint folder?")

    def _open_sharded(self, index: Path) -> None:
        shards = _weight_map(index)
        for count, (shard, names) in enumerate(shards.items()):
            self._report(shard, count, len(shards))
            path = self.folder / shard
            if not _lies_in(self.folder, path):
                raise CheckpointError(f"{Where(index)}: weight_map points to {shard!r}, outside the checkpoint folder.")
            if not paths.present(path):
                raise CheckpointError(f"{Where(index)}: shard {shard!r} is missing from the folder. Download it again.")
            self._open(path, names, index)

    def _report(self, shard: str, done: int, total: int) -> None:
        if self.progress is not None:
            opened = len(self.entries)
            self.progress(
                Progress(step="opening the checkpoint", at=shard, done=done, total=total, work=opened, unit="tensors")
            )

    def _open(self, path: Path, names: Iterable[str] | None, index: Path | None) -> None:
        try:
            paths.checked(path)
            file = safe_open(str(path), framework="pt")
        except OSError as error:
            raise CheckpointError(f"{Where(path)}: cannot be read: {error.strerror or error}.") from None
        except SafetensorError as error:
            raise CheckpointError(
                f"{Where(path)}: not a whole safetensors file ({_reason(path, error)}). Download it again."
            ) from None
        self._files[path] = file
        stored_names = set(file.keys())
        for name in sorted(stored_names) if names is None else names:
            if name not in stored_names:
                raise CheckpointError(
                    f"{Where(index or path)}: weight_map puts {name!r} into {path.name!r}, which lacks it."
                )
            part = file.get_slice(name)
            self.entries[name] = Entry(file=path, dtype=part.get_dtype(), shape=tuple(part.get_shape()))


def _edits_of(part: Part) -> tuple[str | None, list[tuple[ScaleVerb, float]]]:
    """Of which other weight a part has the scales (None: its own), and what else is done to them."""
    source_of_scales: str | None = None
    edits: list[tuple[ScaleVerb, float]] = []
    for verb, value in part.scales:
        if verb == "of":
            source_of_scales = str(value)
        elif verb != "checkpoint":
            edits.append((verb, float(value or 0)))
    return source_of_scales, edits


def _lies_in(folder: Path, path: Path) -> bool:
    """Whether a shard's path stays in its folder. Symbolic links may point elsewhere, as in the hub's cache."""
    try:
        is_below = path.is_symlink() or path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # no such file can be, which is another complaint
        return True
    return is_below and ".." not in path.parts[len(folder.parts) :]


def _weight_map(index: Path) -> dict[str, list[str]]:
    """Shard name -> tensor names."""
    try:
        weight_map = json.loads(paths.contents(index, "index of shards"))["weight_map"]
        shards: dict[str, list[str]] = {}
        for name, shard in weight_map.items():
            shards.setdefault(str(shard), []).append(name)
    except OSError as error:
        raise CheckpointError(f"{Where(index)}: cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise CheckpointError(
            f"{Where(index, line)}: not a safetensors index; expected JSON with a `weight_map` of tensor names to file "
            "names. Download it again."
        ) from None
    return shards


def _reason(path: Path, error: Exception) -> str:
    with path.open("rb") as file:
        if file.read(19) == b"version https://git":
            return "it is a Git LFS pointer: run `git lfs pull`"
    text = str(error).splitlines()[0].removeprefix("Error while deserializing header: ")
    return f"{path.stat().st_size} bytes: {text[:200]}"
