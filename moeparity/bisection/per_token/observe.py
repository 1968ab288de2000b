"""An observer that keeps the candidate's k3, KL and delta at every token, and both sides' log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import torch
from torch import Tensor

from moeparity.bisection.observers import seen_metrics
from moeparity.bisection.plan import Plan
from moeparity.bisection.trials import Trials
from moeparity.bisection.watch import Watch
from moeparity.engine.view import NodeView
from moeparity.plan.sides import CANDIDATE, REFERENCE

_VALUES = 5
"""The number of values kept for each token."""


@dataclass(slots=True)
class Tokens:
    """Metrics of each token, as `TokenMetrics` defines them.

    values: fp32 [5, B, T] on the CPU: k3, KL(candidate || reference), delta, log P of the token on the reference and on
        the candidate; 0 where no token is scored.
    """

    output: str
    reference: str
    candidate: str
    input_ids: Tensor
    loss_mask: Tensor
    sampled_from: Literal["candidate", "reference"]
    values: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.values = torch.zeros(_VALUES, *self.input_ids.shape)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.output:
            return
        rows = slice(*view.wave)
        tokens = self.input_ids[rows], self.loss_mask[rows]
        metrics = seen_metrics(view, self.reference, self.candidate, *tokens, self.sampled_from)
        sides = (
            (metrics.scorer, metrics.sampler) if self.sampled_from == "candidate" else (metrics.sampler, metrics.scorer)
        )
        values = (metrics.k3, metrics.kl_candidate_reference, metrics.delta, *sides)
        self.values[:, rows] = torch.stack(values).float()

    def part(self, rows: slice) -> Tensor:
        """What was seen of the sequences `rows`, in the form that another observer's `join` takes."""
        return self.values[:, rows]

    def join(self, part: Tensor, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        self.values[:, rows] = part

    @property
    def result(self) -> Tensor:
        """The values."""
        return self.values


def observer(plan: Plan, trials: Trials) -> Tokens:
    """The observer of both sides."""
    ids, _, scored = plan.tokens_on_device
    return Tokens(
        output=plan.model.graph.scores,
        reference=REFERENCE,
        candidate=CANDIDATE,
        input_ids=ids,
        loss_mask=scored,
        sampled_from=plan.recipe.tokens.sampler,
    )


def bytes_per_token(plan: Plan) -> int:
    """How many bytes the observer keeps for each token."""
    return _VALUES * torch.float32.itemsize


TOKEN_VALUES: Final[Watch[Tensor]] = Watch("per_token", observer, bytes_per_token=bytes_per_token)
