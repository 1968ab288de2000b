"""A small checkpoint, and the parameters that servers and trainers make of it over several ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from moeparity.evidence.weights.fingerprint_files import RankWeights, Weights
from moeparity.evidence.weights.weight_layout import WeightLayout
from tests.errors.base import BASE, WEIGHTS, copy, weights

Tensors = dict[str, torch.Tensor]


def program(tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """A module whose parameters have these names."""
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        owner = root
        for word in path:
            if word not in dict(owner.named_children()):
                owner.add_module(word, nn.Module())
            owner = owner.get_submodule(word)
        owner.register_parameter(last, nn.Parameter(tensor.clone(), requires_grad=False))
    return root


def served(
    tensor: tuple[int, int] = (0, 1), expert: tuple[int, int] = (0, 1), checkpoint: Tensors | None = None
) -> Tensors:
    """What a rank of vLLM has of a checkpoint (None: the base): fused, stacked, cut, 64 rows of vocabulary."""
    whole, (rank, ranks) = checkpoint or weights(), tensor
    over = ranks if expert[1] == 1 else 1
    place = rank if expert[1] == 1 else 0
    tensors = {name: value for name, value in whole.items() if "norm" in name or name.endswith("mlp.gate.weight")}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = torch.cat([whole[name], torch.zeros(32, 16, dtype=torch.bfloat16)]).chunk(ranks)[rank]
    for layer in range(2):
        at = f"model.layers.{layer}."
        q, k, v = (whole[f"{at}self_attn.{name}_proj.weight"] for name in "qkv")
        # One head of keys and values: every rank has it.
        tensors[f"{at}self_attn.qkv_proj.weight"] = torch.cat([q.chunk(ranks)[rank], k, v])
        tensors[f"{at}self_attn.o_proj.weight"] = whole[f"{at}self_attn.o_proj.weight"].chunk(ranks, 1)[rank]
        stacks: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for number in torch.arange(4).chunk(expert[1])[expert[0]].tolist():
            expert_path = f"{at}mlp.experts.{number}."
            gate, up = (whole[f"{expert_path}{name}_proj.weight"].chunk(over)[place] for name in ("gate", "up"))
            stacks[0].append(torch.cat([gate, up]))
            stacks[1].append(whole[f"{expert_path}down_proj.weight"].chunk(over, 1)[place])
        tensors[f"{at}mlp.experts.routed_experts.w13_weight"] = torch.stack(stacks[0])
        tensors[f"{at}mlp.experts.routed_experts.w2_weight"] = torch.stack(stacks[1])
    return tensors


def sglang(tensors: Tensors) -> Tensors:
    """The same parameters by SGLang's names."""
    return {name.replace("routed_experts.", ""): value for name, value in tensors.items()}


def grouped(folder: Path, *, dense: bool) -> Path:
    """A checkpoint whose two heads of keys and values serve four heads of queries; `dense`: its first layer has no
    experts.
    """
    config: dict[str, object] = {"architectures": ["Qwen3MoeForCausalLM"], "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "head_dim": 4}
    tensors = {
        name: value[:4].clone() if "self_attn" in name and "norm" in name else value
        for name, value in weights().items()
    }
    if dense:
        config |= {"mlp_only_layers": [0], "intermediate_size": 8}
        at = "model.layers.0.mlp."
        expert = {name: tensors[f"{at}experts.1.{name}_proj.weight"] for name in ("gate", "up", "down")}
        tensors = {name: value for name, value in tensors.items() if not name.startswith(at)}
        tensors |= {f"{at}{name}_proj.weight": value for name, value in expert.items()}
    copy(folder, config=config)
    save_file(tensors, folder / WEIGHTS)
    return folder


def job(
    ranks: list[Tensors],
    *,
    experts: bool = False,
    layout: str | Path = "vllm",
    checkpoint: Path = BASE,
    groups: int = 1,
) -> Weights:
    """The fingerprint of a job whose ranks have these parameters, in groups that attend apart."""
    rank_weights, attending = [], len(ranks) // groups
    for rank, tensors in enumerate(ranks):
        place = (rank, len(ranks))
        expert, attention = place if experts else (0, 1), (rank % attending, attending)
        layout_of_rank = WeightLayout(checkpoint, layout, tensor=place, expert=expert, attention=attention)
        parts = tuple(layout_of_rank.parts([program(tensors)]))
        rank_weights.append(RankWeights(rank=rank, ranks=len(ranks), cast="", parts=parts))
    return Weights(source="job", by_rank=tuple(rank_weights))
