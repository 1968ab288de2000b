"""Whether routes make a spike: its draw is run again with the reference's experts forced, for one token or for all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Final, Literal

import torch
from torch import Tensor

from moeparity.bisection.arrival.measure import arrival_draws
from moeparity.bisection.observed import Observed
from moeparity.bisection.observers import seen_metrics
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.shares.search import MixtureCounts
from moeparity.bisection.spikes.observe import SPIKES, DrawValues, pairs, spikes
from moeparity.bisection.study import Study
from moeparity.bisection.trials import TrialKey, walker
from moeparity.bisection.watch import Search
from moeparity.engine.routes import IDS, Forced, Recorded, replayed_plan, tables
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker, WalkerName
from moeparity.errors import SpecError
from moeparity.metrics.replay import NO_ROUTE
from moeparity.plan.graph import Graph
from moeparity.plan.sides import Side
from moeparity.progress import Callback

MOST: Final = 256
"""How many spikes are tried, the highest first."""
ONE, OWN, ALL = "one layer", "own routes", "all routes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One spike of a draw, and its delta with the reference's experts forced, in nats; NaN where that was not run.

    first_flip: for this token in the one layer where its route first differs. own_routes: for this token in all layers
    where it differs; NaN if none of the tokens tried together differs in two. all_routes: for all tokens, everywhere.
    """

    draw: int
    sequence: int
    column: int
    first_flip: float = math.nan
    own_routes: float = math.nan
    all_routes: float = math.nan


@dataclass(slots=True)
class _Experts:
    """Keeps the experts that some walkers' routers choose: by walker and value, one part for each wave."""

    walkers: Sequence[WalkerName]
    parts: dict[tuple[WalkerName, str], list[Tensor]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.op.role.routes:
            for name in self.walkers:
                self.parts.setdefault((name, view.node.values[0]), []).append(view.tensor(name).clone())

    def of(self, name: WalkerName, graph: Graph) -> Tensor:
        """The experts of one walker, int64 [B, T, L, K]."""
        values = [node.values[0] for node in graph.nodes if node.op.role.routes]
        return torch.stack([torch.cat(self.parts[name, value]) for value in values], 2)


@dataclass(slots=True)
class _Deltas:
    """Keeps delta of every token, fp64 [B, T], of some walkers against the reference of their draw."""

    output: str
    against: dict[WalkerName, WalkerName]
    input_ids: Tensor
    loss_mask: Tensor
    sampled_from: Literal["candidate", "reference"]
    parts: dict[WalkerName, list[Tensor]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.output:
            return
        rows = slice(*view.wave)
        for name, reference in self.against.items():
            tokens = self.input_ids[rows], self.loss_mask[rows]
            metrics = seen_metrics(view, reference, name, *tokens, self.sampled_from)
            self.parts.setdefault(name, []).append(metrics.delta)


def reachable(drawn: DrawValues, draw: int, sequence: int, column: int) -> bool:
    """Whether a route differs at this token's position, the one before it, or at an earlier one of its sequence."""
    return bool(drawn.flips[draw, :, sequence, :column].any())


def search(
    study: Study, observed: Observed, progress: Callback | None, store: PieceStore | None
) -> Sequence[Tried] | None:
    """The highest spikes that a route can reach, tried; None where no routes can be forced."""
    drawn = observed.of_watch(SPIKES)
    if drawn is None or not drawn.flips.shape[1] or not _may_force(study):
        return None
    worst = _worst(drawn, study.recipe.spikes.above if study.recipe.spikes else math.inf)
    of_draws = pairs(observed.keys("arrival"))
    of_spikes = {draw: sorted(group, key=_place) for draw, group in groupby(worst, key=attrgetter("draw"))}
    references = {of_draws[draw][0] for draw in of_spikes}
    always = [walker(study, name, side_of(study, name)) for name in sorted(references, key=str)]
    experts = _Experts([walk.name for walk in always])
    if always:
        study.passes(progress).run(always, [experts])
    trials: dict[tuple[int, str, int], Walker] = {}
    for draw, tried in of_spikes.items():
        reference, candidate = of_draws[draw]
        ids = experts.of(reference, study.model.graph)
        for (rung, rank), forced in _forced(study, drawn, ids, tried, reference):
            key = (draw, rung, rank)
            trials[key] = replace(walker(study, key, side_of(study, candidate)), routes=forced)
    against = {key: of_draws[key[0]][0] for key in trials}
    deltas = _run(study, always, trials, against, progress)
    return tuple(_tried(spike, rank, deltas) for group in of_spikes.values() for spike, rank in _ranked(group))


def expected_forced(study: Study) -> MixtureCounts:
    """How many trials with forced routes may be run beyond the first pass: none without a spike that a route reaches,
    at most one for each draw and two for each spike.
    """
    routes = any(node.op.role.routes for node in study.model.graph.nodes)
    if study.recipe.spikes is None or not routes or not _may_force(study):
        return MixtureCounts(fewest=0, most=0)
    return MixtureCounts(fewest=0, most=study.recipe.spikes.draws + 2 * MOST)


def _may_force(study: Study) -> bool:
    try:
        replayed_plan(study.candidate.plan, study.reference.plan)
    except SpecError:
        return False
    return True


def side_of(study: Study, name: WalkerName) -> Side:
    """The side of a draw's walker."""
    if isinstance(name, TrialKey):
        return arrival_draws(study.sides[name.of], name.draw)[-1]
    return study.sides[name]


def _worst(drawn: DrawValues, above: float) -> list[Tried]:
    """The highest spikes that a route can reach, at most `MOST`, in the order of their draws."""
    delta = drawn.values[0]
    places = (drawn.counts & spikes(delta, above)).nonzero().tolist()
    places.sort(key=lambda place: -abs(float(delta[tuple(place)])))
    within = [Tried(draw=d, sequence=s, column=t) for d, s, t in places if reachable(drawn, d, s, t)]
    return sorted(within[:MOST], key=attrgetter("draw"))


def _place(spike: Tried) -> tuple[int, int]:
    return spike.sequence, spike.column


def _ranked(group: Sequence[Tried]) -> Iterator[tuple[Tried, int]]:
    """Each spike of a draw, with its rank within its sequence: those of one rank are tried together, since sequences do
    not see each other.
    """
    for _, of_sequence in groupby(group, key=attrgetter("sequence")):
        yield from ((spike, rank) for rank, spike in enumerate(of_sequence))


def _forced(
    study: Study, drawn: DrawValues, ids: Tensor, group: Sequence[Tried], reference: WalkerName
) -> Iterator[tuple[tuple[str, int], Forced | Recorded]]:
    """What is forced in the trials of one draw, by rung and rank."""
    graph = study.model.graph
    for rank in sorted({rank for _, rank in _ranked(group)}):
        in_one_layer, in_all = torch.full_like(ids, NO_ROUTE), torch.full_like(ids, NO_ROUTE)
        for spike, its_rank in _ranked(group):
            flipped = drawn.flips[spike.draw, :, spike.sequence, spike.column - 1].nonzero().flatten()
            if its_rank == rank and len(flipped):
                position, first = (spike.sequence, spike.column - 1), int(flipped[0])
                in_one_layer[(*position, first)] = ids[(*position, first)]
                in_all[(*position, flipped)] = ids[(*position, flipped)]
        for rung, routes in ((ONE, in_one_layer), (OWN, in_all)):
            # With one layer to force there is no other rung.
            if bool((routes != NO_ROUTE).any()) and (rung == ONE or not torch.equal(in_one_layer, in_all)):
                yield (rung, rank), Recorded(of=tables(routes, graph), replayed=IDS)
    yield (ALL, 0), Forced(of=reference, replayed=IDS)


def _run(
    study: Study,
    always: Sequence[Walker],
    trials: dict[tuple[int, str, int], Walker],
    against: dict[tuple[int, str, int], WalkerName],
    progress: Callback | None,
) -> dict[WalkerName, Tensor]:
    """Delta of every token in each trial, fp64 [B, T]."""
    ids, _, scored = study.outcomes_on_device
    output, sampler = study.model.graph.scores, study.recipe.tokens.sampler

    def observing(some: Sequence[Walker]) -> list[_Deltas]:
        return [_Deltas(output, {trial.name: against[trial.name] for trial in some}, ids, scored, sampler)]

    deltas: dict[WalkerName, Tensor] = {}
    for finished in study.passes(progress).try_all(always, list(trials.values()), observing):
        (observer,) = finished.observers
        assert isinstance(observer, _Deltas)
        deltas |= {name: torch.cat(parts) for name, parts in observer.parts.items()}
    return deltas


def _tried(spike: Tried, rank: int, deltas: dict[WalkerName, Tensor]) -> Tried:
    """The spike with the deltas of its trials."""

    def delta(rung: str, of_rank: int) -> float:
        values = deltas.get((spike.draw, rung, of_rank))
        return math.nan if values is None else float(values[spike.sequence, spike.column])

    return Tried(
        draw=spike.draw,
        sequence=spike.sequence,
        column=spike.column,
        first_flip=delta(ONE, rank),
        own_routes=delta(OWN, rank),
        all_routes=delta(ALL, 0),
    )


TRIED: Final[Search[Sequence[Tried]]] = Search("forced routes", search)
