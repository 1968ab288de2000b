"""`dp2a`: two numbers of 16 bits times two of 8, and a third."""

from __future__ import annotations

import numpy as np
import pytest

from moeparity import ptx

HEAD = """.version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(
.param .u64 a, .param .u64 b, .param .u64 c) {
.reg .b32 %r<9>; .reg .b64 %d<4>; mov.u32 %r0, %tid.x; ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b];
ld.param.u64 %d2, [c]; mad.wide.u32 %d0, %r0, 4, %d0; mad.wide.u32 %d1, %r0, 4, %d1; mad.wide.u32 %d2, %r0, 4, %d2;
ld.global.u32 %r1, [%d0]; ld.global.u32 %r2, [%d1]; ld.global.u32 %r3, [%d2];\n"""


def signed(number: int, bits: int, type_: str) -> int:
    return number - (1 << bits) if type_ == "s32" and number >> bits - 1 else number


def by_hand(a: int, b: int, c: int, types: tuple[str, str], first: int) -> int:
    pairs = ((a >> 16 * i & 0xFFFF, b >> 8 * (first + i) & 0xFF) for i in range(2))
    return (c + sum(signed(x, 16, types[0]) * signed(y, 8, types[1]) for x, y in pairs)) & 0xFFFFFFFF


@pytest.mark.parametrize("half", ["lo", "hi"])
@pytest.mark.parametrize("types", [("u32", "u32"), ("s32", "u32"), ("u32", "s32"), ("s32", "s32")])
def test_values(types: tuple[str, str], half: str) -> None:
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(0, 1 << 32, 64, dtype=np.uint32) for _ in "abc")
    first, triples = 2 * (half == "hi"), zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    expected = [by_hand(x, y, z, types, first) for x, y, z in triples]
    body = f"dp2a.{half}.{types[0]}.{types[1]} %r4, %r1, %r2, %r3; st.global.u32 [%d2], %r4; ret;"
    ptx.load(f"{HEAD}{body}\n}}\n").launch("k", 1, 64, [a, b, c])
    assert c.tolist() == expected


def test_other_types_are_refused() -> None:
    with pytest.raises(ptx.UnknownInstruction, match="types known: u32, s32"):
        ptx.load(f"{HEAD}dp2a.lo.u32.f32 %r4, %r1, %r2, %r3; ret;\n}}\n").launch("k", 1, 32, [np.zeros(32)] * 3)
