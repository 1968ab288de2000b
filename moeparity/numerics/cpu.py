"""exp of fp32 as three libraries of CPUs compute it (torch's `Vectorized`, quickly, Sleef, and glibc's `expf`), log as
glibc does, and the CPU at hand.
"""

from __future__ import annotations

import math

import torch

from moeparity.numerics.fma import fma

_LOG2_E, _LN2 = 1.4426950216293335, 0.6931471824645996
_LOWEST, _HIGHEST = -87.3365478515625, 88.72283935546875
"""Between them exp is a normal number of fp32."""
_POLYNOMIAL = (0.00828929059, 0.0418978221, 0.166676521, 0.499991506, 0.999999701, 1.0)
"""Of exp near 0, from its highest power down."""
_STEPS = 32
"""glibc's powers of two in one octave; the constants below are those of a number between two of them."""
_CUBIC = (0.05550361559341535 / _STEPS**3, 0.2402284522445722 / _STEPS**2, 0.6931471806916203 / _STEPS, 1.0)
# From sleefsimdsp.c, xexpf: 1 / ln 2, ln 2 in two parts, and the polynomial from its highest power down.
_SLEEF_INVERSE = 1.442695040888963407
_SLEEF_LN2 = (0.693145751953125, 1.428606765330187045e-06)
_SLEEF_POLYNOMIAL = (
    0.000198527617612853646278381,
    0.00139304355252534151077271,
    0.00833336077630519866943359,
    0.0416664853692054748535156,
    0.166666671633720397949219,
    0.5,
)
_SLEEF_LOWEST, _SLEEF_HIGHEST = -104.0, 100.0
"""Beyond them exp is 0 and infinite."""
_LOG_FROM = 0x3F330000
"""The bits of the fp32 from which the intervals of logf's table are counted."""
_LOG_CUBIC = tuple(map(float.fromhex, ("-0x1.00ea348b88334p-2", "0x1.5575b0be00b6ap-2", "-0x1.ffffef20a4123p-2")))
_LOG_TABLE = tuple(
    tuple(map(float.fromhex, pair.split()))
    for pair in """
    0x1.661ec79f8f3bep+0 -0x1.57bf7808caadep-2
    0x1.571ed4aaf883dp+0 -0x1.2bef0a7c06ddbp-2
    0x1.49539f0f010bp+0 -0x1.01eae7f513a67p-2
    0x1.3c995b0b80385p+0 -0x1.b31d8a68224e9p-3
    0x1.30d190c8864a5p+0 -0x1.6574f0ac07758p-3
    0x1.25e227b0b8eap+0 -0x1.1aa2bc79c81p-3
    0x1.1bb4a4a1a343fp+0 -0x1.a4e76ce8c0e5ep-4
    0x1.12358f08ae5bap+0 -0x1.1973c5a611cccp-4
    0x1.0953f419900a7p+0 -0x1.252f438e10c1ep-5
    0x1p+0 0x0p+0
    0x1.e608cfd9a47acp-1 0x1.aa5aa5df25984p-5
    0x1.ca4b31f026aap-1 0x1.c5e53aa362eb4p-4
    0x1.b2036576afce6p-1 0x1.526e57720db08p-3
    0x1.9c2d163a1aa2dp-1 0x1.bc2860d22477p-3
    0x1.886e6037841edp-1 0x1.1058bc8a07ee1p-2
    0x1.767dcf5534862p-1 0x1.4043057b6ee09p-2
    """.strip().splitlines()
)
"""Of each interval 1 / c and log(c), c a number within it."""


def exp_u20(x: torch.Tensor) -> torch.Tensor:
    """exp of fp32 x, off by up to 20 units in the last place: a power of two times a polynomial of degree 5.

    Results below 1.6e-38 are 0; arguments above the largest of a finite exp are taken as that, and so is NaN. Imitates
    torch 2.13.0, ATen/cpu/vec/vec512/vec512_float.h, `exp_u20`, and the same instructions in vLLM 0.33.0,
    csrc/cpu/cpu_arch_macros.h (run: tests/numerics/test_cpu.py compiles torch's header).
    """
    within = torch.where(x.isnan(), _HIGHEST, x.clamp(_LOWEST, _HIGHEST))
    turns = fma(within, _number(_LOG2_E, x), _number(0.5, x)).floor()
    rest = fma(-turns, _number(_LN2, x), within)
    total = _number(_POLYNOMIAL[0], x)
    for coefficient in _POLYNOMIAL[1:]:
        total = fma(rest, total, _number(coefficient, x))
    # Half the power of two, made of its bits: those of the smallest one are 0.
    half = ((turns.to(torch.int32) + 126) << 23).view(torch.float32)
    return total * torch.where(x < _LOWEST, 0.0, half) * 2


def sleef_exp(x: torch.Tensor) -> torch.Tensor:
    """exp of fp32 x, off by one unit in the last place at most: a power of two times a polynomial of degree 7.

    Imitates Sleef 3.6, `Sleef_expf8_u10` and its kin as built with FMA, sleefsimdsp.c xexpf: `exp` of torch 2.13.0's
    `Vectorized`, which vLLM's library for AVX2 calls too (run: tests/numerics/test_cpu.py compiles torch's header).
    """
    high, low = (_number(-part, x) for part in _SLEEF_LN2)
    turns = (x * _SLEEF_INVERSE).round()
    reduced = fma(turns, low, fma(turns, high, x))
    total = _number(_SLEEF_POLYNOMIAL[0], x)
    for coefficient in _SLEEF_POLYNOMIAL[1:]:
        total = fma(total, reduced, _number(coefficient, x))
    total = 1 + fma(reduced * reduced, total, reduced)
    # In fp64 the power of two is exact, and subnormal results are rounded only once.
    scaled = (total.double() * torch.exp2(turns.double())).float()
    return torch.where(x < _SLEEF_LOWEST, 0.0, torch.where(x > _SLEEF_HIGHEST, math.inf, scaled))


def expf(x: torch.Tensor) -> torch.Tensor:
    """exp of fp32 x, off by 0.502 units in the last place at most: a table of 32 powers of two and a cubic, in fp64.

    Imitates glibc 2.36, sysdeps/ieee754/flt-32/e_expf.c (read; run against the C library at hand, tests/numerics/
    test_cpu.py). Each step is rounded here, and may be contracted there: that shows in one result of about 2^28.
    """
    wide = x.double().clamp(-200.0, 200.0)
    scaled = wide * (_STEPS / math.log(2))
    turns = scaled.round()
    rest = scaled - turns
    cubed, squared, linear, constant = _CUBIC
    total = (cubed * rest + squared) * (rest * rest) + (linear * rest + constant)
    return (total * torch.exp2(turns / _STEPS)).float()


def logf(x: torch.Tensor) -> torch.Tensor:
    """log of fp32 x, off by 0.818 units in the last place at most: a table of 16 intervals and a cubic, in fp64.

    x is 0, or positive and normal. Imitates glibc 2.36, sysdeps/ieee754/flt-32/e_logf.c (read; run against the C
    library at hand, tests/numerics/test_cpu.py).
    """
    bits = x.view(torch.int32)
    above = bits - _LOG_FROM
    table = torch.tensor(_LOG_TABLE, dtype=torch.float64, device=x.device)[((above >> 19) % 16).long()]
    octaves = (above >> 23).double()
    rest = (bits - (above & -(1 << 23))).view(torch.float32).double() * table[..., 0] - 1
    start = table[..., 1] + octaves * math.log(2)
    cubed, squared, linear = _LOG_CUBIC
    total = cubed * (rest * rest) + (squared * rest + linear)
    return torch.where(x == 0, -math.inf, (total * (rest * rest) + (start + rest)).float())


def l2_bytes() -> int:
    """Bytes of the L2 cache of one core of the CPU at hand, as torch tells them."""
    return int(torch.cpu.get_capabilities()["l2_cache_size"])


def _number(value: float, x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32, device=x.device)
