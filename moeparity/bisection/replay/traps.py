"""Mistakes of a replay, planted: the candidate takes over the reference's routes as a trainer would that makes one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from moeparity.bisection.observed import Observed
from moeparity.bisection.observers import Logits
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.study import Study
from moeparity.bisection.trials import TrialKey, walker
from moeparity.bisection.watch import Search
from moeparity.engine.routes import IDS, ORDER, WEIGHTS, Recorded, Replayed, by_slot, replayed_plan, tables
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.errors import SpecError
from moeparity.metrics.replay import NO_ROUTE, Replay, Trap, displaced, incomplete, leading_dense, replayed
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.graph import Graph
from moeparity.plan.sides import REFERENCE
from moeparity.progress import Callback

RECORD: Final = "the token file's routes"
BESIDE_OTHERS: Final = "sorted ids with unsorted weights"
BY_EXPERT: Final = "sorted ids with sorted weights"
OWN_WEIGHTS: Final = "sorted ids with own weights"


@dataclass(frozen=True, slots=True)
class Planted:
    """A replay in the candidate, and how much of the routes it takes over.

    name: that of the mistake, or RECORD. kind: what the same replay without the mistake takes over. sums: against the
    reference.
    """

    name: str
    kind: Replayed
    sums: SequenceSums


@dataclass(slots=True)
class _Routes:
    """Keeps what the reference's routers give: by value, one part for each wave, ids and weights [b, T, K]."""

    parts: dict[str, list[Tensor]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.op.role.routes:
            for port, value in enumerate(view.node.values):
                self.parts.setdefault(value, []).append(view.tensor(REFERENCE, port).clone())

    def tables(self, graph: Graph, port: int) -> dict[str, Tensor]:
        """One output of every router, all sequences together: [B, T, K] by the name of the value."""
        values = [node.values[port] for node in graph.nodes if node.op.role.routes]
        return {value: torch.cat(self.parts[value]) for value in values}


def search(
    study: Study,
    observed: Observed,
    progress: Callback | None,
    store: PieceStore | None,
) -> tuple[Planted, ...] | None:
    """What each mistake gives; None where the ladder has no rung of forced ids."""
    if not study.recipe.replay or TrialKey("candidate", forced=IDS) not in observed.logits.walkers:
        return None
    passes, routes = study.passes(progress), _Routes()
    reference = walker(study, REFERENCE, study.reference)
    passes.run([reference], [routes])
    kinds: dict[str, Replayed] = {}
    trials = []
    for name, kind, trial in _trials(study, routes):
        kinds[name] = kind
        trials.append(trial)
    planted = []

    def observing(trials: Sequence[Walker]) -> list[Logits]:
        return [Logits.of(study, [trial.name for trial in trials])]

    for finished in passes.try_all([reference], trials, observing):
        (logits,) = finished.observers
        assert isinstance(logits, Logits)
        names = [trial.name for trial in finished.trials]
        planted += [Planted(name, kinds[name], logits.sums(name)) for name in names]
    return tuple(planted)


def _trials(study: Study, routes: _Routes) -> Iterator[tuple[str, Replayed, Walker]]:
    """The walkers of all mistakes: the name, what is taken over, and the walker."""
    graph, (_, mask, _), grid = study.model.graph, study.tokens_on_device, study.grid
    ids = routes.tables(graph, 0)
    # No record has routes of padding.
    natural = torch.stack(list(ids.values()), 2).masked_fill(~mask[..., None, None], NO_ROUTE).cpu()
    replays = [(trap.name, natural, trap.replay) for trap in _mistakes(study)]
    if study.tokens.routed_experts is not None:
        replays.insert(0, (RECORD, study.tokens.routed_experts.cpu(), Replay()))
    for name, recorded, replay in replays:
        of_trainer = replayed(recorded, mask, grid.prompts, replay)
        trial = walker(study, name, study.candidate)
        if replay.by_slot:
            yield name, IDS, replace(trial, grafts=by_slot(of_trainer, graph))
        else:
            of_trainer = of_trainer.to(mask.device)
            yield name, IDS, replace(trial, routes=Recorded(of=tables(of_trainer, graph), replayed=IDS))
    sorted_ids = by_slot(natural.sort(-1).values, graph)
    yield OWN_WEIGHTS, IDS, replace(walker(study, OWN_WEIGHTS, study.candidate), grafts=sorted_ids)
    if _may_take_weights(study):
        yield from _of_slots(study, ids, routes.tables(graph, 1))


def _mistakes(study: Study) -> list[Trap]:
    """Routes of other places, and those that a record does not have, as far as these tokens and layers have any."""
    graph, grid = study.model.graph, study.grid
    routed = [node.layer for node in graph.nodes if node.op.role.routes and node.layer is not None]
    lengths = [grid.tokens(row) for row in range(grid.sequences)]
    places = displaced(layers=len(routed), pads=len(set(lengths)) > 1)
    half = max(lengths) // 2
    missing = incomplete(dense=leading_dense(routed), prompts=min(grid.prompts) > 1, lengths=(half,))
    return [*places, *missing]


def _may_take_weights(study: Study) -> bool:
    return replayed_plan(study.candidate.plan, study.reference.plan) is study.reference.plan


def expected_traps(study: Study) -> int:
    """How many replays are planted beyond the first pass; 0 without a ladder, or if no routes can be forced."""
    if not study.recipe.replay or not any(node.op.role.routes for node in study.model.graph.nodes):
        return 0
    try:
        of_slots = 2 * _may_take_weights(study)
    except SpecError:
        return 0
    return len(_mistakes(study)) + (study.tokens.routed_experts is not None) + 1 + of_slots


def _of_slots(
    study: Study, ids: dict[str, Tensor], weights: dict[str, Tensor]
) -> Iterator[tuple[str, Replayed, Walker]]:
    """Replays of experts that were sorted by their number, beside weights that were not, or that were moved along."""
    orders = {value: rows.sort(-1) for value, rows in ids.items()}
    of_ids = {value: order.values.flatten(0, 1) for value, order in orders.items()}
    unmoved = {value: rows.flatten(0, 1) for value, rows in weights.items()}
    moved = {
        value: rows.gather(-1, order.indices).flatten(0, 1)
        for (value, rows), order in zip(weights.items(), orders.values(), strict=True)
    }
    kinds: tuple[tuple[str, Replayed, dict[str, Tensor]], ...]
    kinds = ((BESIDE_OTHERS, WEIGHTS, unmoved), (BY_EXPERT, ORDER, moved))
    for name, kind, of_weights in kinds:
        trial = walker(study, name, study.candidate)
        yield name, kind, replace(trial, routes=Recorded(of=of_ids | of_weights, replayed=kind))


TRAPS: Final[Search[tuple[Planted, ...]]] = Search("replay", search)
