"""Weights of which one checkpoint has codes and the other the numbers: whether the codes are those nearest to the
numbers, and if not, what the scales are instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from moeparity.evidence.weights.report import Finding
from moeparity.evidence.weights.scales import ROUNDED, Fit, changed, fit, holds, in_numbers, mistake_of, room
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.codes import E2M1, nearest_codes
from moeparity.inputs.weights.packed import by_matrix, codes_and_scales, factors, spread, unpacked
from moeparity.inputs.weights.rounded_to_fp8 import amax, through_fp8
from moeparity.inputs.weights.source import Packed
from moeparity.output.words import few

_TIE = 2.0**-12
"""By so much of its size a number may lie beyond the middle between two codes: a writer divides by the scale, or
multiplies by its reciprocal.
"""
_UNLIKE = 0.3
"""With the best scales, codes of 4 bits are off the numbers that they were made of by some 10 %, as a root of mean
squares, and codes of other weights by all of it.
"""
_TOPS = {"e4m3": (448.0, 448.0), "e2m1": (6.0, 6.0), "int8": (127.0, 128.0), "int4": (7.0, 8.0)}
"""Between which numbers the largest of a block lies, divided by a scale that was made of it."""
_OF_E4M3 = 2.0**-4
"""A scale in fp8_e4m3 is off by no more than this fraction."""
_PROBED = 8
_LEAST = 0.0005
_NEARLY, _MOSTLY = 0.99, 0.9
_SIDES = (128, 0)
"""Blocks in which engines round weights to fp8 as they load them; 0: one for the tensor."""
OTHER_BITS = "other bits"
NO_CAUSE = ("one number only in B", "B has A's rows")
"""What a finding says where nothing is known of what stands in a tensor; how one begins where the values are known, and
not how they came there.
"""
_MAY_LACK = "{}'s list of what to leave as it is may lack it"
_NUMBER = re.compile(r"\d+")

_Wrong = Literal["nothing", "ill-scaled", "rounding", "scales", "unfit", "codes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What was told of the weights that one side has as codes. names: these weights, and the tensors that hold them.
    rounded: how many are the other side's, each number at its nearest code. ill_scaled: those of them whose
    scales are not of their largest numbers.
    """

    names: frozenset[str] = frozenset()
    rounded: int = 0
    findings: tuple[Finding, ...] = ()
    ill_scaled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Sides:
    """The side that has weights as numbers, with its name, and the one that has them as codes. fits: the scales that
    fit the first blocks of weights. ill_scaled: as of `Held`.
    """

    name: str
    plain: Checkpoint
    coded: Checkpoint
    fits: dict[str, Fit | None] = field(default_factory=dict)
    ill_scaled: list[str] = field(default_factory=list)


def weights_as_codes(a: Checkpoint, b: Checkpoint) -> Held:
    """The weights that both checkpoints have, and not in the same format. Raises CheckpointError."""
    names: set[str] = set()
    findings, rounded, sides = [], 0, (_Sides("A", a, b), _Sides("B", b, a))
    for name in a.entries.keys() & b.entries.keys():
        packs = [side.entries[name].packed for side in (a, b)]
        if _layout(packs[0]) == _layout(packs[1]):
            continue
        names |= {name, *(tensor for packed in packs if packed is not None for tensor in packed.tensors.values())}
        finding = _compared(*sides, name)
        findings += [] if finding is None else [finding]
        rounded += finding is None
    findings.sort(key=lambda finding: finding.tensor)
    ill_scaled = tuple(sorted(name for side in sides for name in side.ill_scaled))
    return Held(names=frozenset(names), rounded=rounded, findings=tuple(findings), ill_scaled=ill_scaled)


def explain_codes(a: Checkpoint, b: Checkpoint, pairs: Mapping[str, list[Finding]]) -> None:
    """Of weights that both checkpoints have in one format: what their scales in B are of A's, where they have other
    bits of which nothing is known; and codes that changed under scales that did not. Of weights that neither has as
    codes: which of them went through fp8.
    """
    if a.formats or b.formats:
        for name in [name for name in pairs if _is_unknown(pairs[name])]:
            says = _through_fp8(a, b, name)
            pairs[name][:] = [replace(pairs[name][0], says=says or OTHER_BITS)]
    for packed in (entry.packed for entry in b.entries.values() if entry.packed is not None):
        values, scales = packed.tensors["values"], packed.tensors["scales"]
        if not pairs.get(scales) and _is_unknown(pairs.get(values)):
            pairs[values][:] = [replace(pairs[values][0], says="other codes, under the scales that A has")]
        for name in (packed.tensors[role] for role in ("scales", "second") if role in packed.tensors):
            if _is_unknown(pairs.get(name), *NO_CAUSE):
                (finding,) = pairs[name]
                ours, theirs = (factors(side.stored_tensor(name), None, divides=False).float() for side in (a, b))
                within = _OF_E4M3 if b.stored[name].dtype == "F8_E4M3" else ROUNDED
                says = changed(ours, theirs, packed.block, within) or finding.says
                codes = "" if pairs.get(values) else ", for the codes that A has"
                pairs[name][:] = [replace(finding, says=f"{says}{codes}")]


def _is_unknown(findings: list[Finding] | None, *beside: str) -> bool:
    """Whether all that is told of a tensor is that it has other bits, or begins with one of these words."""
    return findings is not None and len(findings) == 1 and findings[0].says.startswith((OTHER_BITS, *beside))


def _through_fp8(a: Checkpoint, b: Checkpoint, name: str) -> str:
    """Whether a matrix of numbers on both sides is A's after fp8 in B, in words."""
    entries = [side.entries.get(name) for side in (a, b)]
    if any(entry is None or entry.packed or len(entry.shape) != 2 for entry in entries):
        return ""
    ours, theirs = a.tensor(name), b.tensor(name)
    for side in _SIDES:
        if float((through_fp8(ours, side).to(ours.dtype) == theirs).double().mean()) > _NEARLY:
            blocks = f"each {side} x {side} numbers" if side else "all numbers"
            return f"A's numbers after fp8 with a scale for {blocks}: {_MAY_LACK.format('B')}"
    return ""


def _layout(packed: Packed | None) -> tuple[object, ...]:
    return () if packed is None else (packed.form.name, packed.block)


def _compared(a: _Sides, b: _Sides, name: str) -> Finding | None:
    """What is wrong with a weight, None if nothing is. a, b: the sides where A, or B, has it as numbers."""
    ours, theirs = a.plain.entries[name], b.plain.entries[name]
    if ours.shape != theirs.shape:
        says = f"{list(ours.shape)} in A, {list(theirs.shape)} in B"
        return Finding(tensor=name, sort="shape", side="", rows="", says=says)
    if ours.packed is not None and theirs.packed is not None:
        formats = " in A, ".join(f"{p.form.name} by {p.block[0]} x {p.block[1]}" for p in (ours.packed, theirs.packed))
        says = f"{formats} in B: two grids. Compare each with the weights that it was made of"
        return Finding(tensor=name, sort="dtype", side="", rows="", says=says)
    sides, coder = (a, b) if ours.packed is None else (b, a)
    says = _says(sides, name)
    if not says and a.plain.formats and b.plain.formats:
        says = f"numbers in {sides.name}, codes in {coder.name}: {_MAY_LACK.format(coder.name)}"
    return Finding(tensor=name, sort="differs", side="", rows="", says=says) if says else None


def _says(sides: _Sides, name: str) -> str:
    """What a weight's codes are of the other side's numbers; empty if they are the nearest, or if the numbers are the
    codes multiplied out.
    """
    packed, stored = sides.coded.entries[name].packed, sides.coded.parts(name)
    assert packed is not None
    numbers = sides.plain.tensor(name)
    if torch.equal(unpacked(stored, packed).to(numbers.dtype), numbers):
        return ""
    by_sentence: dict[str, list[str]] = {}
    weights = list(_matrices(numbers, packed))
    for place, (weight, parts) in enumerate(zip(weights, by_matrix(stored, packed), strict=True)):
        wrong, says = _of_matrix(weight, parts, packed, sides.name)
        if len(weights) == 1:
            says = _another(wrong, sides, name) or says
        if wrong == "ill-scaled" and name not in sides.ill_scaled:
            sides.ill_scaled.append(name)
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


def _codes(parts: dict[str, Tensor], packed: Packed) -> tuple[Tensor, Tensor, float]:
    """The codes of a matrix, less its zero points [rows, columns], and its scales, both fp32; what these have of a
    scale of the whole tensor.
    """
    numbers, zeros, scales = codes_and_scales(parts, packed)
    whole = float(factors(torch.ones(1), parts.get("second"), divides=packed.form.second_divides))
    return (numbers if zeros is None else numbers - zeros).float(), scales.float(), whole


def _of_matrix(weight: Tensor, parts: dict[str, Tensor], packed: Packed, side: str) -> tuple[_Wrong, str]:
    """What is wrong with the codes of a matrix, and a clause on it."""
    numbers, zeros, _ = codes_and_scales(parts, packed)
    codes, scales, whole = _codes(parts, packed)
    index = parts.get("index")
    scaled = weight / spread(scales, packed.block, tuple(codes.shape), index)
    off = _not_nearest(scaled, numbers, zeros, packed)
    if not bool(off.any()):
        return ("nothing" if _is_of_largest(scaled, packed) else "ill-scaled"), ""
    if not bool(scales.isfinite().all()):
        return "scales", "its scales hold NaN or infinity"
    best = fit(weight, codes, scales, packed, index)
    if not best.error < _UNLIKE:
        return "codes", f"codes of other weights: no scales make {side}'s numbers of them"
    within = room(best, weight.numel())
    if bool((best.scales.nan_to_num() != 0).any()) and not holds(scales, best.scales, within):
        rounding = _OF_E4M3 if packed.form.second else 0.0
        says = mistake_of(scales, best.scales, whole, within + rounding, packed.block, side)
        return ("scales", says) if says else ("unfit", in_numbers(scales, best.scales, within, side))
    share = float(off.double().mean())
    part = f"{share:.1%}" if share > _LEAST else "less than 0.1%"
    return "rounding", f"{part} of its codes are not the nearest to {side}'s numbers"


def _is_of_largest(scaled: Tensor, packed: Packed) -> bool:
    """Whether the largest number of nearly each block, divided by the scale, is the largest code, as far as a rounded
    scale leaves it; also where nobody can tell: with zero points, and with powers of two.
    """
    if packed.form.code not in _TOPS or packed.form.scale_dtypes == ("U8",):
        return True
    (low, high), rounding = _TOPS[packed.form.code], _OF_E4M3 if packed.form.second else ROUNDED
    largest = amax(scaled, packed.block)
    fits = (largest == 0) | ((largest > low * (1 - rounding)) & (largest < high * (1 + rounding)))
    return float(fits.double().mean()) > _MOSTLY


def _not_nearest(scaled: Tensor, numbers: Tensor, zeros: Tensor | None, packed: Packed) -> Tensor:
    """bool [rows, columns]: the codes that another one is nearer than, to numbers that were divided by their scales."""
    shifted = scaled if zeros is None else scaled + zeros
    codes = nearest_codes(shifted, packed.form.code)
    nearest = torch.tensor(E2M1)[codes.int()] if packed.form.code == "e2m1" else codes.float()
    further = (shifted - numbers).abs() - (shifted - nearest).abs()
    return (nearest != numbers) & ~(further <= _TIE * shifted.abs())


def _another(wrong: _Wrong, sides: _Sides, name: str) -> str:
    """Of which other weight codes or scales are, empty if of none or of several."""
    coded = sides.coded
    packed = coded.entries[name].packed
    assert packed is not None
    kin = [
        sibling for sibling in coded.entries if sibling != name and _NUMBER.sub("", sibling) == _NUMBER.sub("", name)
    ]
    stored = coded.stored_tensor(packed.tensors["scales"])
    if wrong in ("scales", "unfit") and bool((stored != stored.flatten()[0]).any()):
        same = [sibling for sibling in kin if _is_same(coded, sibling, stored)]
        if same or wrong == "scales":
            return f"its scales have the bits of those of {same[0]}" if len(same) == 1 else ""
        same = [sibling for sibling in kin if _fits(sides, sibling, name)]
        return f"its scales fit {sides.name}'s {same[0]}" if len(same) == 1 else ""
    if wrong != "codes":
        return ""
    (parts,) = by_matrix(coded.parts(name), packed)
    codes = _codes(parts, packed)[0][:_PROBED]
    plain = sides.plain
    fitting = [sibling for sibling in kin if sibling in plain.entries and _looks_like(plain, sibling, codes, packed)]
    return f"its codes are of {sides.name}'s {fitting[0]}" if len(fitting) == 1 else ""


def _fits(sides: _Sides, sibling: str, name: str) -> bool:
    """Whether the scales of a weight fit another one's numbers and codes, as far as their first blocks tell."""
    best = sides.fits[sibling] if sibling in sides.fits else sides.fits.setdefault(sibling, _first(sides, sibling))
    packed = sides.coded.entries[name].packed
    assert packed is not None
    (parts,) = by_matrix(sides.coded.parts(name), packed)
    _, scales, whole = _codes(parts, packed)
    first = scales[:_PROBED] / whole
    if best is None or first.numel() < _PROBED or first.shape != best.scales.shape:
        return False
    return holds(first, best.scales, room(best, best.scales.numel() * packed.block[0] * packed.block[1]))


def _first(sides: _Sides, name: str) -> Fit | None:
    """The scales that fit the first rows of blocks of a weight, less that of the whole tensor; None where it is not
    numbers on one side and codes in order on the other.
    """
    packed = sides.coded.entries[name].packed
    if packed is None or name not in sides.plain.entries or sides.plain.entries[name].packed is not None:
        return None
    if sides.coded.reordered(name):
        return None
    (parts,) = by_matrix(sides.coded.parts(name), packed)
    (weight,) = _matrices(sides.plain.tensor(name), packed)
    codes, scales, whole = _codes(parts, packed)
    rows = _PROBED * packed.block[0]
    best = fit(weight[:rows], codes[:rows], scales[:_PROBED], packed, None)
    return replace(best, scales=best.scales / whole)


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
    return fit(rows, codes, groups, packed, None).error < _UNLIKE
