"""The columns that every metric is computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.errors import Where

UNKNOWN = torch.iinfo(torch.int64).min
"""In a column of labels: the log does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The scored tokens of some whole sequences, laid end to end; all tensors on the CPU.

    N tokens of B sequences. A sequence may have no scored token; it still has an id and a place.

    rollout, trainer: fp64 [N], log P_sampler and log P_trainer of the sampled token, natural logarithms.
    sequence: int64 [N], 0..B-1, non-decreasing.
    position: int64 [N], index in the response, or in the sequence where the prompt's length is unknown.
    tokens: int64 [N], token ids.
    ids, where: [B], what joins files, and the line each sequence stands on.
    labels: further int64 [N] columns by name: "step", "version_lag", "group", `UNKNOWN` where the log does not say;
        "flipped", 0, 1, or -1 where a side's routes are unknown.
    values: further fp64 [N] columns by name: "entropy" (of the trainer's whole distribution, nats), "current" (the
        policy being updated, log P), NaN where unknown.
    """

    rollout: Tensor
    trainer: Tensor
    sequence: Tensor
    position: Tensor
    tokens: Tensor
    ids: tuple[str, ...]
    where: tuple[Where, ...]
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    values: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def sequences(self) -> int:
        """B."""
        return len(self.ids)

    @property
    def delta(self) -> Tensor:
        """log P_trainer - log P_sampler, fp64 [N], nats; 0 where both are -inf."""
        # -inf on both sides is agreement, and only the difference would be NaN.
        equal = self.trainer == self.rollout
        return torch.where(equal, 0.0, self.trainer - self.rollout)

    @property
    def counts(self) -> Tensor:
        """Scored tokens of each sequence, fp64 [B]."""
        return torch.bincount(self.sequence, minlength=self.sequences).double()
