"""The training loop."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from scripts.train_quickstart.configuration import AUX_COEF, PEAK_LR, SEED, WARMUP, WEIGHT_DECAY
from scripts.train_quickstart.corpus import batches
from scripts.train_quickstart.model import balance_loss, forward

LOG_EVERY = 50


def build_optimizer(model: Qwen3MoeForCausalLM) -> torch.optim.AdamW:
    """AdamW that leaves the norm weights, which are centred on one, undecayed."""
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in params if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.95), fused=True)


def lr_scale(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to zero."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))


def train(model: Qwen3MoeForCausalLM, data: Tensor, steps: int) -> None:
    """Train in place for a fixed number of steps."""
    optimizer = build_optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_scale(step, steps))
    source = batches(data, torch.Generator().manual_seed(SEED))
    started, running = time.monotonic(), 0.0
    model.train()
    for step in range(1, steps + 1):
        loss, router_logits = forward(model, next(source))
        balance = balance_loss(router_logits)
        (loss + AUX_COEF * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running += loss.item()
        if step % LOG_EVERY == 0:
            elapsed = time.monotonic() - started
            mean = running / LOG_EVERY
            print(f"step {step}/{steps} loss {mean:.4f} balance {balance.item():.3f} {elapsed:.0f}s", flush=True)
            running = 0.0
