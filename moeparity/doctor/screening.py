"""Hypotheses on a sample of the sequences first, and on all if the sample does not rule them out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from moeparity.doctor.case import Case, Tried
from moeparity.doctor.hypotheses import AS_CONFIGURED, Hypothesis
from moeparity.doctor.judge import Difference, legal_sizes, rivals
from moeparity.doctor.readings import Cut, Packs, Shift
from moeparity.doctor.report import BEYOND, Sampled

SEQUENCES = 8
TOKENS = 384
"""A sample has at least so many of both: of fewer tokens, what is no cause correlates with a difference by chance, as
much as a part of a layer does that is one.
"""
_WORTH = 3
"""A sample is drawn where there are so many times its sequences; else it would save too little."""
_LEADING = 8
"""So many of those tried together run on all sequences because they lead, be they possible or not: parts of
them may be it.
"""
_SPEAKS = 0.5
"""A sample speaks for a difference if it has so much of what all sequences have of it, per token."""


@dataclass(slots=True)
class Screening:
    """Runs hypotheses for a case.

    sample: the case of some of its sequences; None where there are too few to choose from. ruled_out: what ran on these
    alone.
    """

    case: Case
    sample: Case | None
    ruled_out: list[Tried] = field(default_factory=list)

    @classmethod
    def of(cls, case: Case) -> Screening:
        """The screening of a case, with the sample drawn and nothing run."""
        rows = sampled(case.difference)
        if rows is None:
            return cls(case, None)
        few = case.of(rows)
        return cls(case, replace(few, bench=replace(few.bench, progress=case.bench.progress)))

    @property
    def summary(self) -> Sampled | None:
        """How many sequences the sample has, and what it ruled out; None without a sample."""
        if self.sample is None:
            return None
        count = int(torch.unique(self.sample.difference.sequence).numel())
        return Sampled(sequences=count, ruled_out=len(self.ruled_out))

    @property
    def _simulated(self) -> list[Tensor]:
        """What those that are ruled out make of the sample."""
        return [each.simulated for each in self.ruled_out]

    def run(self, hypotheses: Sequence[Hypothesis]) -> list[Tried]:
        """Those of the hypotheses that may be the cause or that lead, for each party, on all sequences.

        What the sample surely tells from the best one is ruled out. A pack has other sequences in it on a sample, and
        what only reads the values of others costs nothing: these run on all at once. What is ruled out stays so.
        """
        if self.sample is None:
            return _run(self.case, hypotheses)
        names = {each.hypothesis.name for each in self.ruled_out}
        hypotheses = [each for each in hypotheses if each.name not in names]
        sampled_first = [each for each in hypotheses if not isinstance(each.reading, Packs | Shift | Cut)]
        on_sample = _run(self.sample, sampled_first)
        every = [*on_sample, *self.sample.tried([AS_CONFIGURED])]
        remaining = possible(self.sample.difference, [each.simulated for each in every])
        out = {each.hypothesis.name for each in on_sample} - {every[index].hypothesis.name for index in remaining}
        self.ruled_out += [each for each in on_sample if each.hypothesis.name in out]
        return _run(self.case, [each for each in hypotheses if each.name not in out])

    def run_beside(self, first: Tried) -> list[Tried]:
        """Those ruled out that may be wrong beside the best hypothesis, on all sequences: what explains most of what it
        leaves in the sample. All of them, if that lies in other sequences. None if it leaves no more than noise.
        """
        if self.sample is None:
            return []
        effect = first.simulated - self.case.legal_difference
        remainder = replace(self.case.difference, d=self.case.difference.d - effect)
        if remainder.mean(remainder.d.abs()).low < BEYOND * legal_sizes(self.case.legal)[0]:
            return []
        again = [self.ruled_out[index] for index in beside(remainder, self.sample.difference, self._simulated)]
        names = {each.hypothesis.name for each in again}
        self.ruled_out = [each for each in self.ruled_out if each.hypothesis.name not in names]
        return _run(self.case, list({each.hypothesis.name: each.hypothesis for each in again}.values()))


def sampled(difference: Difference) -> Tensor | None:
    """Some of the sequences, int64 [n], in ascending order; None if there are too few to choose from.

    Half of them have most of the difference, so that one which is in few sequences is seen. The others lie evenly
    between those with most and least of the rest.
    """
    rows = torch.unique(difference.sequence)
    size = max(SEQUENCES, math.ceil(TOKENS * rows.numel() / difference.d.numel()))
    if rows.numel() < _WORTH * size:
        return None
    most_first = rows[difference.squares[rows].argsort(descending=True, stable=True)]
    half = size // 2
    even = torch.linspace(half, rows.numel() - 1, size - half).round().long()
    return torch.cat([most_first[:half], most_first[even]]).sort().values


def _run(case: Case, hypotheses: Sequence[Hypothesis]) -> list[Tried]:
    case.bench.score(hypotheses, [case.profile_in_fp32(party) for party in case.recorded])
    return case.tried(hypotheses)


def possible(difference: Difference, simulated: Sequence[Tensor]) -> set[int]:
    """Those that the data do not surely tell from the best one, and those that lead."""
    finite = {index: x for index, x in enumerate(simulated) if bool(x.isfinite().all())}
    first = min(finite, key=lambda index: float(((difference.d - finite[index]) ** 2).sum()))
    return {first, *rivals(difference, finite, first), *_leading(difference, simulated)}


def beside(remainder: Difference, sample: Difference, simulated: Sequence[Tensor]) -> list[int]:
    """Of those ruled out, which may have made what is left of all sequences: those that lead in the sample; all of them
    if the sample has little of what is left, so that it can't tell. simulated: what each makes of the sample.
    """
    is_inside = torch.isin(remainder.sequence, sample.sequence)
    in_sample = Difference(d=remainder.d[is_inside], sequence=remainder.sequence[is_inside])
    if _mean_square(in_sample.d) < _SPEAKS * _mean_square(remainder.d):
        return list(range(len(simulated)))
    return _leading(in_sample, simulated)


def _leading(difference: Difference, simulated: Sequence[Tensor]) -> list[int]:
    """Those that explain most if they may be scaled; be it sure or not, since a sample makes little sure."""
    along = [float((difference.d * x).sum().clamp(min=0) ** 2 / (x * x).sum()) for x in simulated]
    order = sorted((index for index, part in enumerate(along) if part > 0), key=lambda index: -along[index])
    return order[:_LEADING]


def _mean_square(x: Tensor) -> float:
    return float((x * x).mean())
