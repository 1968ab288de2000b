"""Codes of quantised numbers: how they are packed into bytes and words, and which numbers they stand for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from moeparity.inputs.weights.formats import BITS, Code, Format, Packing

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""What the 16 codes of fp4_e2m1 stand for (OCP Microscaling Formats 1.0, section 5.3.3)."""
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""In which eighth of a word AWQ puts output 0, 1, ... (AutoAWQ 0.2.9, awq/utils/packing_utils.py)."""
_ABOVE_ZERO = {"int4": 8, "int8": 128}
_WORD = 32


def numbers(packed: Tensor, form: Format) -> Tensor:
    """What the stored codes stand for, without scales: fp32 for floating-point codes, int16 for whole numbers, in the
    shape of `unpacked_shape`.
    """
    if form.code == "e4m3":
        # Looked up: four times as quick as torch's own conversion, whose numbers these are.
        every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
        return every.index_select(0, packed.contiguous().view(torch.uint8).flatten().int()).view(packed.shape)
    if form.packing == "one by one":
        return packed.to(torch.int16)
    if form.code == "e2m1":
        # Both numbers of a byte at once, which is quick.
        pairs = torch.tensor([(E2M1[byte & 15], E2M1[byte >> 4]) for byte in range(256)])
        return pairs.index_select(0, packed.flatten().int()).view(*packed.shape[:-1], -1)
    codes = split(packed, form.packing, BITS[form.code])
    return codes.to(torch.int16) - _ABOVE_ZERO.get(form.code, 0)


def unpacked_shape(stored: tuple[int, ...], form: Format) -> tuple[int, ...]:
    """The shape of the numbers in a stored tensor, still input-major if that is. Of the four axes experts, outputs,
    groups and bytes, the last two become one.
    """
    stored = (*stored[:-2], stored[-2] * stored[-1]) if len(stored) == 4 else stored
    each = per_word(form.packing, BITS[form.code])
    return (stored[0] * each, *stored[1:]) if form.packing == "words down" else (*stored[:-1], stored[-1] * each)


def packed_shape(shape: tuple[int, ...], packing: Packing, bits: int) -> tuple[int, ...]:
    """The shape in which numbers of a shape [..., rows, columns] are stored."""
    each = per_word(packing, bits)
    return (-(-shape[0] // each), *shape[1:]) if packing == "words down" else (*shape[:-1], -(-shape[-1] // each))


def per_word(packing: Packing, bits: int) -> int:
    """How many codes are in a stored number."""
    return {"one by one": 1, "pairs": 2}.get(packing, _WORD // bits)


def split(packed: Tensor, packing: Packing, bits: int) -> Tensor:
    """The codes, uint8, of packed bytes [..., rows, columns] or words (int32) [rows, columns]."""
    if packing == "words down":
        return split(packed.mT.contiguous(), "words", bits).mT.contiguous()
    whole = packed.contiguous().view(torch.uint8)
    codes = whole if bits == 8 else torch.stack((whole & 15, whole >> 4), -1).flatten(-2)
    if packing == "AWQ words":
        return _words(codes)[..., AWQ_PLACES].flatten(-2)
    return codes


def joined(codes: Tensor, packing: Packing, bits: int) -> Tensor:
    """Codes, uint8 [..., rows, columns], packed: the inverse of `split`. Words that would not be full end in zeros."""
    if packing == "words down":
        return joined(codes.mT.contiguous(), "words", bits).mT.contiguous()
    each = per_word(packing, bits)
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % each))
    if packing == "AWQ words":
        places = [AWQ_PLACES.index(place) for place in range(each)]
        codes = _words(codes)[..., places].flatten(-2)
    whole = codes if bits == 8 else codes[..., 0::2] | codes[..., 1::2] << 4
    return whole.contiguous() if packing == "pairs" else whole.contiguous().view(torch.int32)


def _words(codes: Tensor) -> Tensor:
    """Codes of 4 bits, eight together."""
    return codes.view(*codes.shape[:-1], -1, 8)


def nearest_codes(scaled: Tensor, code: Code) -> Tensor:
    """The codes nearest to numbers (fp32) that were divided by their scales: halves to even, beyond the range its end.
    fp8_e4m3, uint8 for e2m1, and int16 for whole numbers, without what packed ones are stored above.
    """
    if code == "e4m3":
        return scaled.clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    if code == "e2m1":
        # Between two neighbours half the step; a tie goes to the code whose last bit is 0.
        sizes = torch.tensor(E2M1[:8])
        ends, size = (sizes[:-1] + sizes[1:]) / 2, scaled.abs()
        above = torch.stack([size >= end if index % 2 else size > end for index, end in enumerate(ends)])
        return (above.sum(0) + 8 * torch.signbit(scaled)).to(torch.uint8)
    least, most = (
        (0, 2 ** BITS[code] - 1) if code.startswith("u") else (-(2 ** (BITS[code] - 1)), 2 ** (BITS[code] - 1) - 1)
    )
    return scaled.round().clamp(least, most).to(torch.int16)


def powers(exponents: Tensor) -> Tensor:
    """2^(exponent - 127), fp32, of biased exponents (uint8); 255 stands for NaN (OCP Microscaling Formats 1.0)."""
    table = torch.tensor([math.ldexp(1.0, exponent - 127) for exponent in range(255)] + [math.nan])
    return table[exponents.int()]
