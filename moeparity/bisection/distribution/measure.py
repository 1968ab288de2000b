"""Compares the candidate's whole distribution with the reference's at every scored token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.distribution.data import Distribution
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trials
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.view import NodeView
from moeparity.metrics.distributions import vocabulary_metrics
from moeparity.metrics.exact import Exact
from moeparity.metrics.tokens import scored_parts
from moeparity.plan.sides import CANDIDATE, REFERENCE


@dataclass(slots=True)
class Distributions(SectionObserver):
    """Sums over scored tokens with finite values on both sides, by the definitions in `metrics.distributions`.

    Reported log-probabilities are treated as logits, so that every distribution adds up to 1.

    sums: Jensen-Shannon divergence in nats, total variation, top-10 Jaccard, rank change. max_tv: the largest total
    variation. tokens: how many were measured.
    """

    output: str
    input_ids: Tensor
    loss_mask: Tensor
    sums: list[Exact] = field(default_factory=lambda: [Exact()] * 4)
    max_tv: float = 0.0
    tokens: int = 0

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.output:
            return
        rows = slice(*view.wave)
        reference, candidate = view.tensor(REFERENCE), view.tensor(CANDIDATE)
        for s, t in scored_parts(self.loss_mask[rows], reference.shape[-1]):
            x, y = reference[s, t - 1], candidate[s, t - 1]
            finite = (x.isfinite() & y.isfinite()).all(-1)
            metrics = vocabulary_metrics(x[finite], y[finite], self.input_ids[rows][s, t][finite]).cpu()
            self.sums = [total + further for total, further in zip(self.sums, metrics.sum(-1).tolist(), strict=True)]
            self.tokens += metrics.shape[-1]
            if metrics.numel():
                self.max_tv = max(self.max_tv, float(metrics[1].max()))

    def join(self, part: Distributions, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        self.sums = [total + further for total, further in zip(self.sums, part.sums, strict=True)]
        self.max_tv, self.tokens = max(self.max_tv, part.max_tv), self.tokens + part.tokens


def observer(study: Study, trials: Trials) -> Distributions | None:
    """The observer of both sides; None if pairs are scored, which have no vocabulary."""
    if study.model.graph.pairs:
        return None
    ids, _, scored = study.outcomes_on_device
    return Distributions(study.model.graph.scores, ids, scored)


DISTRIBUTIONS: Final[Watch[Distributions]] = Watch("distribution", observer, (Distributions,))


def measure(of: Context) -> Distribution | None:
    """The means; None if no token has finite values on both sides."""
    sums = of.observed.of_watch(DISTRIBUTIONS)
    return _distribution(sums) if sums is not None and sums.tokens else None


def _distribution(sums: Distributions) -> Distribution:
    jsd, tv, jaccard, rank = (total / sums.tokens for total in sums.sums)
    return Distribution(jsd=jsd, tv=tv, max_tv=sums.max_tv, top10_jaccard=jaccard, rank_change=rank)


MEASURE = Measure(gives=Distribution, measure=measure, watch=DISTRIBUTIONS)
