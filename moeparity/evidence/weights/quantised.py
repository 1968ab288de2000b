"""Weights of which one checkpoint has codes and the other the numbers: whether the codes are those nearest to the
numbers, and if not, what the scales are instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from moeparity.evidence.weights.report import Finding
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.codes import E2M1, nearest_codes
from moeparity.inputs.weights.packed import CHANGED_SCALES, by_matrix, codes_and_scales, factors, spread, unpacked
from moeparity.inputs.weights.source import Packed
from moeparity.output.words import few
from moeparity.plan.edits import ScaleVerb

_TIE = 2.0**-12
"""By so much of its size a number may lie beyond the middle between two codes: a writer divides by the scale, or
multiplies by its reciprocal.
"""
_UNLIKE = 0.3
"""With the best scales, codes of 4 bits are off the numbers that they were made of by some 10 %, as a root of mean
squares, and codes of other weights by all of it.
"""
_ROUNDED = 2.0**-7
"""A scale in bf16 is off by less than this fraction."""
_MOST = 0.9
"""A clause on scales holds for so many of the blocks at least."""
_EXACT, _SPREADS = 0.02, 3.0
_PROBED = 8
_LEAST = 0.0005
OTHER_BITS = "other bits"
"""What a finding says where nothing is known of what stands in a tensor."""
_NUMBER = re.compile(r"\d+")
SAYS: dict[ScaleVerb, str] = {
    "missing": "all are 1",
    "transposed": "read as if their transpose lay there",
    "shifted": "each block has that of the next",
    "twice": "each is squared, as if applied twice",
    "inverted": "each is its reciprocal",
}
"""What was done to scales, in words."""


_Wrong = Literal["nothing", "rounding", "scales", "codes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What was told of the weights that one side has as codes. names: these weights, and the tensors that hold them.
    rounded: how many are the other side's, each number at its nearest code.
    """

    names: frozenset[str]
    rounded: int
    findings: tuple[Finding, ...]


def weights_as_codes(a: Checkpoint, b: Checkpoint) -> Held:
    """The weights that both checkpoints have, and not in the same format. Raises CheckpointError."""
    names: set[str] = set()
    findings, rounded = [], 0
    for name in a.entries.keys() & b.entries.keys():
        packs = [side.entries[name].packed for side in (a, b)]
        if _layout(packs[0]) == _layout(packs[1]):
            continue
        names |= {name, *(tensor for packed in packs if packed is not None for tensor in packed.tensors.values())}
        finding = _compared(a, b, name)
        findings += [] if finding is None else [finding]
        rounded += finding is None
    findings.sort(key=lambda finding: finding.tensor)
    return Held(names=frozenset(names), rounded=rounded, findings=tuple(findings))


def explain_codes(a: Checkpoint, b: Checkpoint, pairs: Mapping[str, list[Finding]]) -> None:
    """Of weights that both checkpoints have in one format: what their scales in B are of A's, where they have other
    bits of which nothing is known; and codes that changed under scales that did not.
    """
    for packed in (entry.packed for entry in b.entries.values() if entry.packed is not None):
        values, scales = packed.tensors["values"], packed.tensors["scales"]
        if not pairs.get(scales) and _is_unknown(pairs.get(values)):
            pairs[values][:] = [replace(pairs[values][0], says="other codes, under the scales that A has")]
        elif _is_unknown(pairs.get(scales)):
            says = _changed(*(factors(side.stored_tensor(scales), None, divides=False).float() for side in (a, b)))
            codes = "" if pairs.get(values) else ", for the codes that A has"
            pairs[scales][:] = [replace(pairs[scales][0], says=f"{says or OTHER_BITS}{codes}")]


def _is_unknown(findings: list[Finding] | None) -> bool:
    return findings is not None and [finding.says for finding in findings] == [OTHER_BITS]


def _changed(ours: Tensor, theirs: Tensor) -> str:
    """What A's scales, fp32, became in B's; empty if nothing that is known."""
    if ours.dim() == 2:
        for verb, words in SAYS.items():
            if torch.allclose(CHANGED_SCALES[verb](ours), theirs, rtol=_ROUNDED, atol=0):
                return words if verb == "missing" else f"A's scales: {words}"
    if torch.equal(torch.exp2(torch.log2(ours).ceil()), theirs):
        return "A's scales, raised to powers of two"
    ratios = theirs / ours
    is_one = bool(((ratios / ratios.median() - 1).abs() < _ROUNDED).all())
    return f"A's scales times {float(ratios.median()):.4g}" if is_one else ""


def _layout(packed: Packed | None) -> tuple[object, ...]:
    return () if packed is None else (packed.form.name, packed.block)


def _compared(a: Checkpoint, b: Checkpoint, name: str) -> Finding | None:
    """What is wrong with a weight, None if nothing is."""
    ours, theirs = a.entries[name], b.entries[name]
    if ours.shape != theirs.shape:
        says = f"{list(ours.shape)} in A, {list(theirs.shape)} in B"
        return Finding(tensor=name, sort="shape", side="", rows="", says=says)
    if ours.packed is not None and theirs.packed is not None:
        formats = " in A, ".join(f"{p.form.name} by {p.block[0]} x {p.block[1]}" for p in (ours.packed, theirs.packed))
        says = f"{formats} in B: two grids. Compare each with the weights that it was made of"
        return Finding(tensor=name, sort="dtype", side="", rows="", says=says)
    sides = ("A", a, b) if ours.packed is None else ("B", b, a)
    says = _says(*sides, name)
    return Finding(tensor=name, sort="differs", side="", rows="", says=says) if says else None


def _says(plain_side: str, plain: Checkpoint, coded: Checkpoint, name: str) -> str:
    """What a weight's codes are of the other side's numbers; empty if they are the nearest, or if the numbers are the
    codes multiplied out.
    """
    packed, stored = coded.entries[name].packed, coded.parts(name)
    assert packed is not None
    numbers = plain.tensor(name)
    if torch.equal(unpacked(stored, packed).to(numbers.dtype), numbers):
        return ""
    by_sentence: dict[str, list[str]] = {}
    weights = list(_matrices(numbers, packed))
    for place, (weight, parts) in enumerate(zip(weights, by_matrix(stored, packed), strict=True)):
        wrong, says = _of_matrix(weight, parts, packed, plain_side)
        if len(weights) == 1:
            says = _another(wrong, plain_side, plain, coded, name) or says
        by_sentence.setdefault(says, []).append(str(place))
    if len(weights) == 1 or len(by_sentence) == 1:
        return next(iter(by_sentence))
    by_sentence.pop("", None)
    return "; ".join(f"experts {few(places, 8)}: {says}" for says, places in by_sentence.items())


def _matrices(weight: Tensor, packed: Packed) -> Iterator[Tensor]:
    """A weight as the codes are stored: fp32 [rows, columns], of a stack one for each expert."""
    turned = packed.form.input_major or packed.form.transposed
    for matrix in weight if weight.dim() > 2 else [weight]:
        yield (matrix.mT if turned else matrix).float()


@dataclass(frozen=True, slots=True)
class _Fit:
    """The scales that make codes come nearest to numbers, fp32 [rows of blocks, columns of blocks] (NaN where all codes
    of a block are 0), and the error that they leave, as a fraction of the numbers' root of mean squares.
    """

    scales: Tensor
    error: float


def _fit(weight: Tensor, codes: Tensor, scales: Tensor, packed: Packed, index: Tensor | None) -> _Fit:
    blocks = torch.arange(scales.numel()).view(scales.shape)
    places = spread(blocks, packed.block, tuple(codes.shape), index).flatten()
    along, square = (
        torch.zeros(scales.numel(), dtype=torch.float64).index_add(0, places, values.double().flatten())
        for values in (weight * codes, codes * codes)
    )
    best = (along / square).view(scales.shape)
    remainder = weight.double().flatten() - best.nan_to_num().flatten()[places] * codes.double().flatten()
    return _Fit(best, float(remainder.norm() / weight.double().norm()))


def _of_matrix(weight: Tensor, parts: dict[str, Tensor], packed: Packed, side: str) -> tuple[_Wrong, str]:
    """What is wrong with the codes of a matrix, and a clause on it."""
    numbers, zeros, scales = codes_and_scales(parts, packed)
    codes, scales = (numbers if zeros is None else numbers - zeros).float(), scales.float()
    index = parts.get("index")
    off = _not_nearest(weight / spread(scales, packed.block, tuple(codes.shape), index), numbers, zeros, packed)
    if not bool(off.any()):
        return "nothing", ""
    if not bool(scales.isfinite().all()):
        return "scales", "its scales hold NaN or infinity"
    fit = _fit(weight, codes, scales, packed, index)
    if not fit.error < _UNLIKE:
        return "codes", f"codes of other weights: no scales make {side}'s numbers of them"
    room = _EXACT + _SPREADS * fit.error / (weight.numel() / scales.numel()) ** 0.5
    says = _of_scales(scales, fit.scales, room, side)
    if says:
        return "scales", says
    share = float(off.double().mean())
    part = f"{share:.1%}" if share > _LEAST else "less than 0.1%"
    return "rounding", f"{part} of its codes are not the nearest to {side}'s numbers"


def _not_nearest(scaled: Tensor, numbers: Tensor, zeros: Tensor | None, packed: Packed) -> Tensor:
    """bool [rows, columns]: the codes that another one is nearer than, to numbers that were divided by their scales."""
    shifted = scaled if zeros is None else scaled + zeros
    codes = nearest_codes(shifted, packed.form.code)
    nearest = torch.tensor(E2M1)[codes.int()] if packed.form.code == "e2m1" else codes.float()
    further = (shifted - numbers).abs() - (shifted - nearest).abs()
    return (nearest != numbers) & ~(further <= _TIE * shifted.abs())


def _of_scales(scales: Tensor, best: Tensor, room: float, side: str) -> str:
    """What scales are instead of the best ones; empty if they are these."""
    with_scale = best.isfinite() & (best != 0)

    def as_these(others: Tensor) -> bool:
        return bool(((scales[with_scale] / others[with_scale].float() - 1).abs() < room).double().mean() >= _MOST)

    if not bool(with_scale.any()) or as_these(best):
        return ""
    words = next((SAYS[verb] for verb in SAYS if as_these(CHANGED_SCALES[verb](best))), None)
    if words is not None:
        return f"other scales than fit {side}'s numbers: {words}"
    ratios = scales[with_scale] / best[with_scale].float()
    middle = float(ratios.median())
    if as_these(best * middle):
        return f"its scales are about {middle:.3g} times those that fit {side}'s numbers"
    unfit = float(((ratios - 1).abs() >= room).double().mean())
    low, high = (float(ratios.quantile(part)) for part in (0.05, 0.95))
    return f"its scales do not fit {side}'s numbers in {unfit:.0%} of the blocks: {low:.3g} to {high:.3g} times these"


def _another(wrong: _Wrong, plain_side: str, plain: Checkpoint, coded: Checkpoint, name: str) -> str:
    """Of which other weight codes or scales are, empty if of none or of several."""
    packed = coded.entries[name].packed
    assert packed is not None
    kin = [
        sibling for sibling in coded.entries if sibling != name and _NUMBER.sub("", sibling) == _NUMBER.sub("", name)
    ]
    scales = coded.stored_tensor(packed.tensors["scales"])
    if wrong == "scales" and scales.numel() > 1:
        same = [sibling for sibling in kin if _is_same(coded, sibling, scales)]
        return f"its scales have the bits of those of {same[0]}" if len(same) == 1 else ""
    if wrong != "codes":
        return ""
    (parts,) = by_matrix(coded.parts(name), packed)
    numbers, zeros, _ = codes_and_scales(parts, packed)
    codes = (numbers if zeros is None else numbers - zeros).float()[:_PROBED]
    fitting = [sibling for sibling in kin if sibling in plain.entries and _looks_like(plain, sibling, codes, packed)]
    return f"its codes are of {plain_side}'s {fitting[0]}" if len(fitting) == 1 else ""


def _is_same(coded: Checkpoint, sibling: str, scales: Tensor) -> bool:
    packed = coded.entries[sibling].packed
    return packed is not None and torch.equal(coded.stored_tensor(packed.tensors["scales"]), scales)


def _looks_like(plain: Checkpoint, sibling: str, codes: Tensor, packed: Packed) -> bool:
    """Whether the first rows of codes are of a weight's numbers."""
    if plain.entries[sibling].packed is not None:
        return False
    (weight,) = _matrices(plain.tensor(sibling), packed)
    rows = weight[: len(codes)]
    if rows.shape != codes.shape:
        return False
    groups = torch.ones(1 if packed.block[0] > 1 else len(codes), -(-codes.shape[1] // packed.block[1]))
    return _fit(rows, codes, groups, packed, None).error < _UNLIKE
