"""Scores a log's tokens under many hypotheses in one pass over the weights."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from moeparity.bisection.observers import reports
from moeparity.bisection.record.observe import logprobs_of
from moeparity.doctor.readings import Cut
from moeparity.doctor.tokens import kept_mass, prompts_of
from moeparity.engine.grafts import Graft
from moeparity.engine.lockstep import run as run_pass
from moeparity.engine.routes import Recorded
from moeparity.engine.view import NodeView, Observer
from moeparity.engine.walker import Walker, WalkersRefusedError
from moeparity.inputs.model import Model
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.metrics.tokens import CHUNK, log_probs
from moeparity.ops.kernels.text import SamplingRequest
from moeparity.plan.bound import Plan
from moeparity.plan.schedule.steps import MicroBatches, Schedule
from moeparity.progress import Callback

MICRO_BATCH = 8
_LOGITS = 2**21
"""Elements of the logits of more sequences at once, where models are so small that calls take longer than products."""
_Key = TypeVar("_Key", bound=Hashable)


def together(model: Model, tokens: TokenSet) -> MicroBatches:
    """Whole sequences, as many at once as a model of so small a vocabulary allows, MICRO_BATCH at least."""
    sequences, length = tokens.input_ids.shape
    fitting = _LOGITS // (length * model.vocab_size)
    return MicroBatches(max(MICRO_BATCH, min(sequences, fitting)))


@dataclass(frozen=True, slots=True)
class Run:
    """A plan, with the steps it is run in; None for whole sequences, a few at a time. routes: what its routers take
    over of a record. grafts: recorded values that stand in place of its own, by name.
    """

    plan: Plan
    schedule: Schedule | MicroBatches | None = None
    routes: Recorded | None = None
    grafts: Mapping[str, Graft] = field(default_factory=dict)

    def walker(self, key: Hashable, prompts: Sequence[int], requests: Sequence[SamplingRequest]) -> Walker:
        """The walker of this name, of sequences with these prompts and requests."""
        return Walker(
            name=key,
            plan=self.plan,
            schedule=self.schedule or MicroBatches(MICRO_BATCH),
            routes=self.routes,
            grafts=self.grafts,
            prompts=tuple(prompts),
            requests=tuple(requests),
        )


@dataclass(slots=True)
class _Scores:
    """Collects the log-probabilities of the scored tokens while a pass runs.

    parts: by walker, fp64 [n] in nats for each wave of sequences. cuts: by walker, the truncations (such as top-k) to
    try on it. masses: by walker and truncation, the log of the probability that the kept tokens have together.
    """

    output: str
    tokens: TokenSet
    walkers: Sequence[Hashable]
    cuts: Mapping[Any, Mapping[str, Cut]]
    parts: dict[Hashable, list[Tensor]] = field(default_factory=dict)
    masses: dict[tuple[Hashable, str], list[Tensor]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.output:
            return
        rows = slice(*view.wave)
        ids, mask = self.tokens.input_ids[rows], self.tokens.loss_mask[rows]
        for walker, logprobs in logprobs_of(view, self.walkers, ids, mask):
            self.parts.setdefault(walker, []).append(logprobs)
            if walker in self.cuts:
                self._cut(walker, view.tensor(walker), mask, logprobs, reported=reports(view, walker))

    def _cut(self, walker: Hashable, values: Tensor, mask: Tensor, logprobs: Tensor, *, reported: bool) -> None:
        sequence, position = mask.nonzero(as_tuple=True)
        size = max(1, CHUNK // values.shape[-1])
        for first in range(0, sequence.numel(), size):
            at = slice(first, first + size)
            rows = log_probs(values[sequence[at], position[at] - 1], reported).cpu()
            for name, mass in kept_mass(rows, logprobs[at], self.cuts[walker]).items():
                self.masses.setdefault((walker, name), []).append(mass)


def scores(
    model: Model,
    tokens: TokenSet,
    runs: Mapping[_Key, Run],
    progress: Callback | None = None,
    cuts: Mapping[_Key, Mapping[str, Cut]] = MappingProxyType({}),
    observers: Sequence[Observer] = (),
) -> tuple[dict[_Key, Tensor], dict[tuple[_Key, str], Tensor]]:
    """The log-probabilities that each plan gives the tokens under the loss mask: fp64 [N] in nats, one sequence after
    the other; and the log of the mass that each of a run's cuts keeps there. All plans run in one pass, which is begun
    again without those that cannot run; `observers` see each of these.

    `tokens` are on the model's device. A plan without a schedule runs whole sequences, MICRO_BATCH at once. A plan that
    cannot run on these tokens, since an op refuses, has no entry.
    """
    pending, prompts = dict(runs), prompts_of(tokens).grid.prompts
    while pending:
        walkers = [run.walker(key, prompts, tokens.requests) for key, run in pending.items()]
        observer = _Scores(output=model.graph.scores, tokens=tokens, walkers=tuple(pending), cuts=cuts)
        try:
            run_pass(
                walkers,
                model.weights,
                tokens.input_ids,
                [observer, *observers],
                attention_mask=tokens.attention_mask,
                progress=progress,
                # What a mistake changes stays changed, so hardly anything behind it is worth a comparison.
                compares=False,
            )
        except WalkersRefusedError as refused:
            pending = {key: run for key, run in pending.items() if key not in refused.walkers}
            continue
        masses = {(key, name): torch.cat(observer.masses[key, name]) for key in pending for name in cuts.get(key, ())}
        return {key: torch.cat(observer.parts[key]) for key in pending}, masses
    return {}, {}
