"""The tiny valid checkpoint and tokens that every bad input of tests/bad starts from, and how they were made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

BAD = Path(__file__).parents[1] / "bad"
BASE = BAD / "base"
WEIGHTS, TOKENS, INDEX = "model.safetensors", "tokens.safetensors", "model.safetensors.index.json"

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "norm_topk_prob": True,
    "vocab_size": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor under its hub name."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32, 16)}
    for layer in range(2):
        at = f"model.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": (16,), at + "post_attention_layernorm.weight": (16,)}
        shapes |= {f"{at}self_attn.{name}_proj.weight": (rows, 16) for name, rows in (("q", 16), ("k", 8), ("v", 8))}
        shapes |= {f"{at}self_attn.{name}_norm.weight": (8,) for name in ("q", "k")}
        shapes |= {at + "self_attn.o_proj.weight": (16, 16), at + "mlp.gate.weight": (4, 16)}
        for expert in range(4):
            expert_path = f"{at}mlp.experts.{expert}."
            shapes |= {expert_path + "gate_proj.weight": (8, 16), expert_path + "up_proj.weight": (8, 16)}
            shapes[expert_path + "down_proj.weight"] = (16, 8)
    return shapes | {"model.norm.weight": (16,), "lm_head.weight": (32, 16)}


def weights() -> dict[str, torch.Tensor]:
    """Random bf16 weights, the same each time."""
    random = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=random).to(torch.bfloat16) * 0.25 for name, shape in shapes().items()}


def make(folder: Path) -> None:
    """Write the base; `tests/bad/base` is what this made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", "utf-8")
    save_file(weights(), folder / WEIGHTS)
    ids = torch.randint(0, 32, (2, 5), generator=torch.Generator().manual_seed(1))
    save_file({"input_ids": ids, "loss_mask": torch.ones_like(ids)}, folder / TOKENS)


def copy(folder: Path, *, config: dict[str, Any] | None = None, drop: tuple[str, ...] = ()) -> Path:
    """The base in another folder, with fields of config.json changed, added, or dropped."""
    shutil.copytree(BASE, folder)
    fields = {key: value for key, value in {**CONFIG, **(config or {})}.items() if key not in drop}
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", "utf-8")
    return folder


def rewrite(folder: Path, changes: dict[str, torch.Tensor | None]) -> Path:
    """The folder's weights with tensors replaced, added or (None) dropped."""
    tensors = {**load_file(folder / WEIGHTS), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / WEIGHTS)
    return folder


def shard(folder: Path) -> Path:
    """The folder's weights in two shards with an index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    files = {name: f"model-0000{1 + ('layers.1.' in name)}-of-00002.safetensors" for name in tensors}
    for file in sorted(set(files.values())):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}, indent=1), "utf-8")
    return folder
