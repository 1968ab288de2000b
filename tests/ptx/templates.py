"""Instructions that random programs are made of, each with its meaning by `tests.ptx.scalar`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tests.ptx import scalar

POOLS = {"r": ("b32", 4, 6), "rd": ("b64", 8, 4), "f": ("f32", 4, 6), "fd": ("f64", 8, 3), "h": ("b16", 2, 5)}
"""Register pool -> type, bytes, how many. Predicates are a pool of their own, `p`, of 3."""

Evaluate = Callable[[Sequence[int]], int | tuple[int, ...]]


@dataclass(frozen=True)
class Template:
    """An instruction, the pools of what it writes and reads, and its meaning on bits."""

    text: str
    results: tuple[str, ...]
    sources: tuple[str, ...]
    evaluate: Evaluate
    vectors: str = ""
    """`d` or `s` where results or sources stand in braces."""


def _floats() -> list[Template]:
    templates = []
    for root, count in {"add": 2, "sub": 2, "mul": 2, "fma": 3, "div": 2, "sqrt": 1, "rcp": 1}.items():
        for mode in scalar.MODES:
            for more in ((), ("ftz",), ("sat",), ("ftz", "sat")):
                if root not in {"div", "sqrt", "rcp"} or "sat" not in more:
                    templates.append(_arithmetic(root, "f32", (mode, *more), count, "f"))
        templates.append(_arithmetic(root, "f64", ("rn",), count, "fd"))
    for root in ("min", "max"):
        templates += [_arithmetic(root, "f32", more, 2, "f") for more in ((), ("ftz",), ("NaN",), ("ftz", "NaN"))]
        templates.append(_arithmetic(root, "f64", (), 2, "fd"))
    for root in ("neg", "abs"):
        templates += [_arithmetic(root, "f32", (), 1, "f"), _arithmetic(root, "f64", (), 1, "fd")]
    for format in ("f16", "bf16"):
        for root, count in {"add": 2, "sub": 2, "mul": 2, "fma": 3, "min": 2, "max": 2, "neg": 1, "abs": 1}.items():
            needed = ("rn",) if root in {"add", "sub", "mul", "fma"} else ()
            variants = [needed] + ([(*needed, "relu")] if root == "fma" else [])
            variants += [("NaN",)] if root in {"min", "max"} else []
            for more in variants:
                templates.append(_arithmetic(root, format, more, count, "h"))
                templates.append(_packed(root, format, more, count))
    templates.append(Template("copysign.f32", ("f",), ("f", "f"), lambda v: v[0] & 0x80000000 | v[1] & 0x7FFFFFFF))
    return templates


def _arithmetic(root: str, format: str, modifiers: tuple[str, ...], count: int, pool: str) -> Template:
    text = ".".join((root, *modifiers, format))
    return Template(text, (pool,), (pool,) * count, lambda v: scalar.arithmetic(root, format, modifiers, v))


def _packed(root: str, format: str, modifiers: tuple[str, ...], count: int) -> Template:
    def halves(values: Sequence[int]) -> int:
        low, high = (scalar.arithmetic(root, format, modifiers, [v >> at & 0xFFFF for v in values]) for at in (0, 16))
        return high << 16 | low

    return Template(".".join((root, *modifiers, f"{format}x2")), ("r",), ("r",) * count, halves)


_FORMS_OF_S32 = (("add", ("sat",)), ("sub", ("sat",)), ("min", ("relu",)), ("max", ("relu",)))


def _integers() -> list[Template]:
    templates = []
    for bits, pool, wide in ((16, "h", "r"), (32, "r", "rd"), (64, "rd", None)):
        for kind in "us":
            for root, modifiers in [
                *((root, ()) for root in ("add", "sub", "div", "rem", "min", "max")),
                ("mul", ("lo",)), ("mul", ("hi",)), ("mad", ("lo",)), ("mad", ("hi",)),
                *([("neg", ()), ("abs", ())] if kind == "s" else []),
                *(_FORMS_OF_S32 if (kind, bits) == ("s", 32) else []),
            ]:  # fmt: skip
                count = {"mad": 3, "neg": 1, "abs": 1}.get(root, 2)
                templates.append(_integer(root, kind, bits, modifiers, (pool,) * count, pool))
            if wide:
                templates.append(_integer("mul", kind, bits, ("wide",), (pool, pool), wide))
                templates.append(_integer("mad", kind, bits, ("wide",), (pool, pool, wide), wide))
            if bits > 16:
                templates.append(_bits("bfe", kind, bits, (), (pool, "r", "r"), pool))
                templates.append(_bits("bfind", kind, bits, (), (pool,), "r"))
            templates.append(_bits("shr", kind, bits, (), (pool, "r"), pool))
        for root in ("and", "or", "xor", "not", "cnot"):
            templates.append(_bits(root, "b", bits, (), (pool,) * (1 if root in {"not", "cnot"} else 2), pool))
        templates.append(_bits("shl", "b", bits, (), (pool, "r"), pool))
        if bits > 16:
            templates += [_bits(root, "b", bits, (), (pool,), "r") for root in ("popc", "clz")]
            templates.append(_bits("brev", "b", bits, (), (pool,), pool))
            templates.append(_bits("bfi", "b", bits, (), (pool, pool, "r", "r"), pool))
    for direction in "lr":
        templates += [_bits("shf", "b", 32, (direction, how), ("r",) * 3, "r") for how in ("wrap", "clamp")]
    templates += [_bits("prmt", "b", 32, (), ("r",) * 3, "r"), _bits("lop3", "b", 32, (), ("r", "r", "r", "imm8"), "r")]
    return [*templates, _bits("bfind", "u", 32, ("shiftamt",), ("r",), "r")]


def _integer(
    root: str, kind: str, bits: int, modifiers: tuple[str, ...], sources: tuple[str, ...], result: str
) -> Template:
    text = ".".join((root, *modifiers, f"{kind}{bits}"))
    return Template(text, (result,), sources, lambda v: scalar.integer(root, kind, bits, modifiers, v))


def _bits(
    root: str, kind: str, bits: int, modifiers: tuple[str, ...], sources: tuple[str, ...], result: str
) -> Template:
    text = ".".join((root, *modifiers, f"{kind}{bits}"))
    return Template(text, (result,), sources, lambda v: scalar.bitwise(root, kind, bits, modifiers, v))


_CONVERSIONS = (
    *((f"cvt.{mode}.f32.{kind}{bits}", "f", pool) for mode in scalar.MODES for kind in "us"
      for bits, pool in ((16, "h"), (32, "r"), (64, "rd"))),
    *((f"cvt.rn.f64.{kind}{bits}", "fd", pool) for kind in "us" for bits, pool in ((32, "r"), (64, "rd"))),
    *((f"cvt.{mode}i{ftz}.{kind}{bits}.f32", pool, "f") for mode in scalar.MODES for ftz in ("", ".ftz") for kind in "us"
      for bits, pool in ((16, "h"), (32, "r"), (64, "rd"))),
    *((f"cvt.{mode}i.{kind}{bits}.f64", pool, "fd") for mode in scalar.MODES for kind in "us"
      for bits, pool in ((32, "r"), (64, "rd"))),
    *((f"cvt.{mode}.{to}.{of}", "h", pool) for mode in ("rn", "rz") for to in ("f16", "bf16")
      for of, pool in (("f32", "f"), ("f64", "fd"))),
    ("cvt.rn.relu.bf16.f32", "h", "f"), ("cvt.rn.relu.f16.f32", "h", "f"),
    *((f"cvt{more}.f32.{of}", "f", "h") for of in ("f16", "bf16") for more in ("",)),
    ("cvt.f64.f16", "fd", "h"), ("cvt.f64.f32", "fd", "f"), ("cvt.rn.f16.s32", "h", "r"), ("cvt.rn.bf16.u64", "h", "rd"),
    *((f"cvt.{mode}{more}.f32.f64", "f", "fd") for mode in scalar.MODES for more in ("", ".ftz", ".sat")),
    *((f"cvt.{mode}i{more}.f32.f32", "f", "f") for mode in scalar.MODES for more in ("", ".ftz", ".sat")),
    ("cvt.sat.f32.f32", "f", "f"), ("cvt.ftz.f32.f32", "f", "f"), ("cvt.rni.f16.f16", "h", "h"), ("cvt.rmi.f64.f64", "fd", "fd"),
    *((f"cvt{sat}.{to}.{of}", pool, source) for sat in ("", ".sat") for to, pool in (("s16", "h"), ("u16", "h"), ("s32", "r"),
      ("u32", "r"), ("s64", "rd"), ("u64", "rd")) for of, source in (("s16", "h"), ("u32", "r"), ("s32", "r"), ("s64", "rd"),
      ("u64", "rd")) if to != of),
)  # fmt: skip


def _conversions() -> list[Template]:
    templates = []
    for text, result, source in _CONVERSIONS:
        templates.append(Template(text, (result,), (source,), partial(_converted, text)))
    for format in ("f16", "bf16"):
        templates.append(Template(f"cvt.rn.{format}x2.f32", ("r",), ("f", "f"), lambda v, to=format: (  # type: ignore[misc]
            scalar.converted(to, "f32", (), v[0]) << 16 | scalar.converted(to, "f32", (), v[1]))))  # fmt: skip
    for fp8 in ("e4m3", "e5m2"):
        templates.append(Template(f"cvt.rn.satfinite.{fp8}x2.f32", ("h",), ("f", "f"), lambda v, to=fp8: (  # type: ignore[misc]
            scalar.converted(to, "f32", ("satfinite",), v[0]) << 8 | scalar.converted(to, "f32", ("satfinite",), v[1]))))  # fmt: skip
        templates.append(Template(f"cvt.rn.f16x2.{fp8}x2", ("r",), ("h",), lambda v, of=fp8: (  # type: ignore[misc]
            scalar.converted("f16", of, (), v[0] >> 8) << 16 | scalar.converted("f16", of, (), v[0] & 0xFF))))  # fmt: skip
        templates.append(Template(f"cvt.rn.satfinite.{fp8}x2.f16x2", ("h",), ("r",), lambda v, to=fp8: (  # type: ignore[misc]
            scalar.converted(to, "f16", ("satfinite",), v[0] >> 16) << 8
            | scalar.converted(to, "f16", ("satfinite",), v[0] & 0xFFFF))))  # fmt: skip
    return templates


def _converted(text: str, values: Sequence[int]) -> int:
    *modifiers, to, of = text.split(".")[1:]
    return scalar.converted(to, of, modifiers, values[0])


def _predicates() -> list[Template]:
    templates = []
    for kind, width, pool in (("s", 32, "r"), ("u", 32, "r"), ("s", 64, "rd"), ("u", 64, "rd"), ("s", 16, "h")):
        words = ("eq", "ne", "lt", "le", "gt", "ge", *(("lo", "ls", "hi", "hs") if kind == "u" else ()))
        templates += [_setp(word, f"{kind}{width}", kind, width, pool) for word in words]
    for word in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
        templates += [
            _setp(word, "f32", "f32", 0, "f"),
            _setp(word, "f64", "f64", 0, "fd"),
            _setp(word, "bf16", "bf16", 0, "h"),
        ]
    for join, operate in (("and", int.__and__), ("or", int.__or__), ("xor", int.__xor__)):
        templates.append(Template(f"setp.lt.{join}.s32", ("p", "p"), ("r", "r", "p"), lambda v, op=operate: (  # type: ignore[misc]
            op(int(scalar.compared("lt", "s", 32, v[0], v[1])), v[2]),
            op(int(not scalar.compared("lt", "s", 32, v[0], v[1])), v[2]))))  # fmt: skip
        templates.append(Template(f"{join}.pred", ("p",), ("p", "p"), lambda v, op=operate: op(v[0], v[1])))  # type: ignore[misc]
    templates.append(Template("not.pred", ("p",), ("p",), lambda v: 1 - v[0]))
    templates.append(
        Template("set.gt.u32.f32", ("r",), ("f", "f"), lambda v: -scalar.compared("gt", "f32", 0, *v) & 0xFFFFFFFF)
    )
    templates.append(
        Template("set.le.f32.s32", ("f",), ("r", "r"), lambda v: 0x3F800000 * scalar.compared("le", "s", 32, *v))
    )
    for type_, pool in (("b32", "r"), ("b64", "rd"), ("f32", "f"), ("b16", "h"), ("f64", "fd")):
        templates.append(Template(f"selp.{type_}", (pool,), (pool, pool, "p"), lambda v: v[0] if v[2] else v[1]))
    templates.append(Template("slct.b32.s32", ("r",), ("r", "r", "r"), lambda v: v[0] if v[2] < 1 << 31 else v[1]))
    for word in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        templates.append(Template(f"testp.{word}.f32", ("p",), ("f",), lambda v, w=word: int(_tested(w, v[0]))))  # type: ignore[misc]
    return templates


def _tested(word: str, bits: int) -> bool:
    kind, _, size = scalar.decode(bits, "f32")
    normal = kind == "num" and bits >> 23 & 0xFF != 0
    return {"finite": kind == "num", "infinite": kind == "inf", "number": kind != "nan", "notanumber": kind == "nan",
            "normal": normal, "subnormal": kind == "num" and not normal and size != 0}[word]  # fmt: skip


def _setp(word: str, type_: str, kind: str, width: int, pool: str) -> Template:
    return Template(f"setp.{word}.{type_}", ("p",), (pool, pool), lambda v: int(scalar.compared(word, kind, width, *v)))


_MOVES = [
    Template("mov.b32", ("h", "h"), ("r",), lambda v: (v[0] & 0xFFFF, v[0] >> 16), "d"),
    Template("mov.b32", ("r",), ("h", "h"), lambda v: v[1] << 16 | v[0], "s"),
    Template("mov.b64", ("r", "r"), ("rd",), lambda v: (v[0] & 0xFFFFFFFF, v[0] >> 32), "d"),
    Template("mov.b64", ("rd",), ("r", "r"), lambda v: v[1] << 32 | v[0], "s"),
    Template("mov.b32", ("f",), ("r",), lambda v: v[0]),
    Template("mov.b32", ("r",), ("f",), lambda v: v[0]),
    Template("mov.b64", ("fd",), ("rd",), lambda v: v[0]),
    Template("mov.pred", ("p",), ("p",), lambda v: v[0]),
]
TEMPLATES = [*_floats(), *_integers(), *_conversions(), *_predicates(), *_MOVES]
