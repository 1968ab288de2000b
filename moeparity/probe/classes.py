"""Finds which outputs of a callable are added up alike, by giving all of them the same sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from moeparity.numerics.bits import int_view
from moeparity.probe.calls import Setup
from moeparity.probe.replay import zero_sum

TRIALS, PASSES = 16, 3

Fingerprint = tuple[int, ...]
"""The bits of one position's output for each trial; comparable between calls with the same n and dtype."""


@dataclass(frozen=True, slots=True)
class OutputGroup:
    """Positions whose outputs had the same bits in all trials, in ascending order."""

    fingerprint: Fingerprint
    positions: tuple[int, ...]


class Outputs(Protocol):
    """A callable whose outputs can all be given the same sum."""

    setup: Setup

    @property
    def positions(self) -> int:
        """The number of outputs."""

    def everywhere(self, row: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """The same sum at all positions -> [positions]; leaves row [n], times `factors` [n] if leaves are products."""


class NotRepeatable(Exception):  # noqa: N818  a finding, told to the user as one
    """The same call gave other bits when it was repeated."""


def classes(sums: Outputs) -> list[OutputGroup]:
    """The positions grouped by their outputs' bits, in order. Raises NotRepeatable if these change between calls."""
    passes = [_outputs(sums) for _ in range(PASSES)]
    differs = torch.stack([bits != passes[0] for bits in passes]).any(0)
    if bool(differs.any()):
        raise NotRepeatable(
            f"{PASSES} runs of {TRIALS} sums gave other bits in {int(differs.any(0).sum())} of {sums.positions} outputs"
        )
    groups: dict[Fingerprint, list[int]] = {}
    for position, bits in enumerate(passes[0].t().tolist()):
        groups.setdefault(tuple(bits), []).append(position)
    return [OutputGroup(fingerprint, tuple(positions)) for fingerprint, positions in groups.items()]


def _outputs(sums: Outputs) -> torch.Tensor:
    """The bits of all outputs in all trials, integers [trials, positions]."""
    trials = []
    for seed in range(TRIALS // 2):
        rows, factors = zero_sum(sums.setup.n, 2, sums.setup.dtype, seed=seed)
        trials += [int_view(sums.everywhere(row, factors)).clone() for row in rows]
    return torch.stack(trials)
