"""A micro-batch cut down to a few of its rows, on which a trial takes a fraction of the time."""

from __future__ import annotations

import torch
from torch import Tensor

from moeparity.errors import SpecError
from moeparity.evidence.explain.kernels import Kernels
from moeparity.evidence.explain.replaced import Choices, Replaced
from moeparity.evidence.explain.sample import Sample
from moeparity.evidence.explain.score import tokens_apart
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node


def few_rows(kernels: Kernels, choices: Choices, sample: Sample, count: int) -> Sample | None:
    """So many of the rows of which these choices give other bits, those furthest off; None if no row is, or if a row
    depends on others.
    """
    if not row_by_row(kernels.replaced, choices, sample):
        return None
    try:
        apart = rows_apart(kernels, choices, sample)
    except SpecError:
        return None
    mask = torch.zeros(apart.numel(), dtype=torch.bool)
    mask[apart.flatten().argsort(descending=True)[:count]] = True
    mask &= apart.flatten() > 0
    return cut(sample, mask.view(apart.shape)) if bool(mask.any()) else None


def row_by_row(replaced: Replaced, choices: Choices, sample: Sample) -> bool:
    """Whether under these choices no row depends on another one, and each is handed over by itself."""
    try:
        plan = replaced.bound(choices).at_phase(sample.phase)
    except SpecError:
        return False
    size = sample.results[0].shape[:2]
    return (
        not sample.earlier
        and replaced.nodes[-1].op.tokens.axis == 1
        and all(value.shape[:2] == size for value in (*sample.values.values(), *sample.results))
        and not any(_sees_others(plan, node) for node in replaced.all_nodes)
    )


def _sees_others(plan: Plan, node: Node) -> bool:
    return node.op.tokens.mixes or node.op.tokens.sees_rows({**plan.told_to(node), **plan.active(node)}, node.params)


def cut(sample: Sample, mask: Tensor) -> Sample:
    """Some tokens of a micro-batch, as one sequence; `mask` [b, t]."""
    return Sample(
        values={name: value[mask].unsqueeze(0) for name, value in sample.values.items()},
        results=tuple(result[mask].unsqueeze(0) for result in sample.results),
        phase=sample.phase,
        number=sample.number,
    )


def rows_apart(kernels: Kernels, choices: Choices, sample: Sample) -> Tensor:
    """How many elements of each token, [b, t], have other bits under these choices; 0 at padding. Raises SpecError."""
    axis = kernels.replaced.nodes[-1].op.tokens.axis
    apart = tokens_apart(sample.results, kernels.with_padding(choices, sample), axis)
    if apart is None:
        apart = torch.ones(sample.results[0].movedim(axis, 1).shape[:2], dtype=torch.int64)
    return apart if sample.real is None else apart * sample.real[0]
