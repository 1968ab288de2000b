"""Scores a log's tokens under many hypotheses in one pass over the weights."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor

from moeparity.bisection.record.observe import logprobs_of
from moeparity.engine.lockstep import run
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker, WalkersRefusedError
from moeparity.inputs.model import Model
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.bound import BoundGraph
from moeparity.plan.schedule.steps import MicroBatches, Schedule
from moeparity.progress import Callback

MICRO_BATCH = 8
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(slots=True)
class _Scores:
    """An observer of the log-probabilities of the scored tokens: by walker, fp64 [N] in nats, wave by wave."""

    output: str
    tokens: TokenSet
    walkers: Sequence[Hashable]
    parts: dict[Hashable, list[Tensor]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.output:
            return
        rows = slice(*view.wave)
        ids, mask = self.tokens.input_ids[rows], self.tokens.loss_mask[rows]
        for walker, logprobs in logprobs_of(view, self.walkers, ids, mask):
            self.parts.setdefault(walker, []).append(logprobs)


def scores(
    model: Model,
    tokens: TokenSet,
    plans: Mapping[_Key, BoundGraph],
    progress: Callback | None = None,
    schedules: Mapping[_Key, Schedule | MicroBatches] = MappingProxyType({}),
) -> dict[_Key, Tensor]:
    """The log-probabilities that each plan gives the tokens under the loss mask: fp64 [N] in nats, one sequence after
    the other. All plans run in one pass.

    `tokens` are on the model's device. A plan without a schedule runs whole sequences, MICRO_BATCH at once. A plan that
    cannot run on these tokens, since an op refuses, has no entry.
    """
    pending = dict(plans)
    while pending:
        walkers = [
            Walker(name=key, plan=plan, schedule=schedules.get(key, MicroBatches(MICRO_BATCH)))
            for key, plan in pending.items()
        ]
        observer = _Scores(output=model.graph.scores, tokens=tokens, walkers=tuple(pending))
        try:
            run(
                walkers,
                model.weights,
                tokens.input_ids,
                [observer],
                attention_mask=tokens.attention_mask,
                progress=progress,
            )
        except WalkersRefusedError as refused:
            pending = {key: plan for key, plan in pending.items() if key not in refused.walkers}
            continue
        return {key: torch.cat(observer.parts[key]) for key in pending}
    return {}
