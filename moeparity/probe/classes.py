"""Which outputs of a callable are added up alike, found by giving all of them the same sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from moeparity.numerics.bits import int_view
from moeparity.probe.calls import Setup
from moeparity.probe.replay import zero_sum

TRIALS, PASSES = 16, 3

Fingerprint = tuple[int, ...]
"""The bits of one position's output for each of the trials' sums: sums of the same n and dtype compare."""


@dataclass(frozen=True, slots=True)
class OutputGroup:
    """Positions whose outputs had the same bits for all sums, the first first."""

    fingerprint: Fingerprint
    positions: tuple[int, ...]


class Outputs(Protocol):
    """A callable's outputs, all given the same sum."""

    setup: Setup

    @property
    def positions(self) -> int:
        """How many outputs there are."""

    def everywhere(self, row: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """One sum, row [n] (with `factors` [n] where leaves are products), at all positions -> [positions]."""


class NotRepeatable(Exception):  # noqa: N818  a finding, told to the user as one
    """The same call gave other bits when it was made again."""


def classes(sums: Outputs) -> list[OutputGroup]:
    """The positions by their outputs' bits, in order. Raises Differing where these are not the same each time."""
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
    """[trials, positions], as integers."""
    trials = []
    for seed in range(TRIALS // 2):
        rows, factors = zero_sum(sums.setup.n, 2, sums.setup.dtype, seed=seed)
        trials += [int_view(sums.everywhere(row, factors)).clone() for row in rows]
    return torch.stack(trials)
