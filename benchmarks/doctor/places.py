"""Weights at another place, planted in the checkpoint that a program of transformers loads."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.doctor.models import Architecture

Rewrite = Callable[[dict[str, Tensor]], None]
_NODE = "layers[1].moe.experts"
_EXPERT = re.compile(r"(.*\.layers\.1\.mlp\.experts\.)(\d+)(\..*)")


def loaded_as(checkpoint: Path, folder: Path, rewrite: Rewrite) -> Path:
    """The checkpoint with its tensors rewritten, in a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(checkpoint, folder)
    for file in folder.glob("*.safetensors"):
        weights = load_file(file)
        rewrite(weights)
        save_file({name: weight.clone() for name, weight in weights.items()}, file, {"format": "pt"})
    return folder


def misplaced(of: Architecture, checkpoint: Path, draw: Random) -> Mapping[str, Rewrite]:
    """By the cause to be named, what the program's loader has made of the weights."""
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    fields = ("num_experts", "n_routed_experts", "num_local_experts")
    experts = next(int(config[name]) for name in fields if name in config)
    first, second = sorted(draw.sample(range(experts), 2))
    by = draw.choice((-1, 1))
    turned = f"experts one place {'before' if by > 0 else 'behind'}"
    causes: dict[str, Rewrite] = {
        "weights of layer 0 in layers[1].attention.o_proj": _of_layer_0(".self_attn.o_proj."),
        turned if of.dense else f"{turned} of {_NODE}": _from(lambda e: (e + by) % experts),
        f"experts-exchanged(expert={first}, other={second}) of {_NODE}": _from(
            lambda e: {first: second, second: first}.get(e, e)
        ),
        f"expert-of-another-expert(expert={first}, other={second}) of {_NODE}": _from(
            lambda e: second if e == first else e
        ),
    }
    return causes if of.dense else {**causes, "weights of layer 0 in layer 1": _of_layer_0("")}


def _of_layer_0(part: str) -> Rewrite:
    def rewrite(weights: dict[str, Tensor]) -> None:
        for name in list(weights):
            if f".layers.1.{part}".replace("..", ".") in name:
                weights[name] = weights[name.replace(".layers.1.", ".layers.0.")]

    return rewrite


def _from(source: Callable[[int], int]) -> Rewrite:
    """Each expert of layer 1 has the weights of another."""

    def rewrite(weights: dict[str, Tensor]) -> None:
        before = dict(weights)
        for name in before:
            match = _EXPERT.fullmatch(name)
            if match is not None:
                weights[name] = before[f"{match[1]}{source(int(match[2]))}{match[3]}"]

    return rewrite
