"""The sampler: transformers, or moeparity's forward under a setting's profile, with samples that are its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from benchmarks.rl_loop import task
from benchmarks.rl_loop.model import LAYERS, TEMPERATURE, decoded, of_completions
from benchmarks.rl_loop.settings import Setting
from moeparity.engine.forward import forward
from moeparity.inputs.model import open_model

PASSES = 2 * task.DIGITS
"""At most; each settles one token more, unless other tokens of a batch change a token's bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Prompts with what was sampled, ids [B, PROMPT + DIGITS]; the record [B, DIGITS], fp32; and of each layer the
    expert ids [B * (T - 1), K] of the tokens that a profile computed.
    """

    ids: Tensor
    record: Tensor
    routes: Sequence[Tensor] = ()


def by_transformers(
    setting: Setting, model: Qwen3MoeForCausalLM, prompts: Tensor, noise: Tensor, header_by: Qwen3MoeForCausalLM | None
) -> Rollouts:
    """Completions as the model decodes them, which is the setting's sampler where it has no profile."""
    tokens, logits = decoded(model, prompts, noise, header_by)
    ids = torch.cat([prompts, tokens], 1)
    recorded = logits if setting.raw else logits / TEMPERATURE
    return Rollouts(ids=ids, record=of_completions(recorded.log_softmax(-1), ids))


def by_profile(setting: Setting, folder: Path, guess: Tensor, noise: Tensor) -> Rollouts:
    """Completions drawn from the distributions that the setting's profile computes on the weights in `folder`.

    guess: ids [B, PROMPT + DIGITS], prompts with any completions. noise: Gumbel's, [B, DIGITS, V]. Token t is the
    argmax of log-probabilities and noise, computed on all tokens before it. The profile computes all tokens of the
    guess at once, and whatever it would have drawn otherwise is put in, until nothing changes. So tokens and record
    come from one pass.
    """
    opened, prompts, ids = open_model(folder, device="cpu", residency="resident"), guess[:, : task.PROMPT], guess
    for _ in range(PASSES):
        values = forward(
            opened,
            ids[:, :-1],
            profile=setting.profile,
            dtype="fp32",
            settings=setting.all_choices,
            save=["log_probs"],
            memory_limit=float("inf"),
        )
        processed = values["log_probs"][:, task.PROMPT - 1 :].float()
        tokens = (processed + noise).argmax(-1)
        if tokens.equal(ids[:, task.PROMPT :]):
            break
        ids = torch.cat([prompts, tokens], 1)
    else:
        raise RuntimeError(f"after {PASSES} passes the sampler's tokens still change what it computes before them")
    routes = [values[f"layers.{layer}.router.ids"] for layer in range(LAYERS)]
    return Rollouts(ids=ids, record=of_completions(processed, ids), routes=routes)
