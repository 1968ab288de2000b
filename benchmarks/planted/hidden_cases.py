"""Hidden cases: which patch, in which module of which checkpoint. Free of moeparity."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.planted import checkpoints
from benchmarks.planted.patches import PATCHES, ROOT, Patch

FAMILIES = ("qwen3_moe", "mixtral", "qwen2_moe")
LAYERS, SEQUENCES, TOKENS = 2, 32, 24
NORMS = {
    "attention.norm": "input_layernorm",
    "moe.norm": "post_attention_layernorm",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
}
LINEARS = {f"attention.{name}_proj": f"self_attn.{name}_proj" for name in "qkvo"}
MODULES = {
    "rope": "self_attn",
    "attend": "self_attn",
    "router": "mlp.gate",
    "experts": "mlp.experts",
    "shared": "mlp.shared_expert",
}


@dataclass(frozen=True, slots=True)
class Hidden:
    """One case: a patch, the module it is in, and the node at which moeparity's graph has that; None: a clean pair."""

    number: int
    family: str
    patch: Patch | None
    module: str
    node: str


def case(number: int) -> Hidden:
    """Every patch in turn, at places and families drawn from a seed, and a clean pair in fifteen."""
    if number % 15 == 14:
        return Hidden(number, FAMILIES[number // 15 % 3], None, "", "")
    return _placed(number, PATCHES[(number - number // 15) % len(PATCHES)])


def _placed(number: int, patch: Patch) -> Hidden:
    rng = random.Random(f"hidden {number}")  # noqa: S311 - a reproducible draw
    family, layer = rng.choice(patch.families), rng.randrange(LAYERS)
    if patch.site == "head":
        return Hidden(number, family, patch, "lm_head", "lm_head")
    if patch.site in {"norm", "linear"}:
        places = dict(NORMS if patch.site == "norm" else LINEARS)
        if family != "qwen3_moe":
            places = {node: module for node, module in places.items() if module.rpartition(".")[2] not in NORM_OF_HEADS}
        choice = rng.choice([*places, "norm"] if patch.site == "norm" else list(places))
        if choice == "norm":
            return Hidden(number, family, patch, "model.norm", "norm")
        return Hidden(number, family, patch, f"model.layers.{layer}.{places[choice]}", f"layers[{layer}].{choice}")
    module = f"model.layers.{layer}.{MODULES[patch.site]}"
    return Hidden(number, family, patch, module, f"layers[{layer}].{ROOT[patch.site]}")


NORM_OF_HEADS = frozenset({"q_norm", "k_norm"})


def write(case: Hidden, folder: Path) -> None:
    """The checkpoint, and random tokens."""
    checkpoints.write(folder / "checkpoint", case.family, seed=case.number, layers=LAYERS, dtype="bfloat16", damped=0.5)
    generator = torch.Generator().manual_seed(case.number)
    ids = torch.randint(0, checkpoints.FAMILIES[case.family]["vocab_size"], (SEQUENCES, TOKENS), generator=generator)
    save_file({"input_ids": ids}, folder / "tokens.safetensors")
