"""What passes saw, and what it says of a toggle."""

from __future__ import annotations

import math
from dataclasses import dataclass

from moeparity.bisection.distribution.observe import Distributions
from moeparity.bisection.envelope.observe import Band, Enveloped
from moeparity.bisection.flips.observe import Census, Margins
from moeparity.bisection.observers import Changes, Divergence, Logits, NodeRecord, Routes
from moeparity.bisection.oracle.observe import Distance, Distances, NodeDistances, Truth
from moeparity.bisection.resume.codec import Codec
from moeparity.bisection.toggles.words import Effect, Trial
from moeparity.bisection.tokens.classes import Classes
from moeparity.bisection.tokens.records import Records
from moeparity.bisection.trials import alone, restored
from moeparity.engine.lockstep import Counts
from moeparity.engine.memory import Memory
from moeparity.metrics.divergence import Error
from moeparity.metrics.interval import token_mean
from moeparity.metrics.routing import Drift, Flips
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.graph import Graph
from moeparity.plan.sides import CANDIDATE, REFERENCE
from moeparity.plan.toggles import Toggle


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the passes over a plan saw; `divergence` is None where a pass only measured further trials.

    `census` is None there too, and without routers.
    """

    divergence: Divergence | None
    truth: Truth | None
    changes: Changes
    routes: Routes
    logits: Logits
    counts: Counts
    naive_evaluations: int
    seconds: float
    records: Records | None
    classes: Classes | None
    distributions: Distributions | None
    census: Census | None
    envelope: dict[str, Enveloped] | None
    memory: Memory

    def joined(self, further: Observed) -> Observed:
        """Both together, `further` being a later pass over the same plan with other trials."""
        return Observed(
            divergence=self.divergence,
            truth=self.truth,
            changes=self.changes.joined(further.changes),
            routes=self.routes.joined(further.routes),
            logits=self.logits.joined(further.logits),
            counts=self.counts.joined(further.counts),
            naive_evaluations=self.naive_evaluations + further.naive_evaluations,
            seconds=self.seconds + further.seconds,
            records=self.records,
            classes=self.classes,
            distributions=self.distributions,
            census=self.census,
            envelope=self.envelope,
            memory=self.memory.joined(further.memory),
        )


def codec(graph: Graph) -> Codec:
    """Writes and reads what a pass saw of a graph."""
    parts = (NodeRecord, Error, Distances, NodeDistances, Distance, Flips, SequenceSums, Counts, Memory)
    observers = (Divergence, Truth, Changes, Routes, Logits, Records, Classes, Distributions)
    return Codec(
        [Observed, *observers, *parts, Census, Drift, Margins, Enveloped, Band],
        {node.name: node for node in graph.nodes},
    )


def measured(toggle: Toggle, observed: Observed) -> Effect:
    """What a toggle's two trials did."""
    trial = _trial(restored(toggle), CANDIDATE, observed)
    change = (-math.inf, math.inf)
    if trial is not None:
        with_it, without_it = observed.logits.sums(CANDIDATE), observed.logits.sums(restored(toggle))
        paired = token_mean(without_it.kl_candidate_reference - with_it.kl_candidate_reference, with_it.tokens)
        change = (paired.low, paired.high)
    return Effect(
        toggle=toggle,
        alone=_trial(alone(toggle), REFERENCE, observed),
        restored=trial,
        change=change,
        restores_all=trial is not None and not observed.changes.nodes[restored(toggle), REFERENCE],
    )


def total_kl(observed: Observed) -> float:
    """KL(candidate || reference) in nats per scored token."""
    sums = observed.logits.sums(CANDIDATE)
    return float(sums.kl_candidate_reference.sum() / sums.tokens.sum())


def _trial(name: str, base: str, observed: Observed) -> Trial | None:
    if (name, base) not in observed.changes.nodes:
        return None
    sums = observed.logits.sums(name)
    tokens = float(sums.tokens.sum())
    flips = observed.routes.total(name)
    return Trial(
        kl=float(sums.kl_candidate_reference.sum()) / tokens,
        k3=float(sums.k3.sum()) / tokens,
        flipped_routes=flips.set_flips / flips.tokens if flips else None,
        changed_nodes=len(observed.changes.nodes[name, base]),
    )
