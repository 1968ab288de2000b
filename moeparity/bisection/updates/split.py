"""The divergence of a rollout across updates, split token by token; differences of log-probabilities on one grid."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from moeparity.bisection.updates.passes import Path

STEP = 2.0**-40
"""Log-probabilities are rounded to multiples of this, in nats: differences and their sums are then exact in fp64."""

PARTS = ("old cache", "old weights", "semantics", "numerics")
"""The parts, in the order of the path from the rollout to its trainer."""


def rounded(log_probs: Tensor) -> Tensor:
    """Log-probabilities fp64 as the nearest multiples of `STEP`; infinities and NaN stay. Values of an fp32 softmax
    below -2^-16 are multiples already.
    """
    return (log_probs / STEP).round() * STEP


class Split:
    """log P of every scored token along the path, fp64 [N] each, rounded to `STEP`.

    values: by pass of `Path`. The parts are those of `PARTS`: old cache is the rollout less the same weights on a cache
    that they have computed; old weights is that less the newest weights; semantics is that less the same with the
    trainer's semantics; numerics is that less the trainer, what differs in its schedule included.
    """

    def __init__(self, values: dict[str, Tensor]) -> None:
        self.values = values
        rollout, cache, newest, trained, trainer, on_old_cache = (
            values[name] for name in ("rollout", "recomputed", "newest", "semantics", "trainer", "newest_on_old_cache")
        )
        self.whole, self.own_weights = rollout - trainer, rollout - values["own_trainer"]
        self.parts = (rollout - cache, cache - newest, newest - trained, trained - trainer)
        # Weights first: the rows on the newest weights against the cache as it was kept, then the cache.
        self.other_order = (on_old_cache - newest, rollout - on_old_cache, *self.parts[2:])

    @classmethod
    def of(cls, log_probs: Tensor, walkers: list[object], by_lag: list[Path], lag: Tensor) -> Split:
        """Of log P fp64 [W, N] of the tokens under each of the `walkers`; `lag` int64 [N] is that of each token."""
        values = {}
        for name in (field.name for field in fields(Path)):
            rows = torch.tensor([walkers.index(getattr(path, name)) for path in by_lag])
            values[name] = rounded(log_probs.gather(0, rows[lag][None])[0])
        return cls(values)

    @property
    def finite(self) -> Tensor:
        """Which tokens have a finite log-probability in every pass, bool [N]."""
        return torch.stack(list(self.values.values())).isfinite().all(0)
