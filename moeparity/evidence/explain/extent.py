"""Of which tokens other bits are that nothing explains, and whether they are those that went to one expert."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from moeparity.evidence.explain.kernels import Kernels
from moeparity.evidence.explain.replaced import Choices
from moeparity.evidence.explain.report import ExpertTokens, Extent, TokenPlace
from moeparity.evidence.explain.sample import Sample
from moeparity.evidence.explain.score import tokens_apart

NAMED: Final = 2
"""Where more experts than that have all tokens in question, none of them is known to be why."""


@dataclass(slots=True)
class _Counted:
    """Tokens, over all micro-batches: with other bits and all; so for each expert that tokens went to."""

    differing: int = 0
    tokens: int = 0
    not_finite: int = 0
    first: TokenPlace | None = None
    of_expert: Counter[int] = field(default_factory=Counter)
    differing_of_expert: Counter[int] = field(default_factory=Counter)

    def add(self, differs: Tensor, ids: Tensor | None, sample: Sample) -> None:
        """Count a micro-batch; differs [B, T] bool, ids [B, T, K], of tokens that are no padding."""
        self.differing += int(differs.sum())
        self.tokens += differs.numel()
        if self.first is None and bool(differs.any()):
            self.first = sample.place(*differs.nonzero()[0].tolist())
        if ids is not None and ids.shape[:2] == differs.shape:
            for expert in sorted(set(ids.flatten().tolist())):
                goes = (ids == expert).any(-1)
                self.of_expert[expert] += int(goes.sum())
                self.differing_of_expert[expert] += int((goes & differs).sum())

    @property
    def experts(self) -> tuple[ExpertTokens, ...]:
        """Those that every token with other bits went to; of these, where there are any, those no other token did."""
        common = [expert for expert, count in self.differing_of_expert.items() if count == self.differing]
        alone = [expert for expert in common if self.of_expert[expert] == self.differing]
        experts = sorted(alone or common)
        if not 0 < self.differing < self.tokens or len(experts) > NAMED:
            return ()
        return tuple(ExpertTokens(expert=e, differing=self.differing, tokens=self.of_expert[e]) for e in experts)


def extent_of(kernels: Kernels, choices: Choices, samples: Iterable[Sample]) -> Extent | None:
    """Of which tokens bits are other ones under these choices; None where shapes are, or where nothing runs."""
    counted = _Counted()
    for sample in samples:
        trial = kernels.outputs(choices, sample)
        axis = 1 if sample.real is not None else kernels.replaced.nodes[-1].op.tokens.axis
        apart = None if trial is None else tokens_apart(sample.compared, trial, axis)
        if trial is None or apart is None:
            return None
        counted.add(apart > 0, kernels.ids(sample, choices), sample)
        counted.not_finite += sum(map(_born, sample.compared, trial))
    if counted.first is None:
        return None
    return Extent(
        differing=counted.differing,
        tokens=counted.tokens,
        first=counted.first,
        not_finite=counted.not_finite,
        experts=counted.experts,
    )


def _born(value: Tensor, computed: Tensor) -> int:
    """How many elements are NaN or infinite where the computed one is finite."""
    return int((~torch.isfinite(value) & torch.isfinite(computed)).sum())
