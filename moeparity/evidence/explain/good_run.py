"""A trace of a good run: how far its nodes lie from a plan already, to be taken from what another trace differs in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from moeparity.errors import TraceError, Where, counted
from moeparity.evidence.explain.observed import Recorded, observed
from moeparity.evidence.explain.parts import compared, is_shown
from moeparity.evidence.explain.walk import loader, targets
from moeparity.evidence.maps.forwards import map_for
from moeparity.evidence.maps.side import one_rank
from moeparity.evidence.maps.weights import compared as compared_weights
from moeparity.evidence.trace.reader import RankTrace, open_trace
from moeparity.inputs.weights.store import WeightStore
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.steps import Phase

AS_MUCH: Final = 2.0
"""The good run differs as much where the other one's error is at most so many times its own: both runs have tokens of
their own, and noise has another size at other tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodRun:
    """What the trace of a good run shows, and what that of the run shows which it is held against."""

    folder: Path
    good: Recorded
    candidate: Recorded

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the good run's steps."""
        return self.good.phases

    def refuse_nothing_common(self, plan: Plan) -> None:
        """Raises TraceError if there is no node that can be computed anew from what both traces show."""
        names = [node.name for node in plan.graph.nodes]
        of_good, of_candidate = (
            {target.node.name for target in targets(plan, names, of) if is_shown(plan, target.node.name, target.shown)}
            for of in (self.good, self.candidate)
        )
        if not of_good & of_candidate:
            raise TraceError(
                f"{Where(self.folder)}: it shows no node that the candidate's trace shows, with what goes into it, so "
                "nothing can be taken from that. Capture both runs with the same `--save`."
            )

    def differences(self, plan: Plan, weights: WeightStore) -> dict[str, tuple[float, float]]:
        """By node that differs from the plan in both runs, in the good one as much or more, the relative local errors
        of the other run and of the good one. Kernels run on the CPU.
        """
        on_cpu = WeightStore(weights.checkpoint, weights.graph, torch.device("cpu"), "stream")
        good_errors, other_errors = (_local_errors(plan, recorded, on_cpu) for recorded in (self.good, self.candidate))
        pairs = ((node, other_errors[node], error) for node, error in good_errors.items() if node in other_errors)
        return {node: (error, of_good) for node, error, of_good in pairs if error <= AS_MUCH * of_good < torch.inf}


def _local_errors(plan: Plan, recorded: Recorded, weights: WeightStore) -> dict[str, float]:
    """The relative local error of each node with other bits than the plan's kernels give on the recorded inputs."""
    names = [node.name for node in plan.graph.nodes]
    load, errors = loader(weights, plan.dtypes), dict[str, float]()
    with torch.inference_mode():
        for target in targets(plan, names, recorded):
            comparison = compared(plan, target.node.name, target.shown, load)
            if not comparison.is_equal:
                errors[target.node.name] = comparison.score.local_error
    return errors


def open_good_run(
    folder: Path,
    candidate: Path,
    graph: Graph,
    *,
    tensor: Callable[[str], torch.Tensor],
    where: Where,
    map_name: str | None = None,
) -> GoodRun:
    """The trace of a good run beside that of the `candidate`. `tensor` gives the checkpoint's weights by name.

    Raises TraceError where the two can't be compared: the same trace, several ranks, another program, model or
    weights.
    """
    if folder.resolve() == candidate.resolve():
        raise TraceError(f"{where}: the baseline is the candidate's own trace. Name the trace of a run that was good.")
    ranks = [one_rank(open_trace(path)) for path in (folder, candidate)]
    maps = [map_for(rank, map_name, where) for rank in ranks]
    programs = [module_map.file.program for module_map in maps]
    if programs[0] != programs[1]:
        raise TraceError(
            f"{Where(folder)}: a run of {programs[0]}, and the candidate's is of {programs[1]}: they round in "
            "places of their own. Capture a good run of the same program."
        )
    good, of_candidate = (observed(rank, graph, module_map) for rank, module_map in zip(ranks, maps, strict=True))
    _refuse_other_shapes(folder, good)
    _refuse_other_weights(folder, ranks[0], graph, tensor)
    return GoodRun(folder=folder, good=good, candidate=of_candidate)


def _refuse_other_shapes(folder: Path, recorded: Recorded) -> None:
    shapes = {name: words for step, _ in recorded.steps for name, words in step.other_shapes.items()}
    if shapes:
        name, words = next(iter(shapes.items()))
        raise TraceError(
            f"{Where(folder)}: {name}: {words}. A good run is of this checkpoint: name the trace of one that is."
        )


def _refuse_other_weights(folder: Path, rank: RankTrace, graph: Graph, tensor: Callable[[str], torch.Tensor]) -> None:
    weights = compared_weights(rank, graph, tensor)
    if weights.others:
        raise TraceError(
            f"{Where(folder)}: {counted(len(weights.others), 'weight')} of {weights.compared} that this run read "
            f"{'is' if len(weights.others) == 1 else 'are'} not the checkpoint's, the first {weights.others[0]}: what "
            "differs there is no noise. Name the trace of a run of this checkpoint."
        )
