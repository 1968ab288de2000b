"""Simulated ranks: arguments of their own, memory in common, structs, and any interleaving."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from moeparity import ptx

HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n"
SUM = f"""{HEAD}.visible .entry sum(.param .align 8 .b8 all[16], .param .u64 flags, .param .u64 out, .param .u32 rank) {{
.reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<5>; .reg .pred %p<3>;
ld.param.u64 %d3, [flags]; ld.param.u64 %d4, [out]; ld.param.u32 %r1, [rank]; ld.param.v2.u64 {{%d1, %d2}}, [all];
mad.wide.u32 %d5, %r1, 4, %d3; xor.b32 %r2, %r1, 1; mad.wide.u32 %d6, %r2, 4, %d3;
BARRIER
ld.global.f32 %f1, [%d1]; ld.global.f32 %f2, [%d2]; add.rn.f32 %f3, %f1, %f2; st.global.f32 [%d4], %f3; ret; }}"""
BARRIER = """setp.eq.u32 %p2, %r1, 0; selp.b64 %d7, %d1, %d2, %p2; ld.global.f32 %f4, [%d7]; add.rn.f32 %f4, %f4, %f4;
st.global.f32 [%d7], %f4; st.release.sys.global.u32 [%d5], 1;
$W: ld.acquire.sys.global.u32 %r3, [%d6]; setp.eq.u32 %p1, %r3, 0; @%p1 bra $W;"""


def summed(text: str, seed: int | None) -> list[float]:
    x, flags = [torch.tensor([1.5]), torch.tensor([4.0])], torch.zeros(2, dtype=torch.int32)
    out = [torch.zeros(1) for _ in x]
    args = [[ptx.Struct("PP", x), flags, out[rank], rank] for rank in range(2)]
    ptx.load(text).launch_ranks("sum", 1, 1, args, seed=seed)  # type: ignore[arg-type]
    return [float(part) for part in out]


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_ranks_wait_for_each_others_flags(seed: int | None) -> None:
    """Each doubles its own number first, and then reads both."""
    assert summed(SUM.replace("BARRIER", BARRIER), seed) == [11.0, 11.0]


def test_without_the_wait_values_depend_on_the_interleaving() -> None:
    text = SUM.replace("BARRIER", BARRIER.partition("$W")[0])
    assert len({tuple(summed(text, seed)) for seed in range(12)}) > 1


def test_a_variable_that_every_device_has_for_itself_is_refused() -> None:
    text = f"""{HEAD}.global .u32 counter;\n.visible .entry k(.param .u64 out) {{ .reg .b32 %r; ld.global.u32 %r, [counter]; ret; }}"""
    module = ptx.load(text)
    with pytest.raises(ptx.PtxError, match="counter"):
        module.launch_ranks("k", 1, 1, [[np.zeros(1)], [np.zeros(1)]])
    module.launch("k", 1, 1, [np.zeros(1)])


STRUCT = f"""{HEAD}.visible .entry k(.param .align 8 .b8 own[24], .param .u64 table, .param .u64 out) {{
.reg .b32 %r<5>; .reg .b64 %d<6>; .reg .f32 %f<3>;
ld.param.u32 %r1, [own]; ld.param.u64 %d1, [own+8]; ld.param.f32 %f1, [own+16]; ld.param.u8 %r4, [own+20];
ld.param.u64 %d2, [table]; ld.global.u64 %d3, [%d2+8]; ld.global.u32 %r2, [%d3]; ld.global.u32 %r3, [%d1];
ld.param.u64 %d4, [out]; add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3; cvt.rzi.u32.f32 %r2, %f1; add.u32 %r1, %r1, %r2;
add.u32 %r1, %r1, %r4; st.global.u32 [%d4], %r1; ret; }}"""


def test_structs_hold_addresses_of_arrays_and_of_structs() -> None:
    first, second, out = (np.array([value], np.uint32) for value in (10, 200, 0))
    inner = ptx.Struct("PP", [0, second])
    ptx.load(STRUCT).launch("k", 1, 1, [ptx.Struct("iPf?0P", [3000, first, 40000.0, True]), inner, out])
    assert out.tolist() == [43211]
    with pytest.raises(ptx.PtxError, match="Argument 0: a struct of 16 bytes was given for 24"):
        ptx.load(STRUCT).launch("k", 1, 1, [inner, inner, out])
    with pytest.raises(ptx.PtxError, match="Argument 0: a struct 'ii' of 1 values"):
        ptx.load(STRUCT).launch("k", 1, 1, [ptx.Struct("ii", [1]), inner, out])
