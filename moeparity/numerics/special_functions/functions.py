"""`rcp`, `rsqrt`, `sqrt`, `ex2`, `lg2`, `sin` and `cos` `.approx.f32` of PTX, with and without `.ftz`.

Source: bcarlet/ptx-math 2c7dc92, `src/ptxm`, the variants for sm_70 (see tables.py on later GPUs). Without `.ftz` equal
to its C on every input; what `.ftz` does to subnormal inputs and results is PTX's rule.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from types import MappingProxyType

import torch

from moeparity.numerics.special_functions.tables import quadratic, square

_FRACTION = (1 << 23) - 1
_NAN = 0x7FFFFFFF
_INFINITY = 0x7F800000
_LEAST = 0x00800000
"""Bits of the smallest normal number."""

_TWO_OVER_PI = float.fromhex("0x1.45f306p-1")
_HALF_PI = float.fromhex("0x1.921fb6546df20p0")
_QUADRANT = float.fromhex("0x1.921fb6p0")


_BLOCK_ON_CPU, _BLOCK = 1 << 16, 1 << 26
"""Numbers computed at once: on a CPU few, so that they stay in its caches; elsewhere."""


class _Number:
    """fp32 numbers taken apart, all int64. magnitude: bits without the sign. exponent, fraction: of subnormals as if
    they had a hidden bit; made when they are asked for, since ex2 takes neither.
    """

    def __init__(self, bits: torch.Tensor) -> None:
        self.magnitude, self.negative = bits & 0x7FFFFFFF, bits >> 31 & 1
        self._subnormal = self.magnitude < _LEAST

    @cached_property
    def _lead(self) -> torch.Tensor:
        # A zero counts as the smallest subnormal; each function sets zeros apart.
        return _highest_bit(self.magnitude.clamp(min=1))

    @cached_property
    def exponent(self) -> torch.Tensor:
        """Of the highest bit."""
        return torch.where(self._subnormal, self._lead - 149, (self.magnitude >> 23) - 127)

    @cached_property
    def fraction(self) -> torch.Tensor:
        """The 23 bits below the highest one."""
        shifted = self.magnitude << (23 - self._lead).clamp(min=0)
        return torch.where(self._subnormal, shifted, self.magnitude) & _FRACTION


def _highest_bit(x: torch.Tensor) -> torch.Tensor:
    """Place of the highest bit of positive integers below 2^63."""
    # What lies below the upper half could round a number up to the next power of two.
    high = x >> 32
    part = torch.where(high > 0, high, x)
    place = (part.to(torch.float64).view(torch.int64) >> 52) - 1023
    return place + torch.where(high > 0, 32, 0)


def _scaled(fraction: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Bits of (1 + fraction / 2^23) 2^exponent as fp32, rounded to nearest where subnormal."""
    power = ((exponent + 1023) << 52).view(torch.float64)
    return _bits(((fraction | 1 << 23).to(torch.float64) * 2.0**-23 * power).to(torch.float32))


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def _floats(bits: torch.Tensor) -> torch.Tensor:
    return bits.to(torch.int32).view(torch.float32)


def _rcp(x: _Number) -> torch.Tensor:
    low = x.fraction & 0xFFFF
    total = quadratic("rcp", x.fraction >> 16, low, square(low << 1) >> 2, (30, 17), "-+") + (0x67E7 << 48 >> 31)
    below = (total >> 56) == 0
    total = total << below.long()
    result = _scaled(total >> 33 & _FRACTION, -x.exponent - below.long())
    result = result.masked_fill(x.magnitude == 0, _INFINITY).masked_fill(x.magnitude == _INFINITY, 0)
    return (result | x.negative << 31).masked_fill(x.magnitude > _INFINITY, _NAN)


def _rsqrt(x: _Number) -> torch.Tensor:
    low = x.fraction & 0x1FFFF
    odd = x.exponent & 1
    total = quadratic("rsqrt", (x.fraction >> 17) + 64 * odd, low, square(low), (31, 17), "-+") + (0x7FFF8 << 44 >> 30)
    half = (x.exponent - odd) // 2
    exact = (odd == 0) & (x.fraction == 0)
    result = _scaled((total >> 33 & _FRACTION).masked_fill(exact, 0), -half - 1 + exact.long())
    result = result.masked_fill(x.magnitude == _INFINITY, 0).masked_fill(x.negative == 1, _NAN)
    result = torch.where(x.magnitude == 0, _INFINITY | x.negative << 31, result)
    return result.masked_fill(x.magnitude > _INFINITY, _NAN)


def _sqrt(x: _Number) -> torch.Tensor:
    low = x.fraction & 0x1FFFF
    odd = x.exponent & 1
    total = quadratic("sqrt", (x.fraction >> 17) + 64 * odd, low, square(low), (33, 18), "+-") + (0x7FFF8 << 44 >> 29)
    result = _scaled(total >> 35 & _FRACTION, (x.exponent - odd) // 2)
    result = result.masked_fill(x.magnitude == _INFINITY, _INFINITY).masked_fill(x.negative == 1, _NAN)
    result = torch.where(x.magnitude == 0, x.negative << 31, result)
    return result.masked_fill(x.magnitude > _INFINITY, _NAN)


def _significand(bits: torch.Tensor) -> torch.Tensor:
    """The 23 bits that ex2 gives for fractions of 23 bits, int64; a whole part goes into the exponent alone."""
    low = bits & 0x1FFFF
    total = quadratic("ex2", bits >> 17, low, square(low), (32, 19), "++") + (0x6FC4 << 48 >> 30)
    return total >> 34 & _FRACTION


def _ex2(x: _Number) -> torch.Tensor:
    # Far below -126 the root is taken and squared, so that subnormal results come out right.
    value = _floats(x.magnitude | x.negative << 31).to(torch.float64)
    small = value < -126
    value = torch.where(small, value * 0.5, value).nan_to_num(0.0, 2.0**40, -(2.0**40)).clamp(-(2.0**40), 2.0**40)
    whole = value.trunc()
    bits = ((value - whole).abs() * 2.0**23).to(torch.int64)
    below = (value < 0) & (bits != 0)
    bits = torch.where(below, ~bits, bits) & _FRACTION
    exponent = whole.to(torch.int64) - below.long()
    result = _scaled(_significand(bits), exponent.clamp(-126, 127))
    result = result.masked_fill(exponent > 127, _INFINITY).masked_fill(exponent < -126, 0)
    root = _floats(result)
    result = torch.where(small, _bits(root * root), result)
    result = result.masked_fill(x.magnitude < _LEAST, 0x3F800000)
    return result.masked_fill(x.magnitude > _INFINITY, _NAN)


def _lg2(x: _Number) -> torch.Tensor:
    # A subnormal's is taken of 2^24 times it.
    shifted = torch.where(x.magnitude < _LEAST, 24, 0)
    low = x.fraction & 0x1FFFF
    exponent = x.exponent + shifted
    total = quadratic("lg2", x.fraction >> 17, low, square(low), (30, 18), "+-") + (0x868B << 48 >> 31)
    total = (total + (exponent << 56)).abs() & ~((1 << 20) - 1)
    lead = _highest_bit(total.clamp(min=1))
    fraction = torch.where(lead > 56, total >> (lead - 23).clamp(min=0), (total << (56 - lead).clamp(min=0)) >> 33)
    result = _floats(_scaled(fraction & _FRACTION, lead - 56) | (exponent < 0).long() << 31)
    result = _bits(torch.where(shifted > 0, result - 24.0, result))
    result = result.masked_fill(x.magnitude == 0x3F800000, 0).masked_fill(x.magnitude == _INFINITY, _INFINITY)
    result = result.masked_fill(x.negative == 1, _NAN).masked_fill(x.magnitude == 0, 0xFF800000)
    return result.masked_fill(x.magnitude > _INFINITY, _NAN)


def _reduced(x: _Number) -> torch.Tensor:
    """Quadrant and fraction of a quadrant of |x| / (pi / 2), 2 and 23 bits, fewer the larger x is (rro_sincos.c)."""
    value = _floats(x.magnitude).to(torch.float64)
    turns = value * _TWO_OVER_PI
    usable = (x.magnitude >= _LEAST) & (value < 2.0**33)
    quadrants = torch.where(usable, turns, 0.0).to(torch.int64)
    rest = torch.where(usable, value - quadrants.to(torch.float64) * _HALF_PI, 0.0).clamp(0.0, _QUADRANT)
    reduced = (quadrants & 3) << 23 | (rest * _TWO_OVER_PI * 2.0**23).to(torch.int64)
    reduced = reduced & ~_low_bits((x.exponent - 8).clamp(0, 24))
    turn_bits = (turns.view(torch.int64) >> 52) - 1023
    return torch.where(usable, reduced & ~_low_bits(turn_bits.clamp(0, 25)), 0)


def _low_bits(count: torch.Tensor) -> torch.Tensor:
    return (torch.ones_like(count) << count) - 1


def _sine(reduced: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Bits of the sine of a fraction of a quadrant."""
    low = reduced & 0x1FFFF
    total = quadratic("sin", reduced >> 17 & 63, low, square(low), (31, 19), "+-")
    lead = _highest_bit(total.clamp(min=1))
    fraction = (total << (56 - lead)) >> 33 & _FRACTION
    return torch.where(total == 0, 0, (lead + (127 - 56)) << 23 | fraction) | negative << 31


def _sin(x: _Number) -> torch.Tensor:
    reduced = _reduced(x)
    quadrant = reduced >> 23 & 3
    result = _sine(torch.where(quadrant & 1 == 1, ~reduced, reduced), x.negative ^ quadrant >> 1)
    return result.masked_fill(x.magnitude >= _INFINITY, _NAN)


def _cos(x: _Number) -> torch.Tensor:
    reduced = _reduced(x)
    quadrant = reduced >> 23 & 3
    result = _sine(torch.where(quadrant & 1 == 0, ~reduced, reduced), (quadrant + 1) >> 1 & 1)
    return result.masked_fill(x.magnitude >= _INFINITY, _NAN)


LEAST_WORK = 1 << 22
"""So many numbers of `ex2` are asked for before its significands are listed, which takes about as long as they do."""
_WORK = {"ex2": 0}


@cache
def _significands(device: torch.device) -> torch.Tensor:
    """`_significand` of all fractions, int32 [2^23]: 32 MB."""
    return torch.cat(
        [
            _significand(bits).to(torch.int32)
            for bits in torch.split(torch.arange(1 << 23, device=device), _BLOCK_ON_CPU)
        ]
    )


def _ex2_listed(x: torch.Tensor) -> torch.Tensor:
    """`ex2.approx.ftz.f32` of fp32 numbers below 128, none of them NaN, by the list of significands."""
    steps = (x.clamp(min=-126.0) * 2.0**23).to(torch.int32)
    # Below zero a fraction counts from above, in ones' complement.
    steps = steps - ((steps < 0) & (steps & _FRACTION != 0)).to(torch.int32)
    # Indexing would take five times as long.
    significand = _significands(x.device).index_select(0, steps & _FRACTION)
    return ((steps >> 23) + 127 << 23 | significand).view(torch.float32).masked_fill(x < -126.0, 0.0)


_FUNCTIONS: dict[str, Callable[[_Number], torch.Tensor]] = {
    "rcp": _rcp, "rsqrt": _rsqrt, "sqrt": _sqrt, "ex2": _ex2, "lg2": _lg2, "sin": _sin, "cos": _cos,
}  # fmt: skip


def approximate(name: str, x: torch.Tensor, *, ftz: bool = False) -> torch.Tensor:
    """`name`.approx.f32 of fp32 numbers of any shape; ftz: subnormal inputs and results become zeros of their sign.

    Raises KeyError for a name that is no value of `APPROXIMATE`.
    """
    blocks = torch.split(x.reshape(-1), _BLOCK_ON_CPU if x.device.type == "cpu" else _BLOCK)
    if name == "ex2" and ftz and _is_listed(x):
        parts = list(map(_ex2_listed, blocks))
    else:
        parts = [_block(_FUNCTIONS[name], block, ftz=ftz) for block in blocks]
    return torch.cat(parts).reshape(x.shape)


def _is_listed(x: torch.Tensor) -> bool:
    """Whether so much was asked for that the list pays, and x holds nothing that it lacks."""
    _WORK["ex2"] += x.numel()
    return _WORK["ex2"] >= LEAST_WORK and x.numel() > 0 and bool(x.max() < 128)


def _block(function: Callable[[_Number], torch.Tensor], x: torch.Tensor, *, ftz: bool) -> torch.Tensor:
    bits = _bits(x)
    result = function(_Number(_flushed(bits) if ftz else bits))
    return _floats(_flushed(result) if ftz else result)


def _flushed(bits: torch.Tensor) -> torch.Tensor:
    return torch.where((bits & 0x7FFFFFFF) < _LEAST, bits & 0x80000000, bits)


APPROXIMATE = MappingProxyType({f"{name}.approx.f32": name for name in _FUNCTIONS})
"""PTX's name without `.ftz` -> name here."""
