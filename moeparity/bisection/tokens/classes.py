"""The candidate against the reference by class of token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from moeparity.engine.lockstep import NodeView
from moeparity.metrics.routing import flips
from moeparity.metrics.tokens import seen_metrics


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
            both = self.input_ids[rows], self.loss_mask[rows]
            found = seen_metrics(view, self.reference, self.candidate, *both, self.sampled_from)
            labels = self.labels[rows].cpu()[found.scored]
            self.tokens += torch.bincount(labels, minlength=self.count)
            self.k3.index_add_(0, labels, found.k3[found.scored])
            self.abs_delta.index_add_(0, labels, found.delta.abs()[found.scored])
        if view.node.op.routes and view.ran(self.reference, self.candidate):
            real = self.attention_mask[rows]
            _, flipped = flips(view.tensor(self.reference)[real], view.tensor(self.candidate)[real])
            labels = self.labels[rows][real].cpu()
            self.routes += torch.bincount(labels, minlength=self.count)
            self.set_flips += torch.bincount(labels[flipped.cpu()], minlength=self.count)
