"""Which products and sums become one fma: the rule, and the bits."""

from __future__ import annotations

import numpy as np
import pytest

from moeparity import ptx
from tests.ptx.contractions import CASES, HEAD, text_of


@pytest.mark.parametrize("name", CASES)
def test_the_rule(name: str) -> None:
    """As ptxas does; tests/engines/cuda/test_contraction.py asks it."""
    body, fused = CASES[name]
    module = ptx.load(text_of(body))
    assert len(module.fused("k")) == fused
    assert set(module.fused("k")) <= set(module.contractible("k"))
    assert ptx.load(text_of(body), contract=False).fused("k") == ()


@pytest.mark.parametrize(
    ("body", "fused", "apart"),
    [("mul.f32 %f6,%f1,%f2;add.f32 %f7,%f6,%f3;", 2.0**-24, 0.0), ("mul.f32 %f6,%f1,%f2;sub.f32 %f7,%f6,%f4;", 2.0**-24, 0.0),
     ("mul.f32 %f6,%f1,%f2;sub.f32 %f7,%f4,%f6;", -(2.0**-24), 0.0),
     ("mul.f32 %f6,%f1,%f2;neg.f32 %f8,%f6;add.f32 %f7,%f8,%f4;", -(2.0**-24), 0.0),
     ("mul.f32 %f6,%f1,%f2;mul.f32 %f5,%f4,0f3F800000;sub.f32 %f7,%f6,%f5;", 2.0**-24, 0.0),
     ("mul.f32 %f6,%f1,%f2;add.f32 %f7,%f6,0fBF801000;", 2.0**-24, 0.0), ("mul.f32 %f6,%f1,%f2;sub.f32 %f7,%f6,0f3F801000;", 2.0**-24, 0.0)],
)  # fmt: skip
def test_one_rounding_or_two(body: str, fused: float, apart: float) -> None:
    """(1 + 2^-12)^2 has a bit more than fp32; what is taken from it is its rounding."""
    x = np.array([1 + 2.0**-12, 1 + 2.0**-12, -(1 + 2.0**-11), 1 + 2.0**-11, 0], np.float32)
    for contract, expected in ((True, fused), (False, apart)):
        out = np.zeros(1, np.float32)
        text = f"{HEAD}{body}st.global.f32 [%o],%f7;\nret;\n}}\n"
        ptx.load(text, contract=contract).launch("k", 1, 1, [out, x])
        assert out[0] == expected
