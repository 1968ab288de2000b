"""One hash of everything that decides what a pass sees; a pass kept by another run is used only if the hashes agree."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from moeparity import paths
from moeparity.bisection.study import Study
from moeparity.inputs.machine import cpu_name, device_name, matmul_precision
from moeparity.inputs.weights.source import Source
from moeparity.plan.sides import Side
from moeparity.plan.spec import reader

# Libraries that choose their kernels by environment variables.
_VARIABLES = (
    "ATEN_",
    "CUBLAS",
    "CUDA_",
    "CUDNN",
    "DNNL_",
    "GOMP_",
    "KMP_",
    "MKL",
    "NVIDIA_",
    "OMP_",
    "ONEDNN_",
    "TORCH",
)
_PROCESS = secrets.token_hex(16)
"""A token that no other process has."""


def fingerprint(study: Study) -> str:
    """64 hex digits for a study on this machine, in this environment, with this version of moeparity."""
    return joined(parts(study))


def joined(parts: Mapping[str, str]) -> str:
    """One hash of several parts."""
    return hashlib.sha256(json.dumps(sorted(parts.items())).encode()).hexdigest()


def parts(study: Study) -> dict[str, str]:
    """The parts of the fingerprint, a hash each, so that a message can say which of them changed."""
    contents = {
        "recipe": study.recipe,
        "sides": {"reference": _side(study.reference), "candidate": _side(study.candidate)},
        "oracle": None if study.oracle is None else _side(study.oracle),
        "toggles": [(t.name, t.kind, t.reference, t.candidate, t.nodes) for t in study.toggles],
        "tokens": study.tokens,
        "digests": study.digests,
        "weights": _files(study.model.weights.checkpoint, study.model.folder / "config.json"),
        "other weights": [_files(source) for _, source in sorted(study.model.weights.others.items())],
        "trace": None if study.recorded is None else _trace(study.recorded.folder),
        "baseline": None if study.good_run is None else _trace(study.good_run.folder),
        "graph": [paths.contents(path, "YAML file") for path in reader.graph_files(study.model.graph.path)],
        "machine": _machine(study.model.device),
        "source": source(),
        # What users' functions import is unknown, so no run can be known to be the same in another process.
        "functions": _PROCESS if study.functions else None,
    }
    return {name: digest(content) for name, content in contents.items()}


def digest(content: object) -> str:
    """64 hex digits of plain data, dataclasses and tensors. Raises TypeError for anything else."""
    hashed = hashlib.sha256()
    _update(hashed, content)
    return hashed.hexdigest()


def _side(side: Side) -> list[Any]:
    plans = [(phase, side.plan.at_phase(phase)) for phase in side.plan.phases]
    nodes = {
        phase: {n.name: (plan.active(n), plan.read_inputs(n), plan.as_run(n).computation) for n in plan.graph.nodes}
        for phase, plan in plans
    }
    return [side.plan.dtype, repr(side.schedule), nodes]


def _files(source: Source, *further: Path) -> dict[str, Any]:
    """Names, sizes, times and headers of the files. Reading several hundred GB would cost as much as a pass."""
    paths = {entry.file for entry in source.entries.values()}.union(further)
    return {path.name: _file(path) for path in paths}


def _trace(folder: Path) -> dict[str, Any]:
    """Names, sizes, times and headers of a trace's files; its records contain digests of all values."""
    return {str(path.relative_to(folder)): _file(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def _file(path: Path) -> tuple[str, int, int, bytes]:
    status = path.stat()
    with path.open("rb") as file:
        # The length of a safetensors header comes before it. Of config.json everything is read.
        length = 8 + int.from_bytes(file.read(8), "little") if path.suffix == ".safetensors" else status.st_size
        file.seek(0)
        return (str(path.resolve()), status.st_size, status.st_mtime_ns, file.read(length))


def _machine(device: torch.device) -> dict[str, Any]:
    return {
        "torch": [torch.__version__, torch.__config__.show(), torch.backends.cpu.get_cpu_capability()],
        "settings": [matmul_precision(), torch.are_deterministic_algorithms_enabled()],
        "device": device_name(device),
        "cpu": cpu_name(),
        "threads": [torch.get_num_threads(), os.cpu_count()],
        "variables": variables(),
    }


def variables() -> dict[str, str]:
    """The environment variables by which libraries choose their kernels."""
    return {key: value for key, value in sorted(os.environ.items()) if key.startswith(_VARIABLES)}


@cache
def source() -> str:
    """A digest of moeparity's own code and data."""
    digest = hashlib.sha256()
    for package in ("moeparity", "moeparity.graphs"):
        root = Path(str(resources.files(package)))
        for path in sorted(p for p in root.rglob("*") if p.suffix in {".py", ".yaml"}):
            digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _update(digest: Any, value: object) -> None:
    """Hash a value by its contents: kind, size, then its parts."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True)
    elif isinstance(value, torch.Tensor):
        value = [str(value.dtype), list(value.shape), _bytes(value)]
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        items: list[tuple[Any, Any]] = sorted(value.items(), key=_key)
        _parts(digest, "mapping", items)
    elif isinstance(value, set | frozenset):
        _parts(digest, "set", sorted(value, key=repr))
    elif isinstance(value, list | tuple):
        _parts(digest, "list", value)
    elif value is None or isinstance(value, bool | int | float | str | bytes | Path):
        data = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(f"{type(value).__name__} {len(data)} ".encode() + data)
    else:
        raise TypeError(f"a {type(value).__name__} has no fingerprint")


def _key(item: tuple[Any, Any]) -> str:
    return repr(item[0])


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().data)


def _parts(digest: Any, kind: str, parts: Iterable[object]) -> None:
    parts = list(parts)
    digest.update(f"{kind} {len(parts)} ".encode())
    for part in parts:
        _update(digest, part)
