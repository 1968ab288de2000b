"""What a diagnosis keeps of a stream of chunks: sums per sequence and a few histograms, about 1 KB per sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.errors import Where
from moeparity.logs.diagnosis.columns import SHIFTS, columns, shifted_distances
from moeparity.metrics.chunk import Chunk
from moeparity.metrics.quantities import k3
from moeparity.metrics.repeated import Repetitions
from moeparity.metrics.running import Magnitudes

PROBABILITIES = (1e-4, 1e-3, 1e-2, 0.1, 0.3, 0.6, 0.9, 0.99, 0.999, 0.99999)
"""Bounds of the bins of P within which |delta| is compared, since most of the spread of |delta| comes from P itself.
Above the last bound |delta| is rounding of an fp32 log-softmax, and is left out.
"""

# A smaller |delta| is replaced by this before its logarithm, since fp64 can't resolve it.
_LEAST = 1e-9
_BINS_PER_OCTAVE = 16
_LEAST_OCTAVE, _OCTAVES = -70, 110


@dataclass(slots=True)
class Tail:
    """How much of a sum its largest terms carry, in fixed memory: counts and sums in bins of a sixteenth octave."""

    counts: Tensor = field(default_factory=lambda: torch.zeros(_BINS_PER_OCTAVE * _OCTAVES, dtype=torch.float64))
    sums: Tensor = field(default_factory=lambda: torch.zeros(_BINS_PER_OCTAVE * _OCTAVES, dtype=torch.float64))

    def add(self, values: Tensor) -> None:
        """Take in fp64 [N] values >= 0."""
        octave = values.clamp(min=2.0**_LEAST_OCTAVE).log2() - _LEAST_OCTAVE
        index = (octave * _BINS_PER_OCTAVE).long().clamp(max=self.counts.numel() - 1)
        self.counts += torch.bincount(index, minlength=self.counts.numel())
        self.sums += torch.bincount(index, weights=values, minlength=self.sums.numel())

    def top(self, share: float) -> float:
        """The fraction of the sum that the largest `share` of the values carry; NaN without values.

        All values in the bin that contains the cut count alike; they differ by at most 4.4 %.
        """
        total, amount = float(self.sums.sum()), share * float(self.counts.sum())
        if not total:
            return math.nan
        counts, sums = self.counts.flip(0).cumsum(0), self.sums.flip(0).cumsum(0)
        index = int((counts < amount).sum())
        before = float(counts[index - 1]) if index else 0.0
        inside = (amount - before) / (float(counts[index]) - before)
        above = float(sums[index - 1]) if index else 0.0
        return (above + inside * (float(sums[index]) - above)) / total


@dataclass(slots=True)
class State:
    """Sums over each different sequence that has a scored token, in the order in which sequences come. What repeats a
    sequence is added to it: it says nothing about others.
    """

    names: tuple[str, ...] = ()
    k3: Tail = field(default_factory=Tail)
    below: Magnitudes = field(default_factory=Magnitudes)
    above: Magnitudes = field(default_factory=Magnitudes)
    greatest: dict[str, float] = field(default_factory=lambda: {"rollout": -math.inf, "trainer": -math.inf})
    _ids: list[str] = field(default_factory=list)
    _where: list[Where] = field(default_factory=list)
    _repetitions: Repetitions = field(default_factory=Repetitions)
    _counts: list[Tensor] = field(default_factory=list)
    _sums: list[Tensor] = field(default_factory=list)
    _shifts: list[Tensor] = field(default_factory=list)
    _scale: list[Tensor] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        """Take in whole sequences; those without a token change nothing."""
        if not chunk.tokens.numel():
            return
        token_columns = columns(chunk)
        if "flipped" in chunk.labels:
            flipped = chunk.labels["flipped"]
            token_columns |= {"flipped": (flipped == 1).double(), "routes known": (flipped >= 0).double()}
            token_columns["flipped k3"] = token_columns["flipped"] * token_columns["k3"]
            token_columns["known k3"] = token_columns["routes known"] * token_columns["k3"]
        else:
            nothing = torch.zeros_like(chunk.rollout)
            token_columns |= dict.fromkeys(("flipped", "routes known", "flipped k3", "known k3"), nothing)
        present = chunk.counts > 0
        rows = present.nonzero().squeeze(-1).tolist()
        self._ids += [chunk.ids[row] for row in rows]
        self._where += [chunk.where[row] for row in rows]
        self._repetitions.add(chunk.content[present])
        self.names = tuple(token_columns)
        self._counts.append(chunk.counts[present])
        self._sums.append(torch.stack([_sequence_sums(column, chunk) for column in token_columns.values()], 1)[present])
        self._shifts.append(_shift_sums(chunk)[present])
        self._scale.append(_scale_sums(chunk, token_columns["usable"])[present])
        self._histograms(chunk, token_columns)

    def _histograms(self, chunk: Chunk, token_columns: dict[str, Tensor]) -> None:
        delta = chunk.delta[token_columns["usable"] > 0].clamp(-20.0, 20.0)
        self.k3.add(k3(delta))
        self.below.add(-delta[delta < 0])
        self.above.add(delta[delta > 0])
        for side in self.greatest:
            self.greatest[side] = max(self.greatest[side], float(getattr(chunk, side).max()))

    def _merged(self, parts: list[Tensor]) -> Tensor:
        return self._repetitions.merged(torch.cat(parts)) if parts else torch.zeros(0, dtype=torch.float64)

    @property
    def names_of_sequences(self) -> list[tuple[str, Where]]:
        """The id of each sequence, and the line that it was read from."""
        every = list(zip(self._ids, self._where, strict=True))
        return [every[row] for row in self._repetitions.different.tolist()]

    @property
    def counts(self) -> Tensor:
        """Scored tokens of each sequence, fp64 [B]."""
        return self._merged(self._counts)

    @property
    def tokens(self) -> int:
        """All tokens."""
        return int(self.counts.sum())

    def sums(self, name: str) -> Tensor:
        """The sums of a column over each sequence, fp64 [B]."""
        index = self.names.index(name)
        return self._merged([part[:, index] for part in self._sums])

    def total(self, name: str) -> float:
        """The sum of a column over all tokens."""
        return float(self.sums(name).sum()) if self.names else 0.0

    def shift(self, by: int) -> tuple[Tensor, Tensor]:
        """Summed distances, fp64 [B] each, of r to t at the same token, and to t `by` tokens later, over the same
        pairs.
        """
        distances = self._merged(self._shifts)[:, SHIFTS.index(by)]
        return distances[:, 0], distances[:, 1]

    @property
    def scale(self) -> Tensor:
        """fp64 [B, 2 halves, P bins, 2]: number of tokens, and sum of log |delta|, for each half of a sequence's
        tokens.
        """
        return self._merged(self._scale)


def _sequence_sums(column: Tensor, chunk: Chunk) -> Tensor:
    return torch.zeros(chunk.sequences, dtype=torch.float64).index_add_(0, chunk.sequence, column)


def _shift_sums(chunk: Chunk) -> Tensor:
    """fp64 [B, shifts, 2]."""
    sums = torch.zeros(chunk.sequences, len(SHIFTS), 2, dtype=torch.float64)
    for index, (distance, shifted_distance, sequence) in enumerate(shifted_distances(chunk)):
        sums[:, index, 0].index_add_(0, sequence, distance)
        sums[:, index, 1].index_add_(0, sequence, shifted_distance)
    return sums


def _scale_sums(chunk: Chunk, usable: Tensor) -> Tensor:
    """`State.scale` of one chunk."""
    bounds = torch.tensor(PROBABILITIES, dtype=torch.float64).log()
    bins = torch.bucketize(chunk.rollout, bounds)
    starts = chunk.counts.cumsum(0) - chunk.counts
    within = torch.arange(chunk.tokens.numel()) - starts[chunk.sequence]
    late = (2 * within >= chunk.counts[chunk.sequence]).long()
    compared = (usable > 0) & (bins < len(PROBABILITIES))
    cells = (chunk.sequence * 2 + late) * len(PROBABILITIES) + bins.clamp(max=len(PROBABILITIES) - 1)
    size = chunk.sequences * 2 * len(PROBABILITIES)
    logs = torch.where(compared, chunk.delta.abs().clamp(_LEAST, 20.0).log(), 0.0)
    sums = [torch.bincount(cells, weights=weights, minlength=size) for weights in (compared.double(), logs)]
    return torch.stack(sums, -1).view(chunk.sequences, 2, -1, 2)
