"""The model, its loss and the balance of its experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from scripts.train_quickstart.configuration import HUB_CONFIG


def build_model() -> Qwen3MoeForCausalLM:
    """Create the untrained fp32 model."""
    config = Qwen3MoeConfig.from_dict({**HUB_CONFIG, "torch_dtype": "float32"})
    # At this size the eager loop over experts was the fastest implementation on CPU.
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", experts_implementation="eager")


def forward(model: Qwen3MoeForCausalLM, batch: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the mean next-byte loss and the router logits of every layer."""
    # The inner model is called because the outer one adds a balance loss pooled over layers, under which a layer
    # may stay unbalanced as long as another one makes up for it.
    out = model.model(input_ids=batch[:, :-1], output_router_logits=True, use_cache=False)
    logits = model.lm_head(out.last_hidden_state).float()
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()), out.router_logits


def expert_counts(router_logits: Tensor) -> Tensor:
    """Count how many tokens one layer's router sends to each expert."""
    chosen = router_logits.topk(HUB_CONFIG["num_experts_per_tok"], dim=-1).indices
    return chosen.flatten().bincount(minlength=HUB_CONFIG["num_experts"])


def balance_loss(router_logits: tuple[Tensor, ...]) -> Tensor:
    """Switch-style load-balance loss, averaged over layers; 1 when the experts share the tokens equally."""
    losses = []
    for logits in router_logits:
        counts = expert_counts(logits)
        probs = logits.softmax(dim=-1).mean(dim=0)
        losses.append(len(probs) * (counts / counts.sum() * probs).sum())
    return torch.stack(losses).mean()
