"""What is degenerate about a run: its weights, its tokens, and logits that are flat over the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.degeneracy.data import Degeneracy
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trials
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.view import NodeView
from moeparity.engine.walker import WalkerName
from moeparity.metrics.tokens import scored_parts
from moeparity.plan.sides import SIDES


@dataclass(slots=True)
class FlatLogits(SectionObserver):
    """Counts the `tokens` in `loss_mask` (bool [B, T]), and those that are `flat` for at least one of `walkers`."""

    output: str
    loss_mask: Tensor
    walkers: tuple[WalkerName, ...] = SIDES
    tokens: int = 0
    flat: int = 0

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.output:
            return
        values_of = [view.tensor(walker) for walker in self.walkers]
        for s, t in scored_parts(self.loss_mask[slice(*view.wave)], values_of[0].shape[-1]):
            self.tokens += len(s)
            self.flat += int(torch.stack([is_flat(values[s, t - 1]) for values in values_of]).any(0).sum())

    def join(self, part: FlatLogits, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        self.tokens, self.flat = self.tokens + part.tokens, self.flat + part.flat


def observer(study: Study, trials: Trials) -> FlatLogits:
    """The observer of both sides."""
    return flat_logits(study, SIDES)


def flat_logits(study: Study, walkers: tuple[WalkerName, ...]) -> FlatLogits:
    """An observer of these walkers; it counts no pairs, since equal scores are no fault (`rewards` has them)."""
    _, _, scored = study.outcomes_on_device
    mask = torch.zeros_like(scored) if study.model.graph.pairs else scored
    return FlatLogits(study.model.graph.scores, mask, walkers)


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


def measure(of: Context) -> Degeneracy:
    """The degeneracy of weights, tokens and logits."""
    logits = of.observed.of_watch(FLAT)
    assert logits is not None, "it looks at every pass"
    return degeneracy(of.study, logits)


def degeneracy(study: Study, logits: FlatLogits) -> Degeneracy:
    """The degeneracy of a study's weights and tokens, and of the logits seen in the pass."""
    tokens = study.tokens
    # The report says that synthetic weights are synthetic, so nobody takes them for a trained model's.
    constant_weights = () if study.recipe.synthetic is not None else study.model.constant
    return Degeneracy(
        constant_weights=constant_weights,
        scored_tokens=logits.tokens,
        flat=logits.flat,
        sequences=len(tokens.input_ids),
        distinct=len(set(study.first_occurrences.tolist())),
        constant_sequences=tokens.constant_sequences,
    )


MEASURE = Measure(gives=Degeneracy, measure=measure, watch=FLAT)
