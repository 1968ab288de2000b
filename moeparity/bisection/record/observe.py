"""What an engine recorded of its tokens, and what the sides, and one side's draws, compute of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.bisection.observers import reports
from moeparity.bisection.plan import Plan
from moeparity.bisection.trials import Trials
from moeparity.engine.view import Ids, NodeView
from moeparity.engine.walker import Name
from moeparity.metrics.tokens import CHUNK, log_probs
from moeparity.plan.sides import CANDIDATE, REFERENCE


@dataclass(slots=True)
class Records:
    """Recorded log-probabilities and routes beside those of several walkers, as values go by.

    recorder: the side that the record is of; draws: its trials under choices nobody would call a difference.
    logprobs [B, T] fp64 in nats are looked at where `mask` [B, T] bool is true: on scored tokens that have one, since
    engines fill places they did not sample with 0. routed_experts [B, T, MoE layers, top_k] int64, -1 where none, are
    looked at on every token that has them.

    computed: log P of the tokens that have a record, by walker: fp64 [N] on the CPU, wave by wave, token by token.
    routed: by MoE layer, the token-layers of each sequence that have a record, int64 [B].
    other_sets: by walker and layer, those where the walker picks another set than recorded; of a draw, another than
        the recorder picks. int64 [B].
    """

    output: str
    recorder: str
    draws: Sequence[Name]
    input_ids: Tensor
    mask: Tensor
    logprobs: Tensor | None
    routed_experts: Tensor | None
    computed: dict[Name, list[Tensor]] = field(default_factory=dict)
    routed: dict[int, Tensor] = field(default_factory=dict)
    other_sets: dict[tuple[Name, int], Tensor] = field(default_factory=dict)

    def part(self, rows: slice) -> Records:
        """What was seen, of the sequences `rows`, for another to join."""
        return self

    def join(self, part: Records, rows: slice) -> None:
        """Take over what another saw of later waves, the sequences `rows`."""
        for walker, logprobs in part.computed.items():
            self.computed.setdefault(walker, []).extend(logprobs)
        for layer, counts in part.routed.items():
            self.routed.setdefault(layer, torch.zeros_like(counts))[rows] = counts[rows]
        for key, counts in part.other_sets.items():
            self.other_sets.setdefault(key, torch.zeros_like(counts))[rows] = counts[rows]

    @property
    def result(self) -> Records:
        """The records, with what was computed beside them."""
        return self

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name == self.output and self.logprobs is not None:
            self._see_logprobs(view, self.mask[slice(*view.wave)])
        if view.node.op.routes and self.routed_experts is not None:
            self._see_routes(view, self.routed_experts)

    def _see_logprobs(self, view: NodeView, mask: Tensor) -> None:
        ids = self.input_ids[slice(*view.wave)]
        by_bits: dict[tuple[bool, tuple[Ids, ...]], Tensor] = {}
        for walker in (REFERENCE, CANDIDATE, *self.draws):
            key = (reports(view, walker), tuple(view.output_ids(walker)))
            if key not in by_bits:
                by_bits[key] = chosen_logprobs(view.tensor(walker), ids, mask, reported=key[0]).cpu()
            self.computed.setdefault(walker, []).append(by_bits[key])

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

    def delta(self, walker: Name) -> Tensor:
        """log P of the walker - the recorded one, of the tokens of `mask` in their order: fp64 [N], in nats."""
        recorded = torch.empty(0, dtype=torch.float64) if self.logprobs is None else self.logprobs[self.mask].cpu()
        return self.of(walker) - recorded

    def of(self, walker: Name) -> Tensor:
        """log P of the tokens of `mask` in their order: fp64 [N], in nats."""
        return torch.cat([torch.empty(0, dtype=torch.float64), *self.computed.get(walker, [])])


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


def same_sets(x: Tensor, y: Tensor) -> Tensor:
    """bool [...]: where two int64 [..., K] hold the same experts, in whatever order."""
    return (x.sort(-1).values == y.sort(-1).values).all(-1)


STATE = (Records,)


def observer(plan: Plan, trials: Trials) -> Records | None:
    """Looks at both sides and at the draws of the one that sampled; None where the tokens come without records."""
    if not plan.tokens.has_records:
        return None
    tokens, device, recorder = plan.tokens, plan.model.device, plan.recipe.tokens.sampler
    draws = [key for key in trials if key.kind == "record" or (key.kind == "arrival" and key.of == recorder)]
    return Records(
        output=plan.model.graph.scores,
        recorder=recorder,
        draws=tuple(draws),
        input_ids=tokens.input_ids.to(device),
        mask=tokens.recorded.to(device),
        logprobs=None if tokens.logprobs is None else tokens.logprobs.to(device),
        routed_experts=None if tokens.routed_experts is None else tokens.routed_experts.to(device),
    )
