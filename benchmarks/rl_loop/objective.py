"""GRPO's objective, and what it makes of a record that is not the trainer's."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.rl_loop.settings import Objective
from moeparity.metrics.quantities import VERL_THRESHOLD, beyond, truncated

CLIP = 0.2


def advantages(rewards: Tensor, group: int) -> Tensor:
    """Of rewards [B], groups of neighbours: less the group's mean, over its standard deviation; [B]."""
    grouped = rewards.view(-1, group)
    spread = grouped.std(1, keepdim=True) + 1e-4
    return ((grouped - grouped.mean(1, keepdim=True)) / spread).flatten()


def weights(objective: Objective, delta: Tensor) -> Tensor:
    """The weight of each token, of delta = log P_trainer - log P_record: 1, or that of TIS or of MIS."""
    if objective == "tis":
        return truncated(delta)
    if objective == "mis":
        return delta.exp() * (1 - beyond(delta, VERL_THRESHOLD))
    return torch.ones_like(delta)


def loss(objective: Objective, current: Tensor, record: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, and of each token whether the clip leaves it without a gradient; bool [B, T].

    current: log-probabilities [B, T] of the policy that is updated; record: the sampler's; advantage [B].
    """
    recomputed = current.detach()
    old = record if objective == "recorded" else recomputed
    ratio, gain = (current - old).exp(), advantage[:, None]
    surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
    clipped = torch.where(gain > 0, ratio > 1 + CLIP, (ratio < 1 - CLIP) & (gain < 0))
    weight = weights(objective, (recomputed - record).double()).to(current.dtype)
    return -(weight * surrogate).mean(), clipped
