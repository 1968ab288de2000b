"""Fingerprints of weights as files: one for each rank that holds a part, or made of a checkpoint's own files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError, safe_open

from moeparity import paths
from moeparity.errors import WeightsError, Where
from moeparity.evidence.census.census import Census
from moeparity.evidence.census.census_files import census_of, document
from moeparity.evidence.weights.part import Part, PartKind, matrix, part
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.numerics.dtypes import torch_dtype
from moeparity.output.writing import write_tensors
from moeparity.progress import Callback, Progress

SCHEMA = "moeparity.weights-rank/2"
_HEAD, _SUMS, _CENSUS = "moeparity", "sums", "census"
_FILES = "rank-*/weights.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankWeights:
    """What one of `ranks` ranks holds. cast: the dtype that floating-point weights were rounded to before; empty where
    they were taken as they are. census: of all tensors that the program held then, None for a checkpoint.
    """

    rank: int
    ranks: int
    cast: str
    parts: tuple[Part, ...]
    census: Census | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """What all ranks of a program hold, or a checkpoint. missing: ranks of which there is no file."""

    source: str
    by_rank: tuple[RankWeights, ...]
    missing: tuple[int, ...] = ()
    checkpoint: Checkpoint | None = None


def write_weights(path: Path, weights: RankWeights) -> None:
    """One rank's fingerprint as a safetensors file. Raises MoeparityError where it can't be written."""
    parts = [
        {
            "tensor": part.tensor, "kind": part.kind, "dtype": part.dtype, "shape": part.shape, "start": part.start,
            "size": part.size, "alike": f"{part.alike:016x}", "constant": part.constant,
        }
        for part in weights.parts
    ]  # fmt: skip
    head = {"schema": SCHEMA, "rank": weights.rank, "ranks": weights.ranks, "cast": weights.cast, "parts": parts}
    tensors = {_SUMS: torch.cat([part.sums for part in weights.parts]) if parts else torch.zeros(0, dtype=torch.int64)}
    if weights.census is not None:
        head[_CENSUS], tensors[_CENSUS] = document(weights.census)
    write_tensors(path, tensors, {_HEAD: json.dumps(head, separators=(",", ":"))})


def write_rank(folder: Path, weights: RankWeights) -> Path:
    """The same at its place among those of other ranks: `FOLDER/rank-N/weights.safetensors`, which is returned.

    Each rank has a folder of its own: ranks that write at once must not tidy up after each other.
    """
    path = _place(folder, weights.rank)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WeightsError(f"{Where(path.parent)}: can't be made: {error.strerror}. Name another folder.") from None
    write_weights(path, weights)
    return path


def rank_file(folder: Path, rank: int) -> RankWeights:
    """What one rank wrote into a folder. Raises WeightsError where it wrote nothing."""
    return _read(_place(folder, rank))


def _place(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}" / "weights.safetensors"


def open_weights(path: Path, cast: str | None = None, progress: Callback | None = None) -> Weights:
    """The fingerprint in a file, those of all ranks in a folder, or that of a checkpoint, taken of its files.

    `cast` is the dtype that a checkpoint's weights are rounded to first, quantised ones after they are multiplied out;
    without it codes and scales are tensors of their own. Raises WeightsError, CheckpointError.
    """
    files = sorted(path.glob(_FILES)) if paths.is_folder(path) else []
    if files or paths.is_file(path):
        if cast is not None:
            raise WeightsError(
                f"{Where(path)}: --dtype rounds the weights of a checkpoint; this is a fingerprint. Take it anew "
                "in that dtype."
            )
        return _of_ranks(path, [_read(file) for file in files or [path]], files or [path])
    if paths.present(path) and not paths.present(path / "config.json"):
        raise WeightsError(
            f"{Where(path)}: no fingerprint of weights: expected a checkpoint folder, a rank's fingerprint, or a "
            f"folder of {_FILES}, as FOLDER/weights/at-start is of a guard that had weights=."
        )
    return _of_checkpoint(path, cast, progress)


def _of_ranks(path: Path, ranks: Sequence[RankWeights], files: Sequence[Path]) -> Weights:
    first = ranks[0]
    for rank_weights, file in zip(ranks, files, strict=True):
        if (rank_weights.ranks, rank_weights.cast) != (first.ranks, first.cast):
            raise WeightsError(
                f"{Where(file)}: of {rank_weights.ranks} ranks, rounded to {rank_weights.cast or 'nothing'}; "
                f"{Where(files[0])} is of {first.ranks}, rounded to {first.cast or 'nothing'}. "
                "Give the files of one job."
            )
    rank_ids = {rank_weights.rank for rank_weights in ranks}
    if len(rank_ids) < len(ranks):
        raise WeightsError(f"{Where(path)}: two of its files are of the same rank. Give the files of one job.")
    missing = tuple(rank for rank in range(first.ranks) if rank not in rank_ids)
    return Weights(
        source=str(Where(path)),
        by_rank=tuple(sorted(ranks, key=lambda rank_weights: rank_weights.rank)),
        missing=missing,
    )


def _of_checkpoint(folder: Path, cast: str | None, progress: Callback | None) -> Weights:
    checkpoint = Checkpoint(folder, progress)
    dtype = None if cast is None else torch_dtype(cast)
    parts = []
    names = checkpoint.stored if dtype is None else checkpoint.entries
    for done, name in enumerate(names, 1):
        tensor = checkpoint.stored_tensor(name) if dtype is None else checkpoint.tensor(name)
        parts.append(part(name, tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor))
        if progress is not None:
            progress(Progress(step="fingerprints of weights", at=name, done=done, total=len(names),
                              work=checkpoint.handed_out / 1e6, unit="MB"))  # fmt: skip
    rank_weights = RankWeights(rank=0, ranks=1, cast=cast or "", parts=tuple(parts))
    return Weights(source=str(Where(folder)), by_rank=(rank_weights,), checkpoint=checkpoint)


def _read(path: Path) -> RankWeights:
    try:
        paths.measured(path, "fingerprint of weights")
        with safe_open(str(path), framework="pt") as file:
            text = (file.metadata() or {}).get(_HEAD)
            names = file.keys() if text is not None else ()
            tensors = {name: file.get_tensor(name) for name in (_SUMS, _CENSUS) if name in names}
    except OSError as error:
        raise WeightsError(f"{Where(path)}: cannot be read: {error.strerror or error}.") from None
    except SafetensorError:
        raise WeightsError(f"{Where(path)}: no whole fingerprint of weights. Take it anew.") from None
    if text is None or _SUMS not in tensors:
        raise WeightsError(
            f"{Where(path)}: no fingerprint of weights, but another safetensors file. A checkpoint is named by its "
            "folder."
        )
    return _of_head(path, text, tensors)


def _of_head(path: Path, text: str, tensors: Mapping[str, torch.Tensor]) -> RankWeights:
    schema: object = None
    try:
        head = json.loads(text)
        schema = head["schema"]
        parts = tuple(_parts(head["parts"], tensors[_SUMS])) if schema == SCHEMA else ()
        census = census_of(head[_CENSUS], tensors[_CENSUS]) if schema == SCHEMA and _CENSUS in head else None
        weights = RankWeights(
            rank=int(head["rank"]), ranks=int(head["ranks"]), cast=str(head["cast"]), parts=parts, census=census
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise WeightsError(f"{Where(path)}: not as a fingerprint of weights is written. Take it anew.") from None
    if schema != SCHEMA:
        raise WeightsError(f"{Where(path)}: schema {schema!r}; expected {SCHEMA}.")
    return weights


def _parts(heads: Sequence[Mapping[str, Any]], sums: torch.Tensor) -> Iterator[Part]:
    """The parts of a file; raises ValueError where they do not fit its sums."""
    at = 0
    for head in heads:
        shape, start, size = (tuple(int(number) for number in head[key]) for key in ("shape", "start", "size"))
        axes = matrix(shape)
        inside = len(start) == len(size) == len(axes) and all(
            low >= 0 and width > 0 and low + width <= most for low, width, most in zip(start, size, axes, strict=True)
        )
        rows = math.prod(size[:-1])
        if not inside or sums.dtype != torch.int64 or at + rows > len(sums) or head["kind"] not in get_args(PartKind):
            raise ValueError
        yield Part(
            tensor=str(head["tensor"]), kind=head["kind"], dtype=str(head["dtype"]),
            shape=shape, start=start, size=size,
            sums=sums[at : at + rows], alike=int(head["alike"], 16), constant=bool(head["constant"]),
        )  # fmt: skip
        at += rows
    if len(sums) > at:
        raise ValueError
