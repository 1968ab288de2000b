"""What an engine recorded of its tokens beside what each side computes, and the candidate by class of token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from moeparity.bisection.prepare import Plan
from moeparity.bisection.reported import reports, seen_metrics
from moeparity.bisection.trials import Trials
from moeparity.engine.lockstep import NodeView
from moeparity.metrics.routing import flips
from moeparity.metrics.tokens import CHUNK, log_probs
from moeparity.plan.sides import CANDIDATE, REFERENCE


@dataclass(slots=True)
class Records:
    """Recorded log-probabilities and routes against those of several walkers, as values go by.

    logprobs [B, T] fp64 in nats, NaN where none, are looked at on `scored` [B, T] bool tokens, since engines fill
    places they did not sample with 0. routed_experts [B, T, MoE layers, top_k] int64, -1 where none, are looked at on
    every token that has them.

    deltas: per walker, fp64 log P_walker(token) - recorded log-probability, in nats, wave by wave.
    routes: per walker, token-layers with the recorded expert set, and token-layers compared.
    """

    output: str
    walkers: Sequence[str]
    input_ids: Tensor
    scored: Tensor
    logprobs: Tensor | None
    routed_experts: Tensor | None
    deltas: dict[str, list[Tensor]] = field(default_factory=dict)
    routes: dict[str, tuple[int, int]] = field(default_factory=dict)
    _routers: list[str] = field(default_factory=list)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        rows = slice(*view.wave)
        if view.node.name == self.output and self.logprobs is not None:
            record = self.logprobs[rows]
            mask = self.scored[rows] & ~record.isnan()
            for walker in self.walkers:
                reported = reports(view, walker)
                logprobs = chosen_logprobs(view.tensor(walker), self.input_ids[rows], mask, reported=reported)
                self.deltas.setdefault(walker, []).append(logprobs - record[mask])
        if view.node.op.routes and self.routed_experts is not None:
            if view.node.name not in self._routers:
                self._routers.append(view.node.name)
            record = self.routed_experts[rows, :, self._routers.index(view.node.name)]
            for walker in self.walkers:
                if view.ran(walker):
                    matches, total = self.routes.get(walker, (0, 0))
                    new_matches, new_total = equal_sets(record, view.tensor(walker))
                    self.routes[walker] = matches + new_matches, total + new_total

    def delta(self, walker: str) -> Tensor:
        """fp64 [tokens compared], in nats, on the CPU."""
        return torch.cat([part.cpu() for part in self.deltas.get(walker, [])] or [torch.empty(0, dtype=torch.float64)])


def chosen_logprobs(values: Tensor, input_ids: Tensor, mask: Tensor, *, reported: bool = False) -> Tensor:
    """log P of the tokens in `mask` [B, T] bool, never True at the first position: fp64 [N], row by row, in nats.

    values [B, T, V] any float, logits, or log-probabilities where they are `reported`; input_ids [B, T] int64. The
    log-softmax of logits is taken in fp64; token t is scored by the values at t - 1.
    """
    parts = [torch.empty(0, dtype=torch.float64, device=values.device)]
    size = max(1, CHUNK // values.shape[-1])
    indices = (torch.split(index, size) for index in mask.nonzero(as_tuple=True))
    for sequence, position in zip(*indices, strict=True):
        rows = log_probs(values[sequence, position - 1], reported)
        parts.append(rows.gather(-1, input_ids[sequence, position].unsqueeze(-1)).squeeze(-1))
    return torch.cat(parts)


def equal_sets(record: Tensor, experts: Tensor) -> tuple[int, int]:
    """Tokens whose expert set is the recorded one, and tokens that have a record; both int64 [..., K], -1 for none."""
    present = (record >= 0).all(-1)
    equal = (record.sort(-1).values == experts.sort(-1).values).all(-1)
    return int((equal & present).sum()), int(present.sum())


@dataclass(slots=True)
class Classes:
    """Sums per class, over scored tokens for log-probabilities and over all real tokens for routes.

    `labels` int64 [B, T] holds the class of each token. Definitions stand with `TokenMetrics` and `Flips`.

    tokens, k3, abs_delta: scored tokens; k3 and |delta| in nats, NaN where a token's logits are not finite; fp64 [C].
    routes, set_flips: token-layers, and those whose expert set differs; int64 [C].
    """

    output: str
    reference: str
    candidate: str
    input_ids: Tensor
    loss_mask: Tensor
    attention_mask: Tensor
    labels: Tensor
    count: int
    sampled_from: Literal["candidate", "reference"]
    tokens: Tensor = field(init=False)
    k3: Tensor = field(init=False)
    abs_delta: Tensor = field(init=False)
    routes: Tensor = field(init=False)
    set_flips: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.tokens, self.k3, self.abs_delta = (torch.zeros(self.count, dtype=torch.float64) for _ in range(3))
        self.routes, self.set_flips = (torch.zeros(self.count, dtype=torch.int64) for _ in range(2))

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        rows = slice(*view.wave)
        if view.node.name == self.output:
            tokens = self.input_ids[rows], self.loss_mask[rows]
            metrics = seen_metrics(view, self.reference, self.candidate, *tokens, self.sampled_from)
            labels = self.labels[rows].cpu()[metrics.scored]
            self.tokens += torch.bincount(labels, minlength=self.count)
            self.k3.index_add_(0, labels, metrics.k3[metrics.scored])
            self.abs_delta.index_add_(0, labels, metrics.delta.abs()[metrics.scored])
        if view.node.op.routes and view.ran(self.reference, self.candidate):
            real = self.attention_mask[rows]
            _, flip_mask = flips(view.tensor(self.reference)[real], view.tensor(self.candidate)[real])
            labels = self.labels[rows][real].cpu()
            self.routes += torch.bincount(labels, minlength=self.count)
            self.set_flips += torch.bincount(labels[flip_mask.cpu()], minlength=self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenObserver:
    """Both together; None where nothing was recorded, or where the tokens have no labels."""

    records: Records | None
    classes: Classes | None

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        for observer in (self.records, self.classes):
            if observer is not None:
                observer.see(view)

    @property
    def result(self) -> TokenObserver:
        """Both observers, which keep sums only."""
        return self


STATE = (TokenObserver, Records, Classes)


def observer(plan: Plan, trials: Trials) -> TokenObserver | None:
    """Looks at both sides; None where the tokens come without records and labels."""
    records, classes = _records(plan), _classes(plan)
    return None if records is None and classes is None else TokenObserver(records=records, classes=classes)


def _records(plan: Plan) -> Records | None:
    if not plan.tokens.has_records:
        return None
    tokens, device = plan.tokens, plan.model.device
    return Records(
        output=plan.model.graph.scores,
        walkers=(REFERENCE, CANDIDATE),
        input_ids=tokens.input_ids.to(device),
        scored=tokens.loss_mask.to(device),
        logprobs=None if tokens.logprobs is None else tokens.logprobs.to(device),
        routed_experts=None if tokens.routed_experts is None else tokens.routed_experts.to(device),
    )


def _classes(plan: Plan) -> Classes | None:
    tokens, device = plan.tokens, plan.model.device
    if tokens.labels is None:
        return None
    return Classes(
        output=plan.model.graph.scores,
        reference=REFERENCE,
        candidate=CANDIDATE,
        input_ids=tokens.input_ids.to(device),
        loss_mask=tokens.loss_mask.to(device),
        attention_mask=tokens.attention_mask.to(device),
        labels=tokens.labels.to(device),
        count=len(tokens.label_names),
        sampled_from=plan.recipe.tokens.sampler,
    )
