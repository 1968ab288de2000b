"""An observer that counts tokens whose logits are flat over the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from moeparity.bisection.plan import Plan
from moeparity.bisection.trials import Trials
from moeparity.bisection.watch import Watch
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Name
from moeparity.metrics.tokens import CHUNK
from moeparity.plan.sides import SIDES


@dataclass(slots=True)
class FlatLogits:
    """Counts the `tokens` in `loss_mask` (bool [B, T]), and those that are `flat` for at least one of `walkers`."""

    output: str
    loss_mask: Tensor
    walkers: tuple[Name, ...] = SIDES
    tokens: int = 0
    flat: int = 0

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.output:
            return
        scored = self.loss_mask[slice(*view.wave)].clone()
        scored[:, 0] = False
        sequence, position = scored.nonzero(as_tuple=True)
        values_of = [view.tensor(walker) for walker in self.walkers]
        size = max(1, CHUNK // values_of[0].shape[-1])
        for s, t in zip(torch.split(sequence, size), torch.split(position, size), strict=True):
            self.tokens += len(s)
            self.flat += int(torch.stack([is_flat(values[s, t - 1]) for values in values_of]).any(0).sum())

    def part(self, rows: slice) -> FlatLogits:
        """What was seen of the sequences `rows`, in the form that another observer's `join` takes."""
        return self

    def join(self, part: FlatLogits, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        self.tokens, self.flat = self.tokens + part.tokens, self.flat + part.flat

    @property
    def result(self) -> FlatLogits:
        """The counts."""
        return self


def observer(plan: Plan, trials: Trials) -> FlatLogits:
    """The observer of both sides."""
    _, _, scored = plan.tokens_on_device
    return FlatLogits(plan.model.graph.scores, scored)


def is_flat(values: Tensor) -> Tensor:
    """bool [N]: whether a row of `values` ([N, V], any float dtype) spreads by less than an ulp of its largest
    magnitude.
    """
    low, high = torch.aminmax(values.double(), dim=-1)
    largest = torch.maximum(low.abs(), high.abs())
    _, exponent = torch.frexp(largest)
    ulp = torch.ldexp(torch.full_like(largest, torch.finfo(values.dtype).eps), exponent - 1)
    return (high - low < ulp) | (high == low)


FLAT: Final[Watch[FlatLogits]] = Watch("degeneracy", observer, (FlatLogits,))
