"""`wgmma` against the product of whole matrices, placed in shared memory by the pictures in the PTX ISA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from moeparity import ptx
from moeparity.numerics.tensor_core.instructions import instruction
from moeparity.numerics.tensor_core.product import multiply_add

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
WIDTHS = {0: 16, 1: 128, 2: 64, 3: 32}
"""Mode of a descriptor -> bytes of a row of its smallest tile."""
HALF = 1 << 15
"""Where b begins in shared memory."""


@dataclass(frozen=True)
class Placed:
    """A matrix [outer, K] as it lies: steps in bytes from a tile to the next, along K or across."""

    mode: int
    along_k: bool
    leading: int
    stride: int

    def offset(self, outer: int, k: int, size: int) -> int:
        """Of a number, in bytes: tiles of eight rows of 16 to 128 bytes, whose 16-byte units change places by row."""
        width = WIDTHS[self.mode]
        line, inside = (outer, k * size) if self.along_k else (k, outer * size)
        tiles, row, unit = line // 8, line % 8, inside % width // 16
        swapped = unit ^ (row * width // 128 % (width // 16))
        # Without a swizzle a tile's neighbour along K is the leading one, whichever axis lies together.
        along = self.leading if not (self.mode == 0 and not self.along_k) else self.stride
        across = self.stride if not (self.mode == 0 and not self.along_k) else self.leading
        return inside // width * along + tiles * across + row * width + swapped * 16 + inside % 16

    def descriptor(self, start: int) -> int:
        return start >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32 | self.mode << 62


def launched(
    name: str, image: np.ndarray, c: np.ndarray, operands: str, descriptors: list[int], *, adds: bool
) -> np.ndarray:
    """d [128, n / 2] of what each thread has of c, once the image lies in shared memory."""
    count = c.shape[1]
    registers = ", ".join(f"%f{i}" for i in range(count))
    loads = "".join(f"ld.global.f32 %f{i}, [%o+{4 * i}];" for i in range(count))
    stores = "".join(f"st.global.f32 [%o+{4 * i}], %f{i};" for i in range(count))
    text = f"""
.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out, .param .u64 a, .param .u64 b) {{
.reg .b32 %r<9>; .reg .f32 %f<{count}>; .reg .b64 %d<9>; .reg .b64 %o; .reg .pred %p<3>;
.shared .align 1024 .b8 sh[{image.size}];
ld.param.u64 %d0, [in]; ld.param.u64 %o, [out]; ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; mov.u32 %r0, %tid.x;
mad.wide.u32 %o, %r0, {4 * count}, %o; mad.wide.u32 %d0, %r0, 16, %d0; mov.u32 %r1, sh; shl.b32 %r2, %r0, 4;
add.u32 %r1, %r1, %r2; mov.u32 %r3, 0;
$copy: ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%d0]; st.shared.v4.b32 [%r1], {{%r4, %r5, %r6, %r7}};
add.u64 %d0, %d0, 2048; add.u32 %r1, %r1, 2048; add.u32 %r3, %r3, 2048;
setp.lt.u32 %p1, %r3, {image.size}; @%p1 bra $copy;
{loads} fence.proxy.async.shared::cta; bar.sync 0; wgmma.fence.sync.aligned; setp.ne.u32 %p2, {int(adds)}, 0;
ld.shared.b32 %r4, [sh]; ld.shared.b32 %r5, [sh+4]; ld.shared.b32 %r6, [sh+8]; ld.shared.b32 %r7, [sh+12];
{name} {{{registers}}}, {operands}; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
{stores} ret;
}}
"""
    out = c.copy()
    ptx.load(text).launch("k", 1, 128, [image, out, *descriptors])
    return out


def of_threads(c: torch.Tensor) -> np.ndarray:
    """[64, n] as 128 threads hold it: PTX ISA, figure of the accumulator of wgmma .m64nNk16."""
    rows = []
    for thread in range(128):
        row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
        rows.append([float(c[row + 8 * (i // 2 % 2), column + i % 2 + 8 * (i // 4)]) for i in range(c.shape[1] // 2)])
    return np.array(rows, np.float32)


def drawn(rows: int, k: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, k, generator=g) * 2.0 ** torch.randint(-6, 7, (rows, k), generator=g)).to(dtype)


def placed_bytes(image: np.ndarray, start: int, matrix: torch.Tensor, placed: Placed) -> None:
    raw, size = matrix.view(torch.uint8).numpy(), matrix.element_size()
    for outer in range(matrix.shape[0]):
        for k in range(matrix.shape[1]):
            at = start + placed.offset(outer, k, size)
            image[at : at + size] = raw[outer, k * size : (k + 1) * size]


@pytest.mark.parametrize("mode", WIDTHS)
@pytest.mark.parametrize(("a_along_k", "b_along_k"), [(True, True), (True, False), (False, True)])
def test_tiles_in_shared_memory(mode: int, a_along_k: bool, b_along_k: bool) -> None:
    """N of 136 is no multiple of a tile; nothing is added where the predicate says so."""
    a, b = drawn(64, 16, BF16, 1), drawn(136, 16, BF16, 2)
    for_a, for_b = (Placed(mode, along_k, leading=2048, stride=1024) for along_k in (a_along_k, b_along_k))
    if mode == 0:
        for_a, for_b = Placed(0, a_along_k, 2048, 128), Placed(0, b_along_k, 8192, 256)
    image = np.zeros(2 * HALF, np.uint8)
    placed_bytes(image, 0, a, for_a)
    placed_bytes(image, HALF, b, for_b)
    c = torch.randn(64, 136, generator=torch.Generator().manual_seed(3))
    operands = f"%d1, %d2, %p2, 1, 1, {int(not a_along_k)}, {int(not b_along_k)}"
    name, descriptors = (
        "wgmma.mma_async.sync.aligned.m64n136k16.f32.bf16.bf16",
        [for_a.descriptor(0), for_b.descriptor(HALF)],
    )
    arithmetic = instruction("h100", "bf16", unit="wgmma")
    for adds in (True, False):
        d = launched(name, image, of_threads(c), operands, descriptors, adds=adds)
        expected = multiply_add(arithmetic, a, b.t().contiguous(), c if adds else torch.zeros_like(c))
        assert np.array_equal(d.view(np.uint32), of_threads(expected).view(np.uint32))


def test_numbers_of_8_bits_behind_the_first_step() -> None:
    """The second 32 of K: the descriptor's start lies inside a row."""
    a, b = drawn(64, 64, E4M3, 1), drawn(16, 64, E4M3, 2)
    placed = Placed(2, along_k=True, leading=16, stride=512)
    image = np.zeros(2 * HALF, np.uint8)
    placed_bytes(image, 0, a, placed)
    placed_bytes(image, HALF, b, placed)
    c = torch.randn(64, 16, generator=torch.Generator().manual_seed(3))
    d = launched(
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3", image, of_threads(c), "%d1, %d2, %p2, 1, 1",
        [placed.descriptor(32), placed.descriptor(HALF + 32)], adds=True,
    )  # fmt: skip
    arithmetic = instruction("h100", "fp8_e4m3", unit="wgmma")
    expected = multiply_add(arithmetic, a[:, 32:].contiguous(), b[:, 32:].t().contiguous(), c)
    assert np.array_equal(d.view(np.uint32), of_threads(expected).view(np.uint32))


def test_a_in_registers() -> None:
    """Every thread has the same four registers here: rows of a are alike, and columns come in four."""
    four = drawn(1, 8, BF16, 1)
    b = drawn(8, 16, BF16, 2)
    placed = Placed(3, along_k=True, leading=16, stride=256)
    image = np.zeros(2 * HALF, np.uint8)
    placed_bytes(image, HALF, b, placed)
    image[:16] = four.view(torch.uint8).numpy()[0]
    # Registers 0 and 1 hold columns 0 to 7 of rows above and below, 2 and 3 columns 8 to 15: two numbers each.
    upper = torch.cat([four[0, :2].repeat(4), four[0, 4:6].repeat(4)])
    lower = torch.cat([four[0, 2:4].repeat(4), four[0, 6:8].repeat(4)])
    a = torch.stack([upper] * 8 + [lower] * 8).repeat(4, 1)
    c = torch.zeros(64, 8)
    d = launched(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", image, of_threads(c),
        "{%r4, %r5, %r6, %r7}, %d2, %p2, 1, 1, 0", [0, placed.descriptor(HALF)], adds=True,
    )  # fmt: skip
    expected = multiply_add(instruction("h100", "bf16", unit="wgmma"), a, b.t().contiguous(), c)
    assert np.array_equal(d.view(np.uint32), of_threads(expected).view(np.uint32))


@pytest.mark.parametrize(
    ("name", "operands", "why"),
    [
        ("m64n8k16.f32.bf16.bf16", "%d1, %d2, %p2, -1, 1, 0, 0", "a sign of 1"),
        ("m64n8k32.f32.bf16.bf16", "%d1, %d2, %p2, 1, 1, 0, 0", "a step has 16 products"),
        ("m64n8k8.f32.tf32.tf32", "%d1, %d2, %p2, 1, 1", "m64n8k8"),
        ("m64n8k16.f32.bf16.f16", "%d1, %d2, %p2, 1, 1, 0, 0", "two factors of one type"),
    ],
)
def test_what_is_not_built_is_named(name: str, operands: str, why: str) -> None:
    with pytest.raises(ptx.UnknownInstruction, match=why):
        launched(
            f"wgmma.mma_async.sync.aligned.{name}", np.zeros(4096, np.uint8), np.zeros((128, 4), np.float32), operands,
            [0, 0], adds=True,
        )  # fmt: skip
