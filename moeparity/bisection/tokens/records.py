"""What an engine recorded of its tokens, beside what each side computes for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.engine.lockstep import NodeView
from moeparity.metrics.tokens import CHUNK, log_probs, reports


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
            recorded = self.logprobs[rows]
            where = self.scored[rows] & ~recorded.isnan()
            for walker in self.walkers:
                reported = reports(view, walker)
                own = chosen_logprobs(view.tensor(walker), self.input_ids[rows], where, reported=reported)
                self.deltas.setdefault(walker, []).append(own - recorded[where])
        if view.node.op.routes and self.routed_experts is not None:
            if view.node.name not in self._routers:
                self._routers.append(view.node.name)
            recorded = self.routed_experts[rows, :, self._routers.index(view.node.name)]
            for walker in self.walkers:
                if view.ran(walker):
                    same, compared = self.routes.get(walker, (0, 0))
                    more, of = equal_sets(recorded, view.tensor(walker))
                    self.routes[walker] = same + more, compared + of

    def delta(self, walker: str) -> Tensor:
        """fp64 [tokens compared], in nats, on the CPU."""
        return torch.cat([part.cpu() for part in self.deltas.get(walker, [])] or [torch.empty(0, dtype=torch.float64)])


def chosen_logprobs(values: Tensor, input_ids: Tensor, where: Tensor, *, reported: bool = False) -> Tensor:
    """log P of the tokens `where` [B, T] bool, never True at the first position: fp64 [N], row by row, in nats.

    values [B, T, V] any float, logits, or log-probabilities where they are `reported`; input_ids [B, T] int64. The
    log-softmax of logits is taken in fp64; token t is scored by the values at t - 1.
    """
    found = [torch.empty(0, dtype=torch.float64, device=values.device)]
    size = max(1, CHUNK // values.shape[-1])
    both = (torch.split(index, size) for index in where.nonzero(as_tuple=True))
    for sequence, position in zip(*both, strict=True):
        rows = log_probs(values[sequence, position - 1], reported)
        found.append(rows.gather(-1, input_ids[sequence, position].unsqueeze(-1)).squeeze(-1))
    return torch.cat(found)


def equal_sets(recorded: Tensor, own: Tensor) -> tuple[int, int]:
    """Tokens whose expert set is the recorded one, and tokens that have a record; both int64 [..., K], -1 for none."""
    present = (recorded >= 0).all(-1)
    same = (recorded.sort(-1).values == own.sort(-1).values).all(-1)
    return int((same & present).sum()), int(present.sum())
