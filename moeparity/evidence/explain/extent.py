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
from moeparity.evidence.explain.sample import Ports, Sample
from moeparity.numerics.bits import int_view

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
            self.first = _place(sample, *differs.nonzero()[0].tolist())
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


def _place(sample: Sample, sequence: int, position: int) -> TokenPlace:
    row, column = sample.place(sequence, position)
    if not sample.requests:
        return TokenPlace(forward=sample.number, sequence=row, position=column)
    request, position = sample.requests[column]
    return TokenPlace(forward=sample.number, sequence=row, position=position, request=request)


def extent_of(kernels: Kernels, choices: Choices, samples: Iterable[Sample]) -> Extent | None:
    """Of which tokens bits are other ones under these choices; None where shapes are, or where nothing runs."""
    counted = _Counted()
    for sample in samples:
        trial = kernels.outputs(choices, sample)
        axis = 1 if sample.real is not None else kernels.replaced.nodes[-1].op.token_axis
        differs = None if trial is None else _differs(sample.compared, trial, axis)
        if trial is None or differs is None:
            return None
        counted.add(differs, kernels.ids(sample, choices), sample)
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


def _differs(ports: Ports, trial: Ports, axis: int) -> Tensor | None:
    """Which tokens have other bits at any port, bool [B, T]. None if shapes differ or have no axis of tokens."""
    differs: Tensor | None = None
    for recorded, computed_port in zip(ports, trial, strict=True):
        if min(recorded.dim(), computed_port.dim()) <= axis:
            return None
        value, computed = recorded.movedim(axis, 1), computed_port.movedim(axis, 1)
        if value.shape != computed.shape or (differs is not None and value.shape[:2] != differs.shape):
            return None
        elements = int_view(value) != int_view(computed) if value.dtype == computed.dtype else value != computed
        of_port = elements.reshape(*value.shape[:2], -1).any(-1)
        differs = of_port if differs is None else differs | of_port
    return differs


def _born(value: Tensor, computed: Tensor) -> int:
    """How many elements are NaN or infinite where the computed one is finite."""
    return int((~torch.isfinite(value) & torch.isfinite(computed)).sum())
