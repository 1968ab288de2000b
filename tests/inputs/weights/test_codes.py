"""Every code of every format, against a scalar evaluation of its bits and against torch's own floats."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from moeparity.inputs.weights.codes import E2M1, joined, nearest_codes, numbers, powers, split
from moeparity.inputs.weights.formats import BITS, FORMATS, Packing
from moeparity.numerics.bits import same_bits


def scalar(code: int, exponents: int, fractions: int, bias: int) -> float:
    """What the bits of a small float stand for: sign, exponent, fraction; no infinities."""
    sign = -1.0 if code >> (exponents + fractions) else 1.0
    exponent = (code >> fractions) & (2**exponents - 1)
    fraction = (code & (2**fractions - 1)) / 2**fractions
    size = fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias)
    return sign * size


def test_all_256_codes_of_e4m3() -> None:
    codes = torch.arange(256).to(torch.uint8)
    ours = numbers(codes.view(torch.float8_e4m3fn), FORMATS["fp8"])
    for code in range(256):
        if code & 127 == 127:
            assert math.isnan(ours[code])
        else:
            assert float(ours[code]) == scalar(code, 4, 3, 7)
            assert math.copysign(1, ours[code]) == math.copysign(1, scalar(code, 4, 3, 7))


def test_all_16_codes_of_e2m1() -> None:
    for code in range(16):
        assert E2M1[code] == scalar(code, 2, 1, 1)
        assert math.copysign(1, E2M1[code]) == math.copysign(1, scalar(code, 2, 1, 1))
    pairs = torch.arange(256).to(torch.uint8).view(1, 256)
    ours = numbers(pairs, FORMATS["mxfp4-packed"]).view(256, 2)
    for pair in range(256):
        assert ours[pair].tolist() == [scalar(pair & 15, 2, 1, 1), scalar(pair >> 4, 2, 1, 1)]


def test_all_256_exponents() -> None:
    """Against torch's float8_e8m0fnu, whose last code is NaN too, and against Python's own powers."""
    codes = torch.arange(256).to(torch.uint8)
    ours = powers(codes)
    assert [float(each) for each in ours[:255]] == [math.ldexp(1.0, code - 127) for code in range(255)]
    assert math.isnan(ours[255])
    assert torch.equal(ours[:255], codes.view(torch.float8_e8m0fnu).float()[:255])


@pytest.mark.parametrize(
    ("packing", "bits"), [("pairs", 4), ("words", 4), ("words", 8), ("AWQ words", 4), ("words down", 4)]
)
def test_packed_codes_come_out_as_they_went_in(packing: Packing, bits: int) -> None:
    codes = torch.randint(2**bits, (32, 48), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    packed = joined(codes, packing, bits)
    assert packed.numel() * packed.element_size() * 8 == codes.numel() * bits
    assert torch.equal(split(packed, packing, bits), codes)


def test_the_place_of_each_code_in_a_word() -> None:
    """Number by number: an eighth of a word holds one code."""
    word = int.from_bytes(bytes((0x10, 0x32, 0x54, 0x76)), "little")
    assert split(torch.tensor([[word]], dtype=torch.int32), "words", 4).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert split(torch.tensor([[word]], dtype=torch.int32), "words down", 4).mT.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert split(torch.tensor([[word]], dtype=torch.int32), "AWQ words", 4).tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]


@pytest.mark.parametrize("name", ["fp8", "mxfp4", "int4-packed", "int8-packed", "gptq-int4", "gptq-int8"])
def test_the_nearest_code_is_the_nearest(name: str) -> None:
    """Each number against all codes, ties to the even one, beyond the range its end; zeros keep their sign."""
    code = FORMATS[name].code
    values = {
        "e4m3": [float(torch.tensor([c], dtype=torch.uint8).view(torch.float8_e4m3fn)) for c in range(127)],
        "e2m1": list(E2M1[:8]),
    }.get(code) or [float(c) for c in range(2 ** (BITS[code] - 1) if code[0] != "u" else 2 ** BITS[code])]
    ends = [(a + b) / 2 for a, b in pairwise(values)]
    tried = torch.tensor([*values, *ends, *(math.nextafter(end, 9e9) for end in ends), 1e9])
    got = nearest_codes(tried, code)
    places = got.view(torch.uint8) if code == "e4m3" else got
    for number, place in zip(tried.tolist(), places.tolist(), strict=True):
        distance = min(abs(number - value) for value in values)
        nearest = [at for at, value in enumerate(values) if abs(number - value) == distance]
        assert place in nearest
        assert len(nearest) == 1 or place % 2 == 0
    if code in ("e4m3", "e2m1"):
        negative = nearest_codes(-tried, code)
        top = 128 if code == "e4m3" else 8
        assert same_bits((negative.view(torch.uint8) - top).contiguous(), places.contiguous())
