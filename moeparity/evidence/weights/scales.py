"""What the scales of codes are instead of those that fit the numbers: a mistake of loading, by its name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.inputs.weights.formats import Block
from moeparity.inputs.weights.packed import CHANGED_SCALES, spread
from moeparity.inputs.weights.source import Packed
from moeparity.plan.edits import ScaleVerb

ROUNDED = 2.0**-7
"""A scale in bf16 is off by less than this fraction."""
_MOST = 0.9
"""A clause on scales holds for so many of the blocks at least."""
_EXACT, _SPREADS = 0.02, 3.0
_SIZES = (2, 4, 8)
"""Blocks may be taken for blocks so many times as large."""
_ALL_ONE = "all are 1"
SAYS: dict[ScaleVerb, str] = {
    "missing": _ALL_ONE,
    "transposed": "read as if their transpose lay there",
    "shifted": "each block has that of the next",
    "twice": "each is squared, as if applied twice",
    "inverted": "each is its reciprocal",
}
"""What was done to scales, in words."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The scales that make codes come nearest to numbers, fp32 [rows of blocks, columns of blocks] (NaN where all codes
    of a block are 0), and the error that they leave, as a fraction of the numbers' root of mean squares.
    """

    scales: Tensor
    error: float


def fit(weight: Tensor, codes: Tensor, scales: Tensor, packed: Packed, index: Tensor | None) -> Fit:
    """The best scales for codes [rows, columns] of a weight; `scales` has their shape."""
    blocks = torch.arange(scales.numel()).view(scales.shape)
    places = spread(blocks, packed.block, tuple(codes.shape), index).flatten()
    along, square = (
        torch.zeros(scales.numel(), dtype=torch.float64).index_add(0, places, values.double().flatten())
        for values in (weight * codes, codes * codes)
    )
    best = (along / square).view(scales.shape)
    remainder = weight.double().flatten() - best.nan_to_num().flatten()[places] * codes.double().flatten()
    return Fit(best, float(remainder.norm() / weight.double().norm()))


def room(of: Fit, numbers: int) -> float:
    """By what fraction a scale of a weight of so many numbers may lie beside the best one, which is known so well."""
    return _EXACT + _SPREADS * of.error * math.sqrt(of.scales.numel() / numbers)


def holds(scales: Tensor, others: Tensor, within: float) -> bool:
    """Whether scales are these others, in nearly all blocks of which these are known."""
    ratios = (scales / others.float())[_with_codes(others)]
    return ratios.numel() > 0 and bool(((ratios - 1).abs() < within).double().mean() >= _MOST)


def _with_codes(best: Tensor) -> Tensor:
    """bool: the blocks whose best scale is known, since some of their codes are not 0."""
    return best.isfinite() & (best != 0)


def _mistaken(scales: Tensor, block: Block) -> Iterator[tuple[str, Tensor, float]]:
    """What may be done to the scales of a matrix, in words, what that makes of them, and by how much it multiplies a
    small relative error.
    """
    for verb, words in SAYS.items():
        yield words, CHANGED_SCALES[verb](scales), 2.0 if verb == "twice" else 1.0
    for times in _SIZES:
        # One row, or one column, is a group, which another size makes longer and no wider.
        steps = [times if side > 1 else 1 for side in block]
        down, across = (torch.arange(size) // step for size, step in zip(scales.shape, steps, strict=True))
        high, wide = (side * step for side, step in zip(block, steps, strict=True))
        larger = scales[down][:, across]
        if not torch.equal(larger, scales):
            yield f"each is taken for that of a block of {high} x {wide}", larger, 1.0


def changed(ours: Tensor, theirs: Tensor, block: Block, within: float) -> str:
    """What A's scales, fp32 [.., rows of blocks, columns of blocks], became in B's; empty if nothing that is known, or
    not the same in all matrices of a stack. within: by what fraction of itself a scale may be rounded.
    """
    pairs = list(zip(ours, theirs, strict=True)) if ours.dim() > 2 else [(ours, theirs)]
    sentences = {_changed(a, b, block, within) for a, b in pairs if not torch.equal(a, b)}
    return sentences.pop() if len(sentences) == 1 else ""


def _changed(ours: Tensor, theirs: Tensor, block: Block, within: float) -> str:
    for words, scales, _ in _mistaken(ours, block):
        if torch.allclose(scales, theirs, rtol=within, atol=0):
            return f"one number only in B: {words}" if words == _ALL_ONE else f"A's scales: {words}"
    if torch.equal(torch.exp2(torch.log2(ours).ceil()), theirs):
        return "A's scales, raised to powers of two"
    ratios = theirs / ours
    is_one = bool(((ratios / ratios.median() - 1).abs() < within).all())
    return f"A's scales times {float(ratios.median()):.4g}" if is_one else ""


def mistake_of(scales: Tensor, best: Tensor, whole: float, within: float, block: Block, side: str) -> str:
    """Which mistake made scales of the best ones for a side's numbers; empty if none of those that have a name. whole:
    what scales have of one for the whole tensor.
    """
    instead = f"other scales than fit {side}'s numbers"
    for words, others, times in _mistaken(best / whole, block):
        if holds(scales / whole, torch.where(best != 0, others, torch.nan), within * times):
            return f"{instead}: {words}"
    middle = float((scales / best)[_with_codes(best)].median())
    if not holds(scales, best * middle, within):
        return ""
    if whole != 1 and abs(middle / whole**2 - 1) < within:
        return f"{instead}: that of the whole tensor is its reciprocal"
    return f"its scales are about {middle:.3g} times those that fit {side}'s numbers"


def in_numbers(scales: Tensor, best: Tensor, within: float, side: str) -> str:
    """How far scales lie from the best ones for a side's numbers."""
    ratios = (scales / best.float())[_with_codes(best)]
    unfit = float(((ratios - 1).abs() >= within).double().mean())
    low, high = (float(ratios.quantile(part)) for part in (0.05, 0.95))
    return f"its scales do not fit {side}'s numbers in {unfit:.0%} of the blocks: {low:.3g} to {high:.3g} times these"
