"""What single PTX instructions give, one number at a time, by integers and fractions; no code is shared.

Written from the PTX ISA 9.x. Values go in and out as bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import isqrt

FORMATS = {"f32": (8, 23), "f64": (11, 52), "f16": (5, 10), "bf16": (8, 7), "e5m2": (5, 2), "e4m3": (4, 3)}
NAN = {"f32": 0x7FFFFFFF, "f64": 0x7FF8000000000000, "f16": 0x7FFF, "bf16": 0x7FFF, "e5m2": 0x7F, "e4m3": 0x7F}
MODES = ("rn", "rz", "rm", "rp")

Number = tuple[str, int, Fraction]
"""nan, inf or num; sign; magnitude."""


def decode(bits: int, format: str) -> Number:
    width, fraction = FORMATS[format]
    sign, code, rest = bits >> (width + fraction), bits >> fraction & ((1 << width) - 1), bits & ((1 << fraction) - 1)
    bias = (1 << width - 1) - 1
    if format == "e4m3" and bits & 0x7F == 0x7F:
        return "nan", 0, Fraction(0)
    if format != "e4m3" and code == (1 << width) - 1:
        return ("nan" if rest else "inf"), sign, Fraction(0)
    significand = rest + (1 << fraction if code else 0)
    return "num", sign, significand * Fraction(2) ** (max(code, 1) - bias - fraction)


def encode(sign: int, size: Fraction, format: str, mode: str = "rn", *, finite: bool = False) -> int:
    width, fraction = FORMATS[format]
    bias = (1 << width - 1) - 1
    top = sign << (width + fraction)
    if size == 0:
        return top
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    exponent = max(exponent, 1 - bias)
    scaled = size / Fraction(2) ** (exponent - fraction)
    whole, rest = scaled.numerator // scaled.denominator, scaled - scaled.numerator // scaled.denominator
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole & 1),
        "rz": False,
        "rm": sign and rest > 0,
        "rp": not sign and rest > 0,
        "rna": rest >= Fraction(1, 2),
    }[mode]
    whole += bool(up)
    code = whole + (exponent + bias - 1 << fraction)
    largest = ((1 << width) - 1 << fraction) - 1 if format != "e4m3" else 0x7E
    if code > largest:
        stays = finite or mode == "rz" or (mode == "rm" and not sign) or (mode == "rp" and sign)
        code = largest if stays else (1 << width) - 1 << fraction
    return top | code


def signed(bits: int, width: int) -> int:
    return bits - (1 << width) if bits >> (width - 1) else bits


def _sum(x: Number, y: Number, format: str, mode: str) -> int:
    if "nan" in {x[0], y[0]} or (x[0] == y[0] == "inf" and x[1] != y[1]):
        return NAN[format]
    if "inf" in {x[0], y[0]}:
        return infinity(x[1] if x[0] == "inf" else y[1], format)
    total = (-x[2] if x[1] else x[2]) + (-y[2] if y[1] else y[2])
    if total == 0:
        sign = x[1] & y[1]
        return encode(sign if x[1] == y[1] and x[2] == 0 else int(mode == "rm"), Fraction(0), format)
    return encode(int(total < 0), abs(total), format, mode)


def infinity(sign: int, format: str) -> int:
    width, fraction = FORMATS[format]
    return (sign << (width + fraction)) | ((1 << width) - 1 << fraction)


def _times(x: Number, y: Number) -> Number:
    sign = x[1] ^ y[1]
    if "nan" in {x[0], y[0]}:
        return "nan", 0, Fraction(0)
    if "inf" in {x[0], y[0]}:
        zero = (x[0] == "num" and x[2] == 0) or (y[0] == "num" and y[2] == 0)
        return ("nan" if zero else "inf"), sign, Fraction(0)
    return "num", sign, x[2] * y[2]


def _plain(x: Number, format: str, mode: str) -> int:
    if x[0] == "nan":
        return NAN[format]
    return infinity(x[1], format) if x[0] == "inf" else encode(x[1], x[2], format, mode)


def _quotient(x: Number, y: Number, format: str, mode: str) -> int:
    sign = x[1] ^ y[1]
    if "nan" in {x[0], y[0]} or (x[0] == y[0] == "inf"):
        return NAN[format]
    if x[0] == "inf":
        return infinity(sign, format)
    if y[0] == "inf":
        return encode(sign, Fraction(0), format)
    if y[2] == 0:
        return NAN[format] if x[2] == 0 else infinity(sign, format)
    return encode(sign, x[2] / y[2], format, mode)


def _root(x: Number, format: str, mode: str) -> int:
    if x[0] == "nan" or (x[1] and (x[0] == "inf" or x[2] != 0)):
        return NAN[format]
    if x[0] == "inf" or x[2] == 0:
        return _plain(x, format, mode)
    # More bits than any format has, and one more that says whether they are all.
    scaled = x[2] * Fraction(2) ** 2600
    whole = isqrt(scaled.numerator // scaled.denominator)
    exact = whole * whole == scaled
    return encode(0, (Fraction(whole) if exact else Fraction(2 * whole + 1, 2)) / Fraction(2) ** 1300, format, mode)


def flushed(bits: int) -> int:
    return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits


def _chosen(root: str, a: int, b: int, format: str) -> int:
    x, y = decode(a, format), decode(b, format)
    if x[0] == "nan" or y[0] == "nan":
        return NAN[format] if x[0] == y[0] == "nan" else (b if x[0] == "nan" else a)
    return (
        min((a, b), key=lambda bits: order(bits, format))
        if root == "min"
        else max((a, b), key=lambda bits: order(bits, format))
    )


def order(bits: int, format: str) -> int:
    """-0 just below +0."""
    top = 1 << sum(FORMATS[format])
    return -(bits & (top - 1)) - 1 if bits & top else bits


def arithmetic(root: str, format: str, modifiers: Sequence[str], values: Sequence[int]) -> int:
    """add, sub, mul, fma, div, sqrt, rcp, min, max, neg, abs of one float format."""
    top = 1 << sum(FORMATS[format])
    mode = next((word for word in modifiers if word in MODES), "rn")
    if "ftz" in modifiers:
        values = [flushed(value) for value in values]
    if root in {"neg", "abs"}:
        result = values[0] ^ top if root == "neg" else values[0] & (top - 1)
    elif root in {"min", "max"}:
        result = _chosen(root, values[0], values[1], format)
        if "NaN" in modifiers and "nan" in {decode(value, format)[0] for value in values}:
            result = NAN[format]
    else:
        result = _rounded(root, format, mode, [decode(value, format) for value in values])
    if "ftz" in modifiers:
        result = flushed(result)
    if "sat" in modifiers:
        kind, sign, size = decode(result, format)
        result = 0 if kind == "nan" or sign or (size == 0 and kind == "num") else result
        result = encode(0, Fraction(1), format) if (kind == "inf" and not sign) or (size > 1 and not sign) else result
    if "relu" in modifiers and decode(result, format)[0] != "nan" and result & top:
        result = 0
    return result


def _rounded(root: str, format: str, mode: str, x: Sequence[Number]) -> int:
    if root == "add":
        return _sum(x[0], x[1], format, mode)
    if root == "sub":
        return _sum(x[0], (x[1][0], 1 - x[1][1], x[1][2]), format, mode)
    if root == "mul":
        return _plain(_times(x[0], x[1]), format, mode)
    if root == "fma":
        return _sum(_times(x[0], x[1]), x[2], format, mode)
    if root == "sqrt":
        return _root(x[0], format, mode)
    return _quotient(*(("num", 0, Fraction(1)), x[0]) if root == "rcp" else (x[0], x[1]), format, mode)


def integer(root: str, kind: str, width: int, modifiers: Sequence[str], values: Sequence[int]) -> int:
    """Arithmetic of integers, as bits of the result's width."""
    x = [signed(value, width) if kind == "s" else value for value in values]
    if root in {"mul", "mad"}:
        third = values[2] if root == "mad" else 0
        product = x[0] * x[1] >> (width if "hi" in modifiers else 0)
        return product + third & ((1 << (2 * width if "wide" in modifiers else width)) - 1)
    if root in {"div", "rem"}:
        whole = (abs(x[0]) // abs(x[1])) * (-1 if (x[0] < 0) != (x[1] < 0) else 1) if x[1] else -1
        result = whole if root == "div" else (x[0] - whole * x[1] if x[1] else x[0])
    else:
        operate: dict[str, Callable[..., int]] = {
            "add": lambda a, b: a + b,
            "sub": lambda a, b: a - b,
            "min": min,
            "max": max,
            "neg": lambda a: -a,
            "abs": abs,
        }
        result = operate[root](*x)
    if "sat" in modifiers:
        result = max(-(1 << width - 1), min((1 << width - 1) - 1, result))
    if "relu" in modifiers:
        result = max(result, 0)
    return result & ((1 << width) - 1)


def bitwise(root: str, kind: str, width: int, modifiers: Sequence[str], values: Sequence[int]) -> int:
    """Logic, shifts, fields, permutations, counts."""
    full = (1 << width) - 1
    a, *rest = values
    if root in {"and", "or", "xor"}:
        return {"and": a & rest[0], "or": a | rest[0], "xor": a ^ rest[0]}[root]
    if root == "not":
        return a ^ full
    if root == "cnot":
        return int(a == 0)
    if root == "shl":
        return a << rest[0] & full if rest[0] < width else 0
    if root == "shr":
        return (signed(a, width) if kind == "s" else a) >> min(rest[0], width) & full
    if root == "shf":
        amount = rest[1] & 31 if "wrap" in modifiers else min(rest[1], 32)
        funnel = rest[0] << 32 | a
        return (funnel << amount >> 32 if "l" in modifiers else funnel >> amount) & full
    if root == "lop3":
        return sum(
            (rest[2] >> ((a >> i & 1) << 2 | (rest[0] >> i & 1) << 1 | rest[1] >> i & 1) & 1) << i for i in range(32)
        )
    if root == "popc":
        return a.bit_count()
    if root == "clz":
        return width - a.bit_length()
    if root == "brev":
        return int(f"{a:b}".zfill(width)[::-1], 2)
    if root == "bfind":
        length = (a ^ full if kind == "s" and a >> (width - 1) else a).bit_length()
        return 0xFFFFFFFF if not length else width - length if "shiftamt" in modifiers else length - 1
    return _fields(root, kind, width, values)


def _fields(root: str, kind: str, width: int, values: Sequence[int]) -> int:
    if root == "prmt":
        source, result = values[1] << 32 | values[0], 0
        for at in range(4):
            selector = values[2] >> 4 * at & 0xF
            byte = source >> 8 * (selector & 7) & 0xFF
            result |= (byte if selector < 8 else 0xFF * (byte >> 7)) << 8 * at
        return result
    if root == "bfe":
        a, start, length = values[0], values[1] & 0xFF, values[2] & 0xFF
        last = a >> min(start + length - 1, width - 1) & 1 if kind == "s" and length else 0
        return sum((a >> start + i & 1 if i < length and start + i < width else last) << i for i in range(width))
    a, b, start, length = values[0], values[1], values[2] & 0xFF, values[3] & 0xFF
    for i in range(length):
        if start + i < width:
            b = b & ~(1 << start + i) | (a >> i & 1) << start + i
    return b


def compared(word: str, kind: str, width: int, a: int, b: int) -> bool:
    """The comparisons of `setp`; kind is u, s, b or a float format."""
    if kind in FORMATS:
        x, y = decode(a, kind), decode(b, kind)
        nan = "nan" in {x[0], y[0]}
        if word in {"num", "nan"}:
            return nan == (word == "nan")
        if nan:
            return word in {"equ", "neu", "ltu", "leu", "gtu", "geu"}
        zero = lambda bits, z: 0 if z == ("num", z[1], 0) else order(bits, kind)  # -0 equals +0
        left, right = zero(a, x), zero(b, y)
        word = word.removesuffix("u") if len(word) == 3 else word
    else:
        left, right = (signed(v, width) if kind == "s" else v for v in (a, b))
        word = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(word, word)
    return {"eq": left == right, "ne": left != right, "lt": left < right, "le": left <= right, "gt": left > right,
            "ge": left >= right}[word]  # fmt: skip


def converted(to: str, of: str, modifiers: Sequence[str], bits: int) -> int:
    """`cvt` between two plain types."""
    mode = next((word[:2] for word in modifiers if word[:2] in MODES and word != "relu"), "rn")
    if "ftz" in modifiers and of == "f32":
        bits = flushed(bits)
    if of not in FORMATS:
        value = Fraction(signed(bits, int(of[1:])) if of[0] == "s" else bits)
        number: Number = ("num", int(value < 0), abs(value))
    else:
        number = decode(bits, of)
    if to in FORMATS:
        return _to_float(to, of, mode, modifiers, bits, number)
    width, kind = int(to[1:]), to[0]
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if kind == "s" else (0, (1 << width) - 1)
    if of not in FORMATS:
        value = -number[2] if number[1] else number[2]
        return (max(low, min(high, int(value))) if "sat" in modifiers else int(value)) & ((1 << width) - 1)
    if number[0] == "nan":
        return 1 << width - 1 if of == "f64" or width == 64 else 0
    if number[0] == "inf":
        return (low if number[1] else high) & ((1 << width) - 1)
    return max(low, min(high, whole(number, mode))) & ((1 << width) - 1)


def whole(x: Number, mode: str) -> int:
    """Rounded to a whole number."""
    value = -x[2] if x[1] else x[2]
    return {"rn": round(value), "rz": int(value), "rm": value.__floor__(), "rp": value.__ceil__()}[mode]


def _to_float(to: str, of: str, mode: str, modifiers: Sequence[str], bits: int, x: Number) -> int:
    if x[0] == "nan":
        result = bits << 16 if (to, of) == ("f32", "bf16") else NAN[to]
    elif x[0] == "inf":
        result = encode(x[1], Fraction(2) ** 2000, to, "rz") if "satfinite" in modifiers else infinity(x[1], to)
    elif any(word.endswith("i") and word[:2] in MODES for word in modifiers):
        result = encode(x[1], Fraction(abs(whole(x, mode))), to)
    else:
        result = encode(x[1], x[2], to, mode, finite="satfinite" in modifiers)
    if "ftz" in modifiers and to == "f32":
        result = flushed(result)
    if "relu" in modifiers and x[0] != "nan" and x[1]:
        result = 0
    if "sat" in modifiers:
        kind, sign, size = decode(result, to)
        result = 0 if kind == "nan" or sign or (kind == "num" and size == 0) else result
        result = encode(0, Fraction(1), to) if not sign and (kind == "inf" or size > 1) else result
    return result
