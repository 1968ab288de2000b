"""ptxas itself is asked which products and sums it fuses, by its machine code."""

from __future__ import annotations

import pytest

from moeparity import ptx
from tests.engines.cuda import ropes, toolchain
from tests.ptx.contractions import CASES, text_of

pytestmark = pytest.mark.live


@pytest.mark.parametrize("name", CASES)
def test_the_assembler_fuses_what_the_rule_says(name: str) -> None:
    body, fused = CASES[name]
    code = toolchain.machine_code(text_of(body))
    assert sum("FFMA" in line for line in code) == fused
    # What is left of the products and sums; the assembler adds none.
    assert sum("FMUL" in line or "FADD" in line for line in code) == body.count("mul") + body.count("add") + body.count(
        "sub.f32"
    ) - 2 * fused + (1 if "one product in two sums" in name else 0)


def test_in_an_engines_kernel_too() -> None:
    name = ropes.vllm().full_name("rotary_embedding_kernelIN3c108BFloat16ES2_Lb1")
    text = toolchain.vllm("pos_encoding_kernels.cu")
    code = toolchain.machine_code(text, name)
    body = text.partition(f".entry {name}(")[2].partition("\n}")[0]
    written = body.count("fma.rn.f32")
    assert len(ropes.vllm().fused(name)) > 0
    assert sum("FFMA" in line for line in code) == written + len(ropes.vllm().fused(name))
    assert not any("FADD" in line for line in code)
    assert ptx.load(text, contract=False).fused(name) == ()
