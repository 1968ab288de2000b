"""Digests of the files that a run read, versions, and the machine."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.provenance.data import FileDigest, Provenance
from moeparity.bisection.study import Study
from moeparity.errors import Where, display_path
from moeparity.inputs.machine import cpu_name, device_name, versions
from moeparity.plan.spec import reader

WHOLE = 1 << 30
"""Weights of up to this many bytes are read again for their digest; of larger ones only the headers are."""


def measure(of: Context) -> Provenance:
    """What this run was made from."""
    study, recipe = of.study, of.study.recipe
    tokens = reader.find_file(recipe.tokens.file, Where(study.path, recipe.tokens.line_of("file")), "token file")
    return Provenance(
        recipe=_whole(study.path),
        tokens=_whole(tokens),
        weights=tuple(_weights(study)),
        versions=tuple(versions().items()),
        system=f"{platform.system()} {platform.machine()}",
        cpu=cpu_name(),
        capability=torch.backends.cpu.get_cpu_capability(),
        device=device_name(study.model.device),
        threads=torch.get_num_threads(),
        trace=tuple(_trace(study)),
    )


def _weights(study: Study) -> Iterator[FileDigest]:
    """The weights' files and config.json; nothing if the weights are random."""
    if study.recipe.synthetic is not None:
        return
    files = sorted({entry.file for entry in study.model.weights.checkpoint.entries.values()})
    few = sum(file.stat().st_size for file in files) <= WHOLE
    for file in (study.model.folder / "config.json", *files):
        yield _whole(file) if few or file.suffix != ".safetensors" else _header(file)


def _trace(study: Study) -> Iterator[FileDigest]:
    """The files of a recorded candidate and of the baseline: the records, which have the digest of every value, and the
    tensors.
    """
    folders = [run.folder for run in (study.recorded, study.good_run) if run is not None]
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    few = sum(file.stat().st_size for file in files) <= WHOLE
    for file in files:
        yield _whole(file) if few or file.suffix != ".safetensors" else _header(file)


def _whole(path: Path) -> FileDigest:
    status = path.stat()
    return _digest(path, _contents(path, status.st_size, status.st_mtime_ns), "file")


@lru_cache(maxsize=1024)
def _contents(path: Path, size: int, changed: int) -> str:
    """The SHA-256 of a file with this size and time of change; cached, since a sweep asks for it at every point."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _header(path: Path) -> FileDigest:
    """The digest of a safetensors file's header and of the length before it."""
    with path.open("rb") as file:
        length = file.read(8)
        digest = hashlib.sha256(length + file.read(int.from_bytes(length, "little")))
    return _digest(path, digest.hexdigest(), "header")


def _digest(path: Path, sha256: str, of: str) -> FileDigest:
    return FileDigest(name=display_path(path), bytes=path.stat().st_size, sha256=sha256, of=of)


MEASURE = Measure(gives=Provenance, measure=measure)
