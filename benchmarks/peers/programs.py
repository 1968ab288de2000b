"""Both programs of a case, from transformers; as a program, samples a case's tokens and writes its logits.

    python -m benchmarks.peers.programs CASE CHECKPOINT FOLDER

Everything the tools compare is one `model(input_ids, use_cache=False)` over all sequences at once. Runs in the peers'
environment: needs torch, transformers and safetensors, not moeparity.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from benchmarks.peers.cases import EAGER, SEQUENCES, SIDES, TOKENS, Case, Plant, case

NEWLINE = 10


def build(which: Case, side: str, checkpoint: Path) -> nn.Module:
    """The model of one side, with the case's plants; in the reference a router's plant has a value that does nothing.

    So both sides run the same calls where a plant is only a number, which the tools that pair calls by position need.
    """
    arguments = which.arguments if side == "candidate" else EAGER
    model: nn.Module = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16, **arguments)
    model.eval()
    for plant in which.plants:
        _plant(model, plant, planted=side == "candidate")
    return model


def forward(model: nn.Module, ids: Tensor) -> Tensor:
    """Logits [B, T, V] of the pass that every tool looks at."""
    with torch.no_grad():
        logits: Tensor = model(ids, use_cache=False).logits
    return logits


def _plant(model: nn.Module, plant: Plant, *, planted: bool) -> None:
    module: Any = model.get_submodule(plant.module)
    if plant.kind in {"router_eps", "router_scores"}:
        module.forward = types.MethodType(_router(plant, planted=planted), module)
    elif not planted:
        return
    elif plant.kind == "final_norm_eps":
        module.variance_epsilon = plant.value
    elif plant.kind == "stale_expert":
        with torch.no_grad():
            module.gate_up_proj[3] *= plant.value
    else:
        module.forward = types.MethodType(combine_in_fp32, module)


def combine_in_fp32(self: Any, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Qwen3MoeExperts.forward of transformers 5.23.0 (the eager loop) with an fp32 accumulator; [N, H]."""
    total = torch.zeros_like(hidden, dtype=torch.float32)
    with torch.no_grad():
        mask = F.one_hot(top_k_index, num_classes=self.num_experts + 1)
        mask = mask.permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    for each in hit:
        expert = each[0]
        if expert == self.num_experts:
            continue
        slot, token = torch.where(mask[expert])
        rows = hidden[token]
        gate, up = F.linear(rows, self.gate_up_proj[expert]).chunk(2, dim=-1)
        rows = self.act_fn(gate) * up
        rows = F.linear(rows, self.down_proj[expert])
        rows = rows * top_k_weights[token, slot, None]
        total.index_add_(0, token, rows.to(total.dtype))
    return total.to(hidden.dtype)


def _router(plant: Plant, *, planted: bool) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    eps = plant.value if plant.kind == "router_eps" and planted else 0.0
    dtype = torch.bfloat16 if plant.kind == "router_scores" and planted else torch.float32

    def route(self: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Qwen3MoeTopKRouter.forward of transformers 5.23.0 with the plant in it."""
        logits = F.linear(hidden.reshape(-1, self.hidden_dim), self.weight)
        scores = F.softmax(logits, dtype=torch.float32, dim=-1).to(dtype)
        top, ids = torch.topk(scores, self.top_k, dim=-1)
        top = top.to(torch.float32)
        return logits, (top / (top.sum(dim=-1, keepdim=True) + eps)).to(logits.dtype), ids

    return route


def sample(model: Any) -> Tensor:
    """int64 [SEQUENCES, TOKENS], sampled at temperature 1 without truncation after one newline."""
    torch.manual_seed(0)
    start = torch.full((SEQUENCES, 1), NEWLINE)
    sampled: Tensor = model.generate(
        start,
        attention_mask=torch.ones_like(start),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_new_tokens=TOKENS - 1,
        max_new_tokens=TOKENS - 1,
    )
    return sampled


def main() -> None:
    """Write `tokens.safetensors` and `logits.safetensors` (one tensor per side) of a case into a folder."""
    which, checkpoint, folder = case(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    models = {side: build(which, side, checkpoint) for side in SIDES}
    ids = sample(models["candidate"])
    scored = torch.ones_like(ids, dtype=torch.bool)
    scored[:, 0] = False
    save_file({"input_ids": ids, "loss_mask": scored}, folder / "tokens.safetensors")
    save_file({side: forward(model, ids) for side, model in models.items()}, folder / "logits.safetensors")


def tokens(folder: Path) -> Tensor:
    """The tokens `main` wrote, int64 [B, T]."""
    return load_file(folder / "tokens.safetensors")["input_ids"]


if __name__ == "__main__":
    main()
