"""Small models of several shapes, trained alike on bytes of Python's standard library, and written as checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from scripts.train_quickstart.configuration import AUX_COEF, SEED
from scripts.train_quickstart.corpus import Corpus, batches
from scripts.train_quickstart.training import build_optimizer, lr_scale

STEPS, LENGTH, WINDOWS = 200, 128, 64
COMMON: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's shape: its family, whether queries and keys are normed (`qk_norm`), and how many of which experts.

    seeds: how many are trained; dense ones are cheap. Every token meets as many weights of MLPs in each shape: 6
    experts of 48, 2 of 144, or one MLP of 288.
    """

    name: str
    model_type: str
    qk_norm: bool
    seeds: int = 2
    experts: int = 0
    top_k: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)

    def folder(self, seed: int) -> str:
        """The name of the folder that holds the model of this shape and seed."""
        return f"{self.name}-{seed}".replace(", ", "-").replace(" ", "-")


SHAPES = (
    Shape(
        name="qwen3_moe, 6 of 24",
        model_type="qwen3_moe",
        qk_norm=True,
        experts=24,
        top_k=6,
        config={
            "num_experts": 24,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
            "intermediate_size": 288,
        },
    ),
    Shape(
        name="mixtral, 6 of 24",
        model_type="mixtral",
        qk_norm=False,
        experts=24,
        top_k=6,
        config={"num_local_experts": 24, "num_experts_per_tok": 6, "intermediate_size": 48},
    ),
    Shape(
        name="mixtral, 2 of 8",
        model_type="mixtral",
        qk_norm=False,
        experts=8,
        top_k=2,
        config={"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 144},
    ),
    Shape(name="qwen3, dense", model_type="qwen3", qk_norm=True, seeds=4, config={"intermediate_size": 288}),
    Shape(name="llama, dense", model_type="llama", qk_norm=False, seeds=4, config={"intermediate_size": 288}),
)
"""The first two differ in the norm of queries and keys alone, as the last two do; the second and the third in their
experts.
"""


def trained(shape: Shape, corpus: Corpus, folder: Path, seed: int, steps: int = STEPS) -> None:
    """Train a model of this shape, and write its weights in bf16 into `folder`; with one seed all shapes see the same
    bytes.
    """
    torch.manual_seed(SEED + seed)
    config = AutoConfig.for_model(shape.model_type, **COMMON, **shape.config)
    experts = {"experts_implementation": "eager"} if shape.experts else {}
    model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation="sdpa", **experts
    )
    optimizer = build_optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_scale(step, steps))
    for batch in islice(batches(corpus.train, torch.Generator().manual_seed(SEED + seed)), steps):
        loss, balance = _losses(model, shape, batch[:, : LENGTH + 1])
        torch.autograd.backward(loss + AUX_COEF * balance)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.to(torch.bfloat16).save_pretrained(folder)


@torch.no_grad()
def held_out_loss(folder: Path, corpus: Corpus) -> float:
    """The loss of a written model on `WINDOWS` windows of bytes that it was not trained on, in nats per byte."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    starts = torch.arange(WINDOWS) * ((len(corpus.held_out_source) - LENGTH) // WINDOWS)
    batch = corpus.held_out_source[starts[:, None] + torch.arange(LENGTH + 1)].long()
    logits = model(batch[:, :-1], use_cache=False).logits.float()
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).item()


def _losses(model: Any, shape: Shape, batch: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of the next byte, and how unequally the experts share the tokens: 1 where they do equally."""
    routed = {"output_router_logits": True} if shape.experts else {}
    out = model.model(input_ids=batch[:, :-1], use_cache=False, **routed)
    logits = model.lm_head(out.last_hidden_state).float()
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    balances = [_balance(router, shape.top_k) for router in out.router_logits] if shape.experts else []
    return loss, torch.stack(balances).mean() if balances else torch.zeros(())


def _balance(logits: Tensor, top_k: int) -> Tensor:
    """Switch's load-balance loss of one layer; logits: [tokens, experts]."""
    experts = logits.shape[-1]
    chosen = logits.topk(top_k, dim=-1).indices.flatten().bincount(minlength=experts)
    return experts * (chosen / chosen.sum() * logits.softmax(-1).mean(0)).sum()
