"""ldmatrix and stmatrix: rows of eight 16-bit numbers, by the picture in the PTX ISA, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from moeparity import ptx

HEAD = """.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 .ptr .global .align 1 out, .param .u32 n) {
.reg .b32 %r<20>; .reg .b64 %o; .shared .align 16 .b8 sh[1024];
ld.param.u64 %o, [out]; mov.u32 %r0, %tid.x; mov.u32 %r9, sh; and.b32 %r8, %r0, 31; shr.u32 %r7, %r0, 5;
mad.lo.u32 %r9, %r7, 512, %r9; mad.lo.u32 %r6, %r8, 16, %r9;
"""
"""%r9: the 512 bytes of the warp; %r6: the row whose address the thread gives."""


def launched(body: str, registers: int, warps: int = 2) -> np.ndarray:
    """[warps, 32, registers], of what a thread has in %r1 and on."""
    out = np.zeros((warps, 32, registers), np.uint32)
    stores = "".join(f"st.global.u32 [%o+{4 * i}], %r{1 + i};" for i in range(registers))
    text = f"{HEAD}{body}\nmad.wide.u32 %o, %r0, {4 * registers}, %o; {stores} ret;\n}}\n"
    ptx.load(text).launch("k", 1, 32 * warps, [out, 0])
    return out


def halves(registers: np.ndarray) -> np.ndarray:
    """[.., n] registers -> [.., n, 2] 16-bit numbers, the lower first."""
    return np.stack([registers & 0xFFFF, registers >> 16], -1)


FILL = "".join(
    f"mad.lo.u32 %r5, %r8, 16, {4 * i}; add.u32 %r10, %r9, %r5; mad.lo.u32 %r11, %r8, 8, {2 * i};"
    "add.u32 %r12, %r11, 1; shl.b32 %r12, %r12, 16; or.b32 %r11, %r11, %r12; st.shared.u32 [%r10], %r11;"
    for i in range(4)
)
"""Each warp's 256 numbers are 0 to 255, eight a row."""


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix(count: int, trans: str) -> None:
    names = ", ".join(f"%r{1 + i}" for i in range(count))
    loaded = launched(
        f"{FILL} bar.warp.sync -1;\nldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [%r6];", count
    )
    for lane in range(32):
        for matrix in range(count):
            for half in (0, 1):
                row, column = lane // 4, lane % 4 * 2 + half
                row, column = (column, row) if trans else (row, column)
                assert (halves(loaded)[:, lane, matrix, half] == 64 * matrix + 8 * row + column).all()


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_is_the_way_back(trans: str) -> None:
    names = "{%r1, %r2, %r3, %r4}"
    body = f"""{FILL} bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {names}, [%r6];
        st.shared.v4.u32 [%r6], {{0, 0, 0, 0}}; bar.warp.sync -1;
        stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r6], {names}; bar.warp.sync -1;
        ld.shared.v4.u32 {names}, [%r6];"""
    assert (halves(launched(body, 4)).reshape(2, 256) == np.arange(256)).all()


def test_a_store_with_trans_transposes() -> None:
    names = "{%r1, %r2, %r3, %r4}"
    body = f"""{FILL} bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {names}, [%r6]; bar.warp.sync -1;
        stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r6], {names}; bar.warp.sync -1;
        ld.shared.v4.u32 {names}, [%r6];"""
    expected = np.arange(256).reshape(4, 8, 8).swapaxes(1, 2).reshape(256)
    assert (halves(launched(body, 4)).reshape(2, 256) == expected).all()


def test_a_row_that_is_not_aligned_is_an_error() -> None:
    with pytest.raises(ptx.PtxError, match="16"):
        launched("add.u32 %r6, %r6, 2; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r6];", 1)
