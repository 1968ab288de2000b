"""`mma` against the product of whole matrices, by the picture in the PTX ISA, element by element."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from moeparity import ptx
from moeparity.numerics.tensor_core.instructions import instruction
from moeparity.numerics.tensor_core.product import multiply_add

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
WARPS = 2


def launched(target: str, name: str, registers: np.ndarray, k: int) -> np.ndarray:
    """d [warps * 32, 4] of registers [warps * 32, words] that each thread reads: a, b, c."""
    words, of_a = registers.shape[1], k // 4
    names = [f"%r{10 + i}" for i in range(words - 4)]
    loads = "".join(f"ld.global.b32 {register}, [%o+{4 * i}];" for i, register in enumerate(names))
    loads += "".join(f"ld.global.f32 %f{i}, [%o+{4 * (words - 4 + i)}];" for i in range(4))
    stores = "".join(f"st.global.f32 [%q+{4 * i}], %f{4 + i};" for i in range(4))
    text = f"""
.version 9.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 .ptr .global .align 1 in, .param .u64 .ptr .global .align 1 out) {{
.reg .b32 %r<40>; .reg .f32 %f<8>; .reg .b64 %o; .reg .b64 %q;
ld.param.u64 %o, [in]; ld.param.u64 %q, [out]; mov.u32 %r0, %tid.x;
mad.wide.u32 %o, %r0, {4 * words}, %o; mad.wide.u32 %q, %r0, 16, %q; {loads}
{name} {{%f4, %f5, %f6, %f7}}, {{{", ".join(names[:of_a])}}}, {{{", ".join(names[of_a:])}}}, {{%f0, %f1, %f2, %f3}};
{stores} ret;
}}
"""
    out = np.zeros((registers.shape[0], 4), np.float32)
    ptx.load(text).launch("k", 1, registers.shape[0], [registers, out])
    return out


def bits(x: torch.Tensor) -> np.ndarray:
    return x.view(torch.int16).numpy().view(np.uint16).astype(np.uint32)


def fragments(a: np.ndarray, b: np.ndarray, c: np.ndarray, k: int) -> np.ndarray:
    """What each thread of a warp holds of a [16, k], b [k, 8], c [16, 8]: PTX ISA, figures of mma.m16n8k16 and .k8."""
    rows = []
    for lane in range(32):
        group, thread = lane // 4, lane % 4
        elements = [(group + 8 * (i // 2 % 2), thread * 2 + i % 2 + 8 * (i // 4)) for i in range(k // 2)]
        row = [int(a[elements[i]] | a[elements[i + 1]] << 16) for i in range(0, k // 2, 2)]
        elements = [(thread * 2 + i % 2 + 8 * (i // 2), group) for i in range(k // 4)]
        row += [int(b[elements[i]] | b[elements[i + 1]] << 16) for i in range(0, k // 4, 2)]
        row += [int(c[group + 8 * (i // 2), thread * 2 + i % 2].view(np.uint32)) for i in range(4)]
        rows.append(row)
    return np.array(rows, np.uint32)


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("k", [8, 16])
@pytest.mark.parametrize("type_", DTYPES)
def test_every_element_is_the_gpus(target: str, k: int, type_: str) -> None:
    generator = torch.Generator().manual_seed(k)
    a, b, c = (torch.randn(WARPS, *shape, generator=generator) for shape in ((16, k), (k, 8), (16, 8)))
    a, b = a.to(DTYPES[type_]), b.to(DTYPES[type_])
    registers = np.concatenate([fragments(bits(a[w]), bits(b[w]), c[w].numpy(), k) for w in range(WARPS)])
    name = f"mma.sync.aligned.m16n8k{k}.row.col.f32.{type_}.{type_}.f32"
    results = launched(target, name, registers, k)
    row = instruction(target.removesuffix("a"), {"f16": "fp16"}.get(type_, type_), unit="mma")
    missing = -k % row.span
    padded = torch.nn.functional.pad(a, (0, missing)), torch.nn.functional.pad(b, (0, 0, 0, missing))
    wanted = multiply_add(row, *padded, c).numpy()
    for thread in range(WARPS * 32):
        group, column = thread % 32 // 4, thread % 4 * 2
        for i in range(4):
            element = wanted[thread // 32, group + 8 * (i // 2), column + i % 2]
            assert results[thread, i].view(np.uint32) == element.view(np.uint32)


@pytest.mark.parametrize(
    ("target", "types", "sentence"),
    [
        ("sm_70", "f32.bf16.bf16.f32", "has no such instruction"),
        ("sm_90", "f16.f16.f16.f16", "are built"),
        ("sm_90", "f32.e4m3.e4m3.f32", "factors known: f16, bf16"),
    ],
)
def test_what_is_not_built_is_named(target: str, types: str, sentence: str) -> None:
    name = f"mma.sync.aligned.m16n8k16.row.col.{types}"
    with pytest.raises(ptx.UnknownInstruction, match=sentence):
        launched(target, name, np.zeros((32, 10), np.uint32), 16)
