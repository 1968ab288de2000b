"""Grids of 8 bits and GEMMs of their codes: an evaluation number by number in exact arithmetic, and torch's own."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.numerics.block_scales import FP4, INT4, LARGEST, Grid, Magnitude, raised_to_power
from moeparity.numerics.quantised import Codes, quantised, scaled_product, to_codes
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


FRACTIONS = {FP8: 3, torch.int8: 6, INT4: 2, FP4: 1}
"""Of the largest code."""


def power_of(amax: float, grid: Grid) -> float:
    """By the exponents of the magnitude and of the largest code, at least 2^-126."""
    exponent = math.frexp(amax)[1] - 1
    above = Fraction(amax) / Fraction(2) ** exponent - 1
    if grid.scale == "ue8m0_ceil":
        exponent += above > 0
    if grid.scale.startswith("ue8m0_even"):
        bits = 1 if grid.scale.endswith("fp4") else FRACTIONS[grid.dtype]
        exponent += above >= 1 - Fraction(1, 2 ** (bits + 1))
    return 2.0 ** max(exponent - (math.frexp(LARGEST[grid.dtype])[1] - 1), -126)


def scale_of(amax: float, top: float, grid: Grid) -> float:
    if amax == 0:
        return 1.0
    if grid.scale not in ("fp32", "ue8m0"):
        return power_of(amax, grid)
    if grid.scale_by == "inverted":
        scale = divided(1.0, divided(top, amax))
    else:
        scale = divided(amax, top) if grid.scale_by == "divided" else multiply(amax, divided(1.0, top), FP32)
    return raised(scale) if grid.scale == "ue8m0" else scale


def by_scalars(x: Tensor, grid: Grid) -> tuple[list[list[float]], list[list[float]]]:
    """Codes, as bits of fp8 or whole numbers, and scales: one number after another."""
    values = x.float().tolist()
    high, wide = grid.block[0] or len(values), grid.block[1] or len(values[0])
    top = LARGEST[grid.dtype] + (0.5 if grid.full and grid.dtype in (torch.int8, INT4) else 0)
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
            amax = max(*(abs(values[i][j]) for i, j in places), 0.0)
            ratio = grid.magnitude.number
            amax = ratio if grid.magnitude.way == "given" else multiply(amax, nearest(Fraction(ratio), FP32), FP32)
            amax = max(nearest(grid.floor, FP32), amax)
            scale = scale_of(amax, top, grid)
            scales[-1].append(scale)
            for i, j in places:
                codes[i][j] = code(values[i][j], scale, amax, top, grid)
    return codes, scales


SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Of the codes of e2m1, from the first on."""


def code(value: float, scale: float, amax: float, top: float, grid: Grid) -> float:
    if grid.quotient == "divided":
        scaled = divided(value, scale)
    elif grid.quotient == "from_largest" and grid.scale == "fp32":
        scaled = multiply(value, divided(top, amax) if amax else 1.0, FP32)
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
@pytest.mark.parametrize(
    ("scale_by", "scale"), [("divided", "fp32"), ("reciprocal", "fp32"), ("inverted", "fp32"), ("reciprocal", "ue8m0")]
)
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(7, 24), (1, 24), (7, 1), (1, 1)])
def test_codes_and_scales_are_those_of_scalars(
    block: str, quotient: str, scale_by: str, scale: str, dtype: torch.dtype, rows: int, columns: int
) -> None:
    floor = 1e-10 if block != "token" else 1 / 512
    grid = Grid(dtype=dtype, block=BLOCKS[block], scale=scale, scale_by=scale_by, quotient=quotient, floor=floor)
    assert_as_by_scalars(drawn(rows, columns), grid)


def assert_as_by_scalars(x: Tensor, grid: Grid) -> None:
    result = quantised(x, grid)
    codes, scales = by_scalars(x, grid)
    bits = result.codes.view(torch.uint8) if grid.dtype == FP8 else result.codes
    assert bits.tolist() == codes
    assert same_bits(result.scales, torch.tensor(scales))


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("scale", ["ue8m0_floor", "ue8m0_ceil", "ue8m0_even", "ue8m0_even_fp4"])
@pytest.mark.parametrize("quotient", ["divided", "from_largest"])
@pytest.mark.parametrize("floor", [0.0, 1e-10])
def test_powers_of_magnitudes_are_those_of_scalars(dtype: torch.dtype, scale: str, quotient: str, floor: float) -> None:
    """With magnitudes at, just below and just above a power of two, 1.75, 1.875 and 1.9375 times one; subnormal ones;
    zeros.
    """
    grid = Grid(dtype=dtype, block=(1, 3), scale=scale, scale_by="divided", quotient=quotient, floor=floor)
    near = torch.tensor([1.0, 1.5, 1.75, 1.875, 1.9375, 1.96875, 1.984375])
    sizes = torch.cat([near.nextafter(torch.tensor(end)) for end in (0.0, 9.0)] + [near, near * 2.0**-130, near * 0])
    x = torch.stack([sizes, -sizes / 3, sizes * 0.49], -1)
    assert_as_by_scalars(x, grid)


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("magnitude", [Magnitude(number=0.8), Magnitude(way="given", number=1.25)], ids=str)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("quotient", ["divided", "from_largest"])
def test_what_is_cut_is_the_end_of_the_range(
    dtype: torch.dtype, magnitude: Magnitude, full: bool, quotient: str
) -> None:
    grid = Grid(
        dtype=dtype, block=(3, 7), scale="fp32", scale_by="divided", quotient=quotient, floor=0.0,
        magnitude=magnitude, full=full,
    )  # fmt: skip
    assert_as_by_scalars(drawn(7, 24), grid)


def test_powers_of_transformer_engine_are_raised_ones() -> None:
    """It takes the power of two below 448 / amax, and its inverse: here amax / 448 is raised, by any way to it."""
    steps = torch.arange(1 << 23, dtype=torch.int32)[:: 1 << 6]
    near = torch.arange(-4096, 4096, dtype=torch.int32) + int(torch.tensor(448.0).view(torch.int32))
    amax = torch.cat([(steps + (127 << 23)), near]).view(torch.float32)
    theirs = 1 / ((448 / amax).view(torch.int32) & -(1 << 23)).view(torch.float32)
    for scale_by in ("divided", "reciprocal", "inverted"):
        grid = Grid(dtype=FP8, block=(1, 1), scale="ue8m0", scale_by=scale_by, quotient="from_largest", floor=0.0)
        assert same_bits(quantised(amax[:, None], grid).scales[:, 0], theirs)


def test_zeros_infinities_and_tiny_magnitudes_have_the_scales_of_transformer_engine() -> None:
    """compute_scale_from_amax: 1 of 0 and of an infinity, and of what fp32 cannot invert the largest number."""
    grid = Grid(dtype=FP8, block=(1, 2), scale="fp32", scale_by="inverted", quotient="from_largest", floor=0.0)
    x = torch.tensor([[0.0, -0.0], [math.inf, 3.0], [1e-37, -1e-38], [448.0, 1.0]])
    result = quantised(x, grid)
    largest = torch.finfo(FP32).max
    assert same_bits(result.scales, torch.tensor([[1.0], [1.0], [1 / largest], [1.0]]))
    assert result.codes.float()[:2].tolist() == [[0.0, -0.0], [448.0, 3.0]]
    assert same_bits(result.codes[2], (x[2] * largest).to(FP8))


def test_the_floor_of_zero_gives_zeros_and_no_nan() -> None:
    for scale_by, quotient in product(("divided", "reciprocal", "inverted"), ("divided", "reciprocal", "from_largest")):
        grid = Grid(dtype=FP8, block=(1, 4), scale="fp32", scale_by=scale_by, quotient=quotient, floor=0.0)
        result = quantised(torch.zeros(2, 4), grid)
        assert result.codes.view(torch.uint8).tolist() == [[0] * 4] * 2
        assert result.scales.tolist() == [[1.0]] * 2


def test_the_ways_to_a_code_give_other_codes() -> None:
    """Or the choices would be one."""
    x = torch.randn(2048, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    ways = [*product(("divided",), ("divided", "reciprocal", "from_largest"))]
    ways += [("reciprocal", "divided"), ("inverted", "divided")]
    grids = [
        Grid(dtype=FP8, block=(1, 16), scale="fp32", floor=1e-10, scale_by=scale_by, quotient=quotient)
        for scale_by, quotient in ways
    ]
    codes = [quantised(x, grid).codes.view(torch.uint8) for grid in grids]
    assert not any(torch.equal(a, b) for i, a in enumerate(codes) for b in codes[:i])


def test_zeros_have_the_scale_of_the_floor() -> None:
    grid = Grid(dtype=FP8, block=(1, 4), scale="fp32", scale_by="divided", quotient="divided", floor=1e-4)
    result = quantised(torch.zeros(2, 4), grid)
    assert same_bits(result.scales, torch.full((2, 1), nearest(Fraction(nearest(1e-4, FP32)) / 448, FP32)))
    assert result.codes.view(torch.uint8).tolist() == [[0] * 4] * 2


def test_a_nan_takes_its_group_with_it_and_no_other() -> None:
    x = torch.ones(1, 8)
    x[0, 2] = math.nan
    grid = Grid(dtype=FP8, block=(1, 4), scale="fp32", scale_by="divided", quotient="divided", floor=1e-10)
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
    plain = {"dtype": FP8, "scale": "fp32", "scale_by": "divided", "quotient": "divided", "floor": 1e-10}
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
