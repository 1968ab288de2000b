"""An observer that compares what an engine recorded of its tokens with both sides and with draws of one side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from moeparity.bisection.observers import reports
from moeparity.bisection.study import Study
from moeparity.bisection.trials import TrialKind, Trials
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.view import Ids, NodeView
from moeparity.engine.walker import WalkerName
from moeparity.metrics.tokens import log_probs, scored_parts
from moeparity.plan.sides import CANDIDATE, REFERENCE


@dataclass(slots=True)
class Records(SectionObserver):
    """Recorded log-probabilities and routes, beside those of several walkers.

    recorder: the side that stands for the engine. draws: its trials under choices that nobody would call a difference.
    logprobs: fp64 [B, T] in nats, looked at where `mask` (bool [B, T]) is True: at scored tokens with a record, since
    engines fill places that they did not sample with 0. routed_experts: int64 [B, T, MoE layers, top_k], -1 without a
    record, looked at on every token that has one.

    computed: by walker, log P of the tokens that have a record: fp64 [N] on the CPU, wave by wave, token by token.
    routed: by MoE layer, how many token-layers of each sequence have a record, int64 [B].
    other_sets: by walker and layer, in how many of them the walker picks another set than recorded; for a draw, another
        than the recorder picks. int64 [B].
    """

    output: str
    recorder: str
    draws: Sequence[WalkerName]
    input_ids: Tensor
    mask: Tensor
    logprobs: Tensor | None
    routed_experts: Tensor | None
    computed: dict[WalkerName, list[Tensor]] = field(default_factory=dict)
    routed: dict[int, Tensor] = field(default_factory=dict)
    other_sets: dict[tuple[WalkerName, int], Tensor] = field(default_factory=dict)

    def join(self, part: Records, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        for walker, logprobs in part.computed.items():
            self.computed.setdefault(walker, []).extend(logprobs)
        for layer, counts in part.routed.items():
            self.routed.setdefault(layer, torch.zeros_like(counts))[rows] = counts[rows]
        for key, counts in part.other_sets.items():
            self.other_sets.setdefault(key, torch.zeros_like(counts))[rows] = counts[rows]

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name == self.output and self.logprobs is not None:
            self._see_logprobs(view, self.mask[slice(*view.wave)])
        if view.node.op.role.routes and self.routed_experts is not None:
            self._see_routes(view, self.routed_experts)

    def _see_logprobs(self, view: NodeView, mask: Tensor) -> None:
        ids = self.input_ids[slice(*view.wave)]
        for walker, logprobs in logprobs_of(view, (REFERENCE, CANDIDATE, *self.draws), ids, mask):
            self.computed.setdefault(walker, []).append(logprobs)

    def _see_routes(self, view: NodeView, routed_experts: Tensor) -> None:
        rows, layer = slice(*view.wave), view.node.layer
        assert layer is not None
        if layer not in self.routed:
            self.routed[layer] = torch.zeros(len(self.input_ids), dtype=torch.int64)
        record = routed_experts[rows, :, list(self.routed).index(layer)]
        present = (record >= 0).all(-1)
        self.routed[layer][rows] = present.sum(-1).cpu()
        for walker in (REFERENCE, CANDIDATE, *self.draws):
            if view.ran(walker, self.recorder):
                recorded = view.tensor(self.recorder) if walker in self.draws else record
                others = present & ~same_sets(recorded, view.tensor(walker))
                key = (walker, layer)
                self.other_sets.setdefault(key, torch.zeros_like(self.routed[layer]))[rows] = others.sum(-1).cpu()

    def delta(self, walker: WalkerName) -> Tensor:
        """log P of the walker minus the recorded one, at the tokens of `mask` in order: fp64 [N], in nats."""
        recorded = torch.empty(0, dtype=torch.float64) if self.logprobs is None else self.logprobs[self.mask].cpu()
        return self.of(walker) - recorded

    def of(self, walker: WalkerName) -> Tensor:
        """log P of the walker at the tokens of `mask` in order: fp64 [N], in nats."""
        return torch.cat([torch.empty(0, dtype=torch.float64), *self.computed.get(walker, [])])


def logprobs_of(
    view: NodeView, walkers: Iterable[WalkerName], input_ids: Tensor, mask: Tensor
) -> Iterator[tuple[WalkerName, Tensor]]:
    """`chosen_logprobs` of several walkers, on the CPU, from a view of the node from which log-probabilities are read.
    Of equal bits they are computed once.
    """
    by_bits: dict[tuple[bool, tuple[Ids, ...]], Tensor] = {}
    for walker in walkers:
        key = (reports(view, walker), tuple(view.output_ids(walker)))
        if key not in by_bits:
            by_bits[key] = chosen_logprobs(view.tensor(walker), input_ids, mask, reported=key[0]).cpu()
        yield walker, by_bits[key]


def chosen_logprobs(values: Tensor, input_ids: Tensor, mask: Tensor, *, reported: bool = False) -> Tensor:
    """log P of the tokens in `mask` (bool [B, T], never True at the first position): fp64 [N], row by row, in nats.

    values: [B, T, V], any float: logits, or log-probabilities if they are `reported`. input_ids: int64 [B, T]. The
    log-softmax of logits is taken in fp64; token t is scored by the values at t - 1.
    """
    parts = [torch.empty(0, dtype=torch.float64, device=values.device)]
    for sequence, position in scored_parts(mask, values.shape[-1]):
        rows = log_probs(values[sequence, position - 1], reported)
        parts.append(rows.gather(-1, input_ids[sequence, position].unsqueeze(-1)).squeeze(-1))
    return torch.cat(parts)


def same_sets(x: Tensor, y: Tensor) -> Tensor:
    """bool [...]: whether two int64 [..., K] hold the same experts, in any order."""
    return (x.sort(-1).values == y.sort(-1).values).all(-1)


def recorder(study: Study, kind: TrialKind) -> str:
    """The side that stands for the engine of a record."""
    sampler = study.recipe.tokens.sampler
    if kind == "record":
        return sampler
    return REFERENCE if sampler == CANDIDATE else CANDIDATE


def observer(study: Study, trials: Trials) -> Records | None:
    """The observer of both sides and of draws of the one that sampled; None if its engine recorded nothing."""
    tokens = study.tokens
    if tokens.logprobs is None and tokens.routed_experts is None:
        return None
    return _observer(study, trials, "record", tokens.logprobs, tokens.recorded, tokens.routed_experts)


def other_observer(study: Study, trials: Trials) -> Records | None:
    """The same for the engine that did not sample."""
    tokens = study.tokens
    if tokens.trainer_logprobs is None:
        return None
    return _observer(study, trials, "other record", tokens.trainer_logprobs, tokens.recorded_by_trainer, None)


def _observer(
    study: Study, trials: Trials, kind: TrialKind, logprobs: Tensor | None, mask: Tensor, routed_experts: Tensor | None
) -> Records:
    device, side = study.model.device, recorder(study, kind)
    return Records(
        output=study.model.graph.scores,
        recorder=side,
        draws=tuple(key for key in trials if key.kind == kind or (key.kind == "arrival" and key.of == side)),
        input_ids=study.tokens.input_ids.to(device),
        mask=mask.to(device),
        logprobs=None if logprobs is None else logprobs.to(device),
        routed_experts=None if routed_experts is None else routed_experts.to(device),
    )


RECORDED: Final[Watch[Records]] = Watch("record", observer, (Records,))
RECORDED_BY_OTHER: Final[Watch[Records]] = Watch("other record", other_observer, (Records,))
