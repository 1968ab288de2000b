"""The columns that every metric is computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.errors import Where

UNKNOWN = torch.iinfo(torch.int64).min
"""An unknown label, in a column of labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """N scored tokens of B whole sequences, one sequence after the other; all tensors on the CPU.

    A sequence may have no scored token; it still counts in B and has an id.

    rollout, trainer: fp64 [N], log P_sampler and log P_trainer of the sampled token, natural logarithms.
    sequence: int64 [N], 0..B-1, non-decreasing.
    position: int64 [N], index in the response, or in the sequence if the prompt's length is unknown.
    tokens: int64 [N], token ids.
    ids, where: [B], the ids by which files are joined, and the lines from which the sequences were read.
    contents: [B], a number that repetitions of a sequence have in common; () if every sequence is another one.
    labels: further int64 [N] columns by name: "step", "version_lag", "group", "class" (`UNKNOWN` if the log does not
        say), "flipped" (0 or 1, -1 if a side's routes are unknown), "pads" (how many the trainer computed before the
        sequence), and what a server's steps tell.
    values: further fp64 [N] columns by name: "entropy" (of the trainer's whole distribution, nats) and "current" (log P
        by the policy that is being updated); NaN if unknown.
    """

    rollout: Tensor
    trainer: Tensor
    sequence: Tensor
    position: Tensor
    tokens: Tensor
    ids: tuple[str, ...]
    where: tuple[Where, ...]
    contents: tuple[int, ...] = ()
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    values: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def sequences(self) -> int:
        """B, the number of sequences."""
        return len(self.ids)

    @property
    def content(self) -> Tensor:
        """`contents` as int64 [B], of every chunk."""
        return torch.tensor(self.contents or [hash(each) for each in self.ids], dtype=torch.int64)

    @property
    def delta(self) -> Tensor:
        """log P_trainer - log P_sampler, fp64 [N], nats; 0 where both are -inf."""
        # -inf on both sides is agreement, but its difference would be NaN.
        equal = self.trainer == self.rollout
        return torch.where(equal, 0.0, self.trainer - self.rollout)

    @property
    def counts(self) -> Tensor:
        """Scored tokens of each sequence, fp64 [B]."""
        return torch.bincount(self.sequence, minlength=self.sequences).double()
