"""Runs hypotheses on a sample of the sequences first, and on all sequences those that the sample does not rule out."""

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
"""A sample has at least this many sequences and tokens. With fewer tokens, a wrong hypothesis correlates with a
difference by chance as much as a right one that is a part of a layer.
"""
_WORTH = 3
"""A sample is drawn only if there are this many times as many sequences; else it would save too little."""
_LEADING = 8
"""Of the hypotheses tried together, this many run on all sequences because they lead, even if they are ruled out
themselves: the cause may be a part of them.
"""
_REPRESENTATIVE = 0.5
"""A sample can judge a difference if it has, per token, at least this fraction of the squares of all sequences."""


@dataclass(slots=True)
class Screening:
    """Runs hypotheses for a case.

    sample: the case with some of its sequences; None if there are too few to choose from. ruled_out: hypotheses that
    ran on the sample alone.
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
        """The differences that the ruled-out hypotheses make on the sample."""
        return [each.simulated for each in self.ruled_out]

    def run(self, hypotheses: Sequence[Hypothesis]) -> list[Tried]:
        """Run hypotheses on the sample, then on all sequences those that may be the cause or that lead on the sample.
        Gives what ran on all sequences, for each party.

        A hypothesis is ruled out, for good, if it surely explains less of the sample than the best one. Two kinds skip
        the sample: packs, since they would hold other sequences in a sample, and hypotheses that only read what others
        computed, which costs nothing.
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
        """Run on all sequences the ruled-out hypotheses that may be true beside the best one: those that explain most
        of what it leaves on the sample; all of them, if that lies in other sequences; none, if the best one leaves no
        more than noise.
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

    Half of them are the sequences with most of the difference, so that a difference of few sequences is seen. The
    others are spread evenly over the rest, ordered by their difference.
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
    """The indices of those that the data do not surely tell from the best one, and of those that lead."""
    finite = {index: x for index, x in enumerate(simulated) if bool(x.isfinite().all())}
    first = min(finite, key=lambda index: difference.remains(finite[index]))
    return {first, *rivals(difference, finite, first), *_leading(difference, simulated)}


def beside(remainder: Difference, sample: Difference, simulated: Sequence[Tensor]) -> list[int]:
    """The indices of ruled-out hypotheses that may have made the remainder: those that lead on the sample; all of them
    if the sample has little of the remainder, so that it can't tell. simulated: the difference that each makes on the
    sample.
    """
    is_inside = torch.isin(remainder.sequence, sample.sequence)
    in_sample = remainder.at(is_inside)
    there, everywhere = (float((each.counted(each.d) ** 2).mean()) for each in (in_sample, remainder))
    if there < _REPRESENTATIVE * everywhere:
        return list(range(len(simulated)))
    return _leading(in_sample, simulated)


def _leading(difference: Difference, simulated: Sequence[Tensor]) -> list[int]:
    """The indices of those that explain most if they may be scaled, sure or not, since little is sure on a sample."""
    d, effects = difference.counted(difference.d), [difference.counted(x) for x in simulated]
    along = [float((d @ x).clamp(min=0) ** 2 / (x @ x)) for x in effects]
    order = sorted((index for index, part in enumerate(along) if part > 0), key=lambda index: -along[index])
    return order[:_LEADING]
