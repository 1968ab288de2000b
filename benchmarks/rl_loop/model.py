"""The trainer's model: a tiny Qwen3-MoE of transformers in fp32, its log-probabilities, and routes replayed in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, Qwen3MoeConfig, Qwen3MoeForCausalLM

from benchmarks.rl_loop import task

TEMPERATURE = 0.7
LAYERS = 2
CONFIG: Mapping[str, Any] = {
    "vocab_size": task.VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "intermediate_size": 128,
    "norm_topk_prob": True,
    "max_position_embeddings": 64,
}
WARM_UP, WARM_BATCH, WARM_RATE = 50, 64, 2e-3
"""Steps, prompts a step and learning rate of the supervised training from which every reinforcement begins."""


def fresh(seed: int) -> Qwen3MoeForCausalLM:
    """A model with random weights."""
    torch.manual_seed(seed)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**CONFIG))
    model.train(mode=False)
    return model


def warm(seed: int) -> Qwen3MoeForCausalLM:
    """A model that has seen some right answers: where a reinforcement begins."""
    model = fresh(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=WARM_RATE)
    for step in range(WARM_UP):
        prompts = task.prompts(WARM_BATCH, torch.Generator().manual_seed(seed * 1_000_003 + step))
        ids = torch.cat([prompts, task.answers(prompts)], 1)
        loss = -log_probs(model, ids).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return model


def distribution(model: Qwen3MoeForCausalLM, ids: Tensor) -> Tensor:
    """Log-probabilities [B, DIGITS, V] of each completion token of ids [B, PROMPT + DIGITS], after the temperature."""
    logits: Tensor = model(ids[:, :-1], use_cache=False).logits[:, task.PROMPT - 1 :]
    return (logits / TEMPERATURE).log_softmax(-1)


def log_probs(model: Qwen3MoeForCausalLM, ids: Tensor) -> Tensor:
    """Log-probabilities [B, DIGITS] of the completions in ids."""
    return of_completions(distribution(model, ids), ids)


def of_completions(of: Tensor, ids: Tensor) -> Tensor:
    """Of log-probabilities [B, DIGITS, V] those of the completions in ids [B, PROMPT + DIGITS]."""
    return of.gather(2, ids[:, task.PROMPT :, None])[:, :, 0]


@torch.no_grad()
def decoded(
    model: Qwen3MoeForCausalLM, prompts: Tensor, noise: Tensor | None, header_by: Qwen3MoeForCausalLM | None = None
) -> tuple[Tensor, Tensor]:
    """Completions [B, DIGITS], token after token with a cache, and the logits [B, DIGITS, V] that they come from: the
    largest log-probability, with Gumbel `noise` [B, DIGITS, V] on top of it a sample; None: greedily. header_by: whose
    keys and values the prompts' header has; None: the model's.
    """
    cache, ids, tokens, logits = DynamicCache(), prompts, [], []
    if header_by is not None:
        header_by(prompts[:, : len(task.HEADER)], past_key_values=cache, use_cache=True)
        ids = prompts[:, len(task.HEADER) :]
    for place in range(task.DIGITS):
        logits.append(model(ids, past_key_values=cache, use_cache=True).logits[:, -1])
        scores = (logits[-1] / TEMPERATURE).log_softmax(-1)
        ids = (scores if noise is None else scores + noise[:, place]).argmax(-1, keepdim=True)
        tokens.append(ids)
    return torch.cat(tokens, 1), torch.stack(logits, 1)


@contextmanager
def routed(model: Qwen3MoeForCausalLM, replayed: Sequence[Tensor] | None) -> Iterator[list[Tensor]]:
    """A list to which each router adds the expert ids [B * T, K] of its own choice, layer by layer. replayed: ids that
    it takes instead, with its own weights for them.
    """
    chosen: list[Tensor] = []

    def of(router: nn.Module, inputs: object, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
        logits, _, ids = output
        chosen.append(ids)
        if replayed is None:
            return output
        ids = replayed[len(chosen) - 1]
        weights = logits.softmax(-1, dtype=torch.float).gather(1, ids)
        return logits, (weights / weights.sum(-1, keepdim=True)).to(logits.dtype), ids

    hooks = [layer.mlp.gate.register_forward_hook(of) for layer in model.model.layers]
    try:
        yield chosen
    finally:
        for hook in hooks:
            hook.remove()
