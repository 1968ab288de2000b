"""Importing this module makes verl write a batch: `VERL_USE_EXTERNAL_MODULES=moeparity.hooks.verl`.

verl imports it in every process before its trainers. It wraps `calculate_debug_metrics`, which the trainer calls with
both sides' log-probabilities if `actor_rollout_ref.rollout.calculate_log_probs` is true and `bypass_mode` is off.
Source: verl 0.9.1, verl/__init__.py:49, verl/trainer/ppo/ray_trainer.py:1613, verl/trainer/ppo/v1/trainer_base.py:1691.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from moeparity.hooks.batch import MARK, dump, responses

_calls = iter(range(2**62))


def lines(data: Any, step: int) -> Iterator[str]:
    """Lines of a DataProto that has `responses`, `response_mask`, `rollout_log_probs` and `old_log_probs`.

    Prompts and routes are written if it has `prompts` and `attention_mask`, and `routed_experts`.
    """
    batch = data.batch
    attended = batch["attention_mask"] if "prompts" in batch and "attention_mask" in batch else None
    width = batch["responses"].shape[1]
    temperature = getattr(data, "meta_info", {}).get("temperature")
    scored = batch["response_mask"]
    # A tool's tokens lie between scored ones and exist; what is behind the last scored one is taken for pads.
    up_to_last = scored.flip(-1).cumsum(-1).flip(-1) > 0
    return responses(
        batch["responses"],
        up_to_last if attended is None else attended[:, -width:],
        scored,
        batch["rollout_log_probs"],
        batch["old_log_probs"],
        step=step,
        prompts=None if attended is None else batch["prompts"],
        prompt_mask=None if attended is None else attended[:, :-width],
        routes=batch["routed_experts"] if "routed_experts" in batch else None,
        sampling_params=None if temperature is None else {"temperature": temperature},
    )


def wrapped(metrics: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`calculate_debug_metrics` that writes its batch first."""

    @functools.wraps(metrics)
    def calculate_debug_metrics(data: Any) -> Any:
        step = getattr(data, "meta_info", {}).get("global_steps", next(_calls))
        dump("verl", step, lambda: lines(data, step))
        return metrics(data)

    setattr(calculate_debug_metrics, MARK, True)
    return calculate_debug_metrics


def install() -> None:
    """Wrap the function in verl's module, once."""
    module: Any = importlib.import_module("verl.utils.debug.metrics")
    if not hasattr(module.calculate_debug_metrics, MARK):
        module.calculate_debug_metrics = wrapped(module.calculate_debug_metrics)


install()
