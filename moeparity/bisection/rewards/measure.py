"""Keeps the difference of scores of every pair on both sides, and makes losses of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import softplus

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.rewards.data import Rewards
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trials
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.view import NodeView
from moeparity.metrics.interval import token_mean
from moeparity.ops.preference import CHOSEN
from moeparity.plan.sides import SIDES


@dataclass(slots=True)
class Margins(SectionObserver):
    """values: fp64 [2, B], on the CPU: by side and chosen sequence its score minus that of the rejected one."""

    output: str
    values: Tensor

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name == self.output:
            for place, side in enumerate(SIDES):
                # Zeros stand everywhere else.
                self.values[place, slice(*view.wave)] = view.tensor(side)[..., CHOSEN].double().sum(-1).cpu()

    def part(self, rows: slice) -> Any:
        """What was seen of the sequences `rows`, in the form that another observer's `join` takes."""
        return self.values[:, rows]

    def join(self, part: Any, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        self.values[:, rows] = part

    @property
    def result(self) -> Tensor:
        """The values."""
        return self.values


def observer(study: Study, trials: Trials) -> Margins | None:
    """The observer of both sides; None for a language model."""
    graph = study.model.graph
    values = torch.zeros(2, len(study.tokens.input_ids), dtype=torch.float64)
    return Margins(graph.scores, values) if graph.pairs else None


MARGINS: Final[Watch[Tensor]] = Watch("rewards", observer)


def measure(of: Context) -> Rewards | None:
    """The losses; None for a language model."""
    margins = of.observed.of_watch(MARGINS)
    if margins is None:
        return None
    first = of.study.first_occurrences
    chosen = of.study.tokens.loss_mask.any(1) & (first == torch.arange(len(first)))
    return rewards(*margins[:, chosen.cpu()])


def rewards(reference: Tensor, candidate: Tensor) -> Rewards:
    """The losses of pairs whose scores differ by so much on each side; fp64 [pairs] each."""
    ours, theirs = softplus(-reference), softplus(-candidate)
    once = torch.ones_like(ours)
    return Rewards(
        pairs=len(ours),
        reference=token_mean(ours, once),
        candidate=token_mean(theirs, once),
        change=token_mean(theirs - ours, once),
        reference_accuracy=float((reference > 0).double().mean()),
        candidate_accuracy=float((candidate > 0).double().mean()),
        turned=int((reference.sign() != candidate.sign()).sum()),
        largest=float((theirs - ours).abs().max()),
        tied=int(((reference == 0) | (candidate == 0)).sum()),
    )


MEASURE = Measure(gives=Rewards, measure=measure, watch=MARGINS)
