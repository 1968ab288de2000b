"""exp, log, tanh and quotients of fp32 as CUDA's device library computes them, with and without -use_fast_math, and
as Triton does.

Every step is that of the PTX that nvcc 13.5 makes for sm_90 (run: tests/engines/cuda). `ex2.approx` and `rcp.approx`
are by the tables that an H200 gave the bits of (`special_functions`; recorded: tests/recorded/h200).
"""

from __future__ import annotations

import math

import torch

from moeparity.numerics.fma import fma
from moeparity.numerics.special_functions.functions import approximate

_LOG2_E = 1.4426950216293335
_LOG2_E_LOW = 1.925963033500011e-08
_STEPS = 252.0
_PER_STEP = 0.005724980030208826
_TINY = 2.0**-126
_HUGE = 2.0**126
"""Above it the reciprocal is subnormal."""
_TANH = (0.01573968306183815, -0.05230396240949631, 0.13315297663211823, -0.33332768082618713, 0.0)
"""Odd polynomial of tanhf below 0.6, from its highest power down."""

_LN2 = 0.6931471824645996
_LOG = (
    -0.13018856942653656, 0.1408461034297943, -0.12148627638816833, 0.1398061066865921, -0.16684235632419586,
    0.20012299716472626, -0.24999669194221497, 0.333331823348999, -0.5,
)  # fmt: skip
"""Polynomial of logf, from its highest power down."""
_TWO_THIRDS = 0x3F2AAAAB
_INFINITE = torch.tensor(math.inf)


def expf(x: torch.Tensor) -> torch.Tensor:
    """`expf` of fp32 x: a power of two, times 2 to the power of the remainder by `ex2.approx.ftz`."""
    # Imitates fma.rm, which rounds down, for a number within 0..1: product and floor are exact in fp64.
    share = fma(x, _number(_PER_STEP, x), _number(0.5, x)).clamp(0, 1).nan_to_num(0.0)
    power = (share.double() * _STEPS).floor() - 126.0
    rest = fma(x, _number(_LOG2_E, x), -power.float())
    rest = fma(x, _number(_LOG2_E_LOW, x), rest)
    return (ex2(rest).double() * torch.exp2(power)).float()


def logf(x: torch.Tensor) -> torch.Tensor:
    """`logf` of fp32 x: x is a power of two times a number between 2/3 and 4/3, whose logarithm is a polynomial; the
    power's exponent times ln 2 is added.
    """
    tiny = x < _TINY
    scaled = torch.where(tiny, x * 2.0**23, x)
    bits = scaled.contiguous().view(torch.int32)
    exponent = (bits - _TWO_THIRDS) & -(1 << 23)
    power = fma(exponent.float(), _number(2.0**-23, x), torch.where(tiny, -23.0, 0.0))
    rest = (bits - exponent).view(torch.float32) - 1
    total = _number(_LOG[0], x)
    for coefficient in _LOG[1:]:
        total = fma(total, rest, _number(coefficient, x))
    result = fma(power, _number(_LN2, x), fma(rest * total, rest, rest))
    result = torch.where((scaled > 0) & (scaled < math.inf), result, fma(scaled, _INFINITE, _INFINITE))
    return torch.where(scaled == 0, -math.inf, result)


def fast_expf(x: torch.Tensor) -> torch.Tensor:
    """`__expf`, and `expf` with -use_fast_math: 2 to the power x / ln 2; subnormal inputs and results become zero."""
    return ex2(flushed(flushed(x) * _number(_LOG2_E, x)))


def tanhf(x: torch.Tensor) -> torch.Tensor:
    """`tanhf` of fp32 x: a polynomial below 0.6, above it 1 - 2 / (exp(2 |x|) + 1)."""
    size = x.abs()
    reciprocal = approximate("rcp", ex2(size * _number(2 * _LOG2_E, x)) + 1, ftz=True)
    far = fma(reciprocal, _number(-2.0, x), _number(1.0, x))
    far = torch.where(size >= 9.010913848876953, 1.0, far).copysign(x)
    square, total = x * x, _number(_TANH[0], x)
    for coefficient in _TANH[1:]:
        total = fma(total, square, _number(coefficient, x))
    return torch.where(size >= 0.6, far, fma(total, x, x))


def fast_tanhf(x: torch.Tensor) -> torch.Tensor:
    """`tanhf` with -use_fast_math: `tanh.approx`, taken to be correctly rounded, which it is not.

    On an H200 97.5 % of 7.9 million numbers from 2^-5 to 6 are other ones, by more than 127 ulp at most; no model of
    the instruction is public (benchmarks/gpu/hardware.py, 2026-11-27).
    """
    return torch.tanh(x.double()).float()


def triton_exp(x: torch.Tensor) -> torch.Tensor:
    """Triton's `tl.exp` (3.8.0): `ex2.approx` of x / ln 2."""
    return approximate("ex2", x * _number(_LOG2_E, x))


def fast_divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """fp32 a / b with -use_fast_math: `div.approx.ftz`, which is a times `rcp.approx` of b, each flushed."""
    return fast_product(a, approximate("rcp", b, ftz=True))


def div_approx(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`div.approx.f32`: a times `rcp.approx` of b; a subnormal b is scaled first, and a with it.

    As ptxas 13.5.37 writes it out for sm_90 (nvdisasm).
    """
    scale = torch.where(b.abs() >= _TINY, 1.0, 2.0**24)
    return approximate("rcp", b * scale) * (a * scale)


def div_full(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`div.full.f32`, which Triton makes of `/`: as `div_approx`, but a large b is scaled too."""
    scale = torch.where(b.abs() > _HUGE, 0.25, 1.0)
    return div_approx(a * scale, b * scale)


def fast_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """fp32 a * b with -use_fast_math: subnormal inputs and results become zero."""
    return flushed(flushed(a) * flushed(b))


def ex2(x: torch.Tensor) -> torch.Tensor:
    """`ex2.approx.ftz.f32`."""
    return approximate("ex2", x, ftz=True)


def flushed(x: torch.Tensor) -> torch.Tensor:
    """fp32 with subnormal numbers as zeros of their sign."""
    return torch.where(x.abs() < _TINY, x * 0, x)


def _number(value: float, like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32, device=like.device)
