"""Grids of 8 bits and GEMMs of their codes: an evaluation number by number in exact arithmetic, and torch's own."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.numerics.quantised import (
    FP4,
    INT4,
    LARGEST,
    Codes,
    Grid,
    quantised,
    raised_to_power,
    scaled_product,
    to_codes,
)
from tests.numerics.scalar import fma, multiply, nearest
from tests.ops.test_kv_cache import code_of

FP8, FP32 = torch.float8_e4m3fn, torch.float32
Tensor = torch.Tensor


def drawn(rows: int, columns: int, seed: int = 0) -> Tensor:
    """bf16 numbers of many sizes, with ties of the grid, zeros of both signs and a row of zeros."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=g) * 2.0 ** torch.randint(-14, 6, (rows, columns), generator=g)
    x[:, ::5] = torch.arange(x[:, ::5].numel()).reshape(rows, -1) / 16
    x[-1] = 0
    x[-1, ::2] = -0.0
    return x.bfloat16()


def divided(a: float, b: float) -> float:
    return math.copysign(nearest(Fraction(a) / Fraction(b), FP32), math.copysign(1, a)) if a else a


def raised(scale: float) -> float:
    exponent = -126
    while Fraction(2) ** exponent < Fraction(scale):
        exponent += 1
    return 2.0**exponent


def by_scalars(x: Tensor, grid: Grid) -> tuple[list[list[float]], list[list[float]]]:
    """Codes, as bits of fp8 or whole numbers, and scales: one number after another."""
    values = x.float().tolist()
    high, wide = grid.block[0] or len(values), grid.block[1] or len(values[0])
    top = LARGEST[grid.dtype]
    codes = [[0.0] * len(values[0]) for _ in values]
    scales: list[list[float]] = []
    for top_row in range(0, len(values), high):
        scales.append([])
        for first in range(0, len(values[0]), wide):
            places = [
                (i, j)
                for i in range(top_row, min(top_row + high, len(values)))
                for j in range(first, min(first + wide, len(values[0])))
            ]
            amax = max(nearest(grid.floor, FP32), *(abs(values[i][j]) for i, j in places), 0.0)
            scale = divided(amax, top) if grid.scale_by == "divided" else multiply(amax, divided(1.0, top), FP32)
            scale = raised(scale) if grid.power else scale
            scales[-1].append(scale)
            for i, j in places:
                codes[i][j] = code(values[i][j], scale, amax, grid)
    return codes, scales


SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Of the codes of e2m1, from the first on."""


def code(value: float, scale: float, amax: float, grid: Grid) -> float:
    if grid.quotient == "divided":
        scaled = divided(value, scale)
    elif grid.quotient == "from_largest" and not grid.power:
        scaled = multiply(value, divided(LARGEST[grid.dtype], amax), FP32)
    else:
        scaled = multiply(value, divided(1.0, scale), FP32)
    if grid.dtype in (torch.int8, INT4):
        return min(max(round(Fraction(scaled)), -LARGEST[grid.dtype] - 1), LARGEST[grid.dtype])
    if grid.dtype == FP4:
        place = min(range(8), key=lambda each: (abs(Fraction(SIZES[each]) - abs(Fraction(scaled))), each % 2))
        return math.copysign(SIZES[place], scaled)
    return code_of(scaled, "fp8_e4m3", saturates=True)


BLOCKS = {"group": (1, 8), "token": (1, 0), "tensor": (0, 0), "block": (4, 8), "short": (3, 7), "one": (1, 1)}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("quotient", ["divided", "reciprocal", "from_largest"])
@pytest.mark.parametrize(("scale_by", "power"), [("divided", False), ("reciprocal", False), ("reciprocal", True)])
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(7, 24), (1, 24), (7, 1), (1, 1)])
def test_codes_and_scales_are_those_of_scalars(
    block: str, quotient: str, scale_by: str, power: bool, dtype: torch.dtype, rows: int, columns: int
) -> None:
    floor = 1e-10 if block != "token" else 1 / 512
    grid = Grid(dtype=dtype, block=BLOCKS[block], power=power, scale_by=scale_by, quotient=quotient, floor=floor)
    x = drawn(rows, columns)
    result = quantised(x, grid)
    codes, scales = by_scalars(x, grid)
    bits = result.codes.view(torch.uint8) if dtype == FP8 else result.codes
    assert bits.tolist() == codes
    assert same_bits(result.scales, torch.tensor(scales))


def test_the_ways_to_a_code_give_other_codes() -> None:
    """Or the choices would be one."""
    x = torch.randn(2048, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    ways = [*product(("divided",), ("divided", "reciprocal", "from_largest")), ("reciprocal", "divided")]
    grids = [
        Grid(dtype=FP8, block=(1, 16), power=False, floor=1e-10, scale_by=scale_by, quotient=quotient)
        for scale_by, quotient in ways
    ]
    codes = [quantised(x, grid).codes.view(torch.uint8) for grid in grids]
    assert not any(torch.equal(a, b) for i, a in enumerate(codes) for b in codes[:i])


def test_zeros_have_the_scale_of_the_floor() -> None:
    grid = Grid(dtype=FP8, block=(1, 4), power=False, scale_by="divided", quotient="divided", floor=1e-4)
    result = quantised(torch.zeros(2, 4), grid)
    assert same_bits(result.scales, torch.full((2, 1), nearest(Fraction(nearest(1e-4, FP32)) / 448, FP32)))
    assert result.codes.view(torch.uint8).tolist() == [[0] * 4] * 2


def test_a_nan_takes_its_group_with_it_and_no_other() -> None:
    x = torch.ones(1, 8)
    x[0, 2] = math.nan
    grid = Grid(dtype=FP8, block=(1, 4), power=False, scale_by="divided", quotient="divided", floor=1e-10)
    result = quantised(x, grid)
    assert result.codes.float().isnan().tolist() == [[True] * 4 + [False] * 4]


def test_powers_are_raised_by_their_bits() -> None:
    scales = torch.tensor([1.0, math.nextafter(1.0, 2), 1 + 2**-23, 3.0, 4.0, 2.0**-126, 2.0**-140, 0.3])
    assert raised_to_power(scales).tolist() == [
        1.0,
        2.0 if float(scales[1]) > 1 else 1.0,
        2.0,
        4.0,
        4.0,
        2.0**-126,
        2.0**-126,
        0.5,
    ]


def test_too_large_numbers_are_the_ends_of_the_range() -> None:
    x = torch.tensor([1e9, -1e9, math.inf, 126.5, 127.5, -127.5, -128.5])
    assert to_codes(x, torch.int8).tolist() == [127, -128, 127, 126, 127, -128, -128]
    assert to_codes(x[:3], FP8).float().tolist() == [448.0, -448.0, 448.0]


def operands(m: int, n: int, k: int, activations: tuple[int, int], weights: tuple[int, int]) -> tuple[Codes, Codes]:
    plain = {"dtype": FP8, "power": False, "scale_by": "divided", "quotient": "divided", "floor": 1e-10}
    x = quantised(drawn(m, k, seed=m), Grid(**plain, block=activations))  # type: ignore[arg-type]
    return x, quantised(drawn(n, k, seed=n + 1), Grid(**plain, block=weights))  # type: ignore[arg-type]


def exact(x: Tensor, weight: Tensor) -> Tensor:
    """Sums without an error but the last rounding: products of codes are whole multiples of 2^-18."""
    return torch.nn.functional.linear(x.double(), weight.double()).float()


@pytest.mark.parametrize(("m", "n", "k"), [(3, 5, 24), (1, 5, 24), (3, 1, 24), (2, 2, 8)])
@pytest.mark.parametrize("part", [8, 4, None])
@pytest.mark.parametrize("scaling", ["both", "activation_first", "weight_first"])
@pytest.mark.parametrize("addition", ["fma", "rounded"])
@pytest.mark.parametrize("biased", [False, True])
def test_scales_are_applied_as_by_scalars(
    m: int, n: int, k: int, part: int | None, scaling: str, addition: str, biased: bool
) -> None:
    x, weight = operands(m, n, k, (1, 8) if part else (1, 0), (4, 4) if part else (1, 0))
    bias = torch.linspace(-1, 1, n).bfloat16() if biased else None
    options = {"part": part, "scaling": scaling, "addition": addition}
    result = scaled_product(x, weight, bias, exact, output=torch.bfloat16, **options)  # type: ignore[arg-type]
    expected = torch.tensor(
        [
            [element(x, weight, None if bias is None else float(bias[j]), i, j, k, **options) for j in range(n)]  # type: ignore[arg-type]
            for i in range(m)
        ]
    )
    assert same_bits(result, expected.bfloat16())


def element(
    x: Codes, weight: Codes, bias: float | None, i: int, j: int, k: int, part: int | None, scaling: str, addition: str
) -> float:
    total = 0.0 if part else bias
    for start in range(0, k, part or k):
        span = range(start, min(start + (part or k), k))
        terms = (Fraction(float(x.codes[i, c])) * Fraction(float(weight.codes[j, c])) for c in span)
        sums = nearest(sum(terms, Fraction(0)), FP32)
        a = float(x.scales[i // x.block[0], start // x.block[1]])
        b = float(weight.scales[j // weight.block[0], start // weight.block[1]])
        left, right = {
            "both": (multiply(a, b, FP32), sums),
            "activation_first": (multiply(sums, a, FP32), b),
            "weight_first": (multiply(sums, b, FP32), a),
        }[scaling]
        if total is None:
            total = multiply(left, right, FP32)
        elif addition == "fma":
            total = fma(left, right, total, FP32)
        else:
            total = nearest(Fraction(multiply(left, right, FP32)) + Fraction(total), FP32)
    assert total is not None
    rounded = nearest(Fraction(total), torch.bfloat16)
    return rounded if bias is None or not part else nearest(Fraction(rounded) + Fraction(bias), torch.bfloat16)


@pytest.mark.parametrize(("activations", "weights"), [((1, 0), (1, 0)), ((0, 0), (0, 0))])
def test_torch_scales_once_behind_the_sum(activations: tuple[int, int], weights: tuple[int, int]) -> None:
    """`torch._scaled_mm` on CPU, fp32 out of whole numbers: sums are exact in any order, scales powers of two."""
    g = torch.Generator().manual_seed(3)
    whole = [torch.randint(-4, 5, (rows, 64), generator=g).to(FP8) for rows in (16, 32)]
    counts = [(rows if block[0] else 1, 1) for rows, block in zip((16, 32), (activations, weights), strict=True)]
    scales = [2.0 ** torch.randint(-3, 4, count, generator=g) for count in counts]
    left, right = (
        Codes(codes, scale, (block[0] or len(codes), 64))
        for codes, scale, block in zip(whole, scales, (activations, weights), strict=True)
    )
    theirs = torch._scaled_mm(whole[0], whole[1].t(), scales[0], scales[1].t(), out_dtype=torch.bfloat16)
    ours = scaled_product(left, right, None, exact, part=None, scaling="both", addition="fma", output=torch.bfloat16)
    assert same_bits(ours, theirs)
