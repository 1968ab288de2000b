"""AReaL's trajectories as lines, before `PPOActor` rolls them.

`logprobs`, `loss_mask` and `versions` tell of token t at index t; `prox_logp` tells there of token t + 1. Source: AReaL
4aef98d8, areal/trainer/ppo/actor.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moeparity.hooks.batch import line


def lines(data: Mapping[str, Any], step: int) -> Iterator[str]:
    """Lines of the tensors [B, T] of a batch, and of their weight versions."""
    trainer = data["prox_logp"].roll(1, -1)
    for n, attended in enumerate(data["attention_mask"].bool()):
        ids, scored, sampler, proximal = (
            column[n][attended].tolist() for column in (data["input_ids"], data["loss_mask"], data["logprobs"], trainer)
        )
        versions = data["versions"][n][attended].tolist()
        yield line(f"{step}/{n}", ids, scored, sampler, proximal, scored.index(1), step=step, versions=versions)
