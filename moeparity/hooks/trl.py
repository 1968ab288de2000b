"""Importing this module, before the trainer is made, makes TRL's GRPO trainer write a batch.

It wraps `GRPOTrainer._generate_and_score_completions`. The sampler's log-probabilities are there if TRL samples with
vLLM or is given a `rollout_func`; the trainer's if it computes them before the update, as it does with vLLM, and where
it trains several times on one generation. Run: TRL 1.16.0, trl/trainer/grpo_trainer.py:2324.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from moeparity.hooks.batch import MARK, dump, responses


def lines(inputs: Any, step: int, sampling: dict[str, Any]) -> Iterator[str]:
    """Lines of what the method returns: ids and masks of prompts and completions, and log-probabilities."""
    mask = inputs["completion_mask"]
    further = {
        "ref_logprobs": inputs.get("ref_per_token_logps"),
        "advantages": _by_token(inputs.get("advantages"), mask),
    }
    return responses(
        inputs["completion_ids"],
        mask,
        mask * inputs.get("tool_mask", 1),
        inputs.get("sampling_per_token_logps"),
        inputs.get("old_per_token_logps"),
        step=step,
        prompts=inputs["prompt_ids"],
        prompt_mask=inputs["prompt_mask"],
        columns={key: column for key, column in further.items() if column is not None},
        computes_pads=True,
        sampling_params=sampling or None,
    )


def _by_token(advantages: Any, mask: Any) -> Any:
    """Advantages [B], or [B, T] of trainers made of this one, for each token."""
    if advantages is None or advantages.dim() == 2:
        return advantages
    return advantages[:, None].expand(mask.shape)


def sampling(trainer: Any) -> dict[str, Any]:
    """What completions are sampled with: `generation_kwargs` stand above the trainer's own temperature, by which it
    divides its logits.
    """
    overrides = getattr(getattr(trainer, "args", None), "generation_kwargs", None) or {}
    values = {name: overrides.get(name, getattr(trainer, name, None)) for name in ("temperature", "top_p", "top_k")}
    return {name: value for name, value in values.items() if value is not None}


def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    """`_generate_and_score_completions` that writes what it returns."""

    @functools.wraps(method)
    def generate_and_score(trainer: Any, *arguments: Any, **options: Any) -> Any:
        outputs = method(trainer, *arguments, **options)
        step = int(getattr(getattr(trainer, "state", None), "global_step", 0))
        dump("trl", step, lambda: lines(outputs, step, sampling(trainer)))
        return outputs

    setattr(generate_and_score, MARK, True)
    return generate_and_score


def install() -> None:
    """Wrap the method of TRL's class, once."""
    trainer: Any = importlib.import_module("trl.trainer.grpo_trainer").GRPOTrainer
    if not hasattr(trainer._generate_and_score_completions, MARK):  # noqa: SLF001
        trainer._generate_and_score_completions = wrapped(trainer._generate_and_score_completions)  # noqa: SLF001


install()
