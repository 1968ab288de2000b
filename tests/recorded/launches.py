"""Launches of engines' kernels with what a GPU wrote, in one safetensors file: no code is loaded with them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

Argument = torch.Tensor | int | float


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A launch: the kernel's PTX, its shape and arguments, and the arrays that the GPU changed, by their argument."""

    name: str
    text: str
    kernel: str
    shape: Mapping[str, Any]
    """`grid`, `block`, `cluster`, `shared` as `moeparity.ptx.Module.launch` takes them."""
    args: Sequence[Argument]
    written: Mapping[int, torch.Tensor]


def write(file: Path, launches: Iterable[Kept]) -> None:
    """All of them; the metadata says what is no tensor."""
    tensors: dict[str, torch.Tensor] = {}
    facts = []
    for number, launch in enumerate(launches):
        octets = zlib.compress(launch.text.encode(), 9)
        tensors[f"{number}/text"] = torch.frombuffer(bytearray(octets), dtype=torch.uint8)
        arrays = {place: x for place, x in enumerate(launch.args) if isinstance(x, torch.Tensor)}
        tensors |= {f"{number}/args/{place}": x.contiguous().clone() for place, x in arrays.items()}
        tensors |= {f"{number}/written/{place}": x.contiguous().clone() for place, x in launch.written.items()}
        numbers = [None if isinstance(x, torch.Tensor) else x for x in launch.args]
        facts.append({"name": launch.name, "kernel": launch.kernel, "shape": launch.shape, "args": numbers})
    save_file(tensors, file, {"launches": json.dumps(facts)})


def read(file: Path) -> Iterator[Kept]:
    """What `write` wrote."""
    with safe_open(file, "pt") as tensors:
        keys = list(tensors.keys())
        for number, facts in enumerate(json.loads(tensors.metadata()["launches"])):
            args = [
                tensors.get_tensor(f"{number}/args/{place}") if x is None else x
                for place, x in enumerate(facts["args"])
            ]
            start = f"{number}/written/"
            yield Kept(
                name=facts["name"],
                text=zlib.decompress(tensors.get_tensor(f"{number}/text").numpy().tobytes()).decode(),
                kernel=facts["kernel"],
                shape=facts["shape"],
                args=args,
                written={
                    int(key.removeprefix(start)): tensors.get_tensor(key) for key in keys if key.startswith(start)
                },
            )
