"""The routes that an engine recorded, beside those of its simulation with nothing wrong and of legal engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.bisection.record.observe import same_sets
from moeparity.doctor.case import LEGAL, Case
from moeparity.doctor.report import BEYOND, Clue
from moeparity.doctor.scores import MICRO_BATCH
from moeparity.engine.lockstep import run
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker, WalkersRefusedError
from moeparity.output.words import percent
from moeparity.plan.schedule.steps import MicroBatches
from moeparity.progress import Callback


@dataclass(slots=True)
class _Flips:
    """An observer: at how many token-layers a walker picks other experts than were recorded, and two walkers than each
    other. recorded: int64 [B, T, MoE layers, top_k], -1 where there is no record.
    """

    recorded: Tensor
    sampler: str
    pair: tuple[str, ...]
    layers: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    legal: list[int] = field(default_factory=list)
    there: list[int] = field(default_factory=list)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if not view.node.op.routes or view.node.layer is None:
            return
        if view.node.layer not in self.layers:
            self.layers.append(view.node.layer)
            for counts in (self.others, self.legal, self.there):
                counts.append(0)
        place = self.layers.index(view.node.layer)
        record = self.recorded[slice(*view.wave), :, place]
        there = (record >= 0).all(-1)
        chosen = view.tensor(self.sampler)
        self.there[place] += int(there.sum())
        self.others[place] += int((there & ~same_sets(record.to(chosen.device), chosen).cpu()).sum())
        if len(self.pair) > 1:
            first, second = (view.tensor(name) for name in self.pair)
            self.legal[place] += int((there & ~same_sets(first, second).cpu()).sum())


def of_routes(case: Case, progress: Callback | None = None) -> Iterator[Clue]:
    """How often the recorded routes choose other experts than the simulation, and from which layer on more often than
    noise. Nothing without routes in the log. A flip is never called the cause, since something before it made it.
    """
    recorded = case.of_log.tokens.routed_experts
    if recorded is None:
        return
    model, sampler = case.bench.model, case.request.profile("sampler")
    routers = [node for node in model.graph.nodes if node.op.routes]
    top_k = routers[0].params["top_k"] if routers else 0
    if (len(routers), top_k) != tuple(recorded.shape[2:]):
        yield Clue(
            says=f"the log's routes are of {recorded.shape[2]} layers and {recorded.shape[3]} experts a token; the "
            f"checkpoint has {len(routers)} routers that choose {top_k}: of another model, and not compared",
        )
        return
    pair = tuple(name for name in LEGAL if name in case.bench.bases)[:2]
    flips = _Flips(recorded=recorded.cpu(), sampler=sampler, pair=pair)
    try:
        run(
            [
                Walker(
                    name=name,
                    plan=case.bench.bases[name],
                    schedule=case.bench.steps.get(name, MicroBatches(MICRO_BATCH)),
                )
                for name in dict.fromkeys((sampler, *pair))
            ],
            model.weights,
            case.bench.tokens.input_ids,
            [flips],
            attention_mask=case.bench.tokens.attention_mask,
            progress=progress,
        )
    except WalkersRefusedError:
        return
    yield _clue(flips, sampler)


def _clue(flips: _Flips, sampler: str) -> Clue:
    there, others, legal = sum(flips.there), sum(flips.others), sum(flips.legal)
    if not there:
        return Clue(says="the log has a column of routes, and none is recorded in it")
    share, noise = others / there, legal / there
    tokens = f"{percent(share)} of {there:,} token-layers"
    says = f"recorded routes: other experts than {sampler} with nothing wrong at {tokens}"
    if len(flips.pair) > 1:
        says += f"; {' and '.join(flips.pair)}, which make no mistake, part at {percent(noise)}"
    first = _first_beyond(flips.others, flips.legal, flips.there)
    if first is not None and share > BEYOND * noise:
        says += f"; more than noise from layer {flips.layers[first]} on: what is wrong lies there or before"
    return Clue(says=says)


def _first_beyond(others: Sequence[int], legal: Sequence[int], there: Sequence[int]) -> int | None:
    """The first place at which surely more flips were recorded than legal engines make: by more than four standard
    deviations of a count.
    """
    sizes = torch.tensor([others, legal, there], dtype=torch.float64)
    beyond = sizes[0] > BEYOND * sizes[1] + 4 * (sizes[1] + 1).sqrt()
    return int(beyond.int().argmax()) if bool(beyond.any()) else None
