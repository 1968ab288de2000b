"""Modules: names, arguments, variables, extents, and what is told of each mistake."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from moeparity import ptx

HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n"
TEXT = f"""{HEAD}
.global .align 4 .u32 counter = 40;
.const .align 4 .b32 table[4] = {{3, 5, -1}};
.global .align 8 .u64 pointer = counter;
.visible .entry _Z5countPj(.param .u64 out)
{{
  .reg .b32 %r<5>; .reg .b64 %d<4>; /* the pointer
  leads to the counter */
  ld.param.u64 %d1, [out];
  ld.global.u64 %d2, [pointer];
  ld.u32 %r1, [%d2]; add.u32 %r1, %r1, 1; st.global.u32 [counter], %r1; // kept for the next launch
  ld.const.u32 %r2, [table+4]; ld.const.s32 %r3, [table+8];
  st.global.v4.u32 [%d1], {{%r1, %r2, %r3, 7}};
  ret;
}}
.visible .entry _Z5placePj(.param .u64 out, .param .align 4 .b8 size[8], .param .f32 scale)
{{
  .reg .b32 %r<9>; .reg .b64 %d<3>; .reg .f32 %f<3>; .reg .pred %p;
  ld.param.u64 %d1, [out]; ld.param.v2.u32 {{%r1, %r2}}, [size]; ld.param.f32 %f1, [scale];
  mov.u32 %r3, %ctaid.z; mad.lo.u32 %r3, %r3, 2, 0; mov.u32 %r4, %tid.y; mad.lo.u32 %r3, %r3, 1, %r4;
  {{ .reg .b32 %r4; mov.u32 %r4, %nctaid.z; mul.lo.u32 %r2, %r2, %r4; }}
  mad.lo.u32 %r5, %r4, %r1, %r2; cvt.rzi.u32.f32 %r6, %f1; add.u32 %r5, %r5, %r6;
  mul.wide.u32 %d2, %r3, 4; add.u64 %d1, %d1, %d2; st.global.u32 [%d1], %r5; ret;
}}
"""


def test_variables_keep_what_a_launch_wrote() -> None:
    module, out = ptx.load(TEXT), np.zeros(4, np.uint32)
    for counted in (41, 42):
        module.launch("count", 1, 1, [out])
        assert out.tolist() == [counted, 5, 0xFFFFFFFF, 7]


def test_structs_scopes_and_three_axes() -> None:
    out = torch.zeros(6, dtype=torch.int32)
    ptx.load(TEXT).launch("place", (1, 1, 3), (1, 2), [out, struct.pack("<II", 10, 100), 5.9])
    assert out.tolist() == [305, 315] * 3


COPY = """.visible .entry k(.param .u64 a, .param .u64 b) { .reg .b64 %d<3>; .reg .b32 %r;
ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; st.global.u32 [%d1], 6;
ld.global.u32 %r, [%d2]; st.global.u32 [%d2+4], %r; ret; }"""


def test_the_same_bytes_given_twice_are_one_memory_and_a_part_of_them_is_an_error() -> None:
    out = torch.zeros(4, dtype=torch.int32)
    ptx.load(f"{HEAD}{COPY}").launch("k", 1, 1, [out, out.view(2, 2)])
    assert out.tolist() == [6, 6, 0, 0]
    with pytest.raises(ptx.PtxError, match="share a part of their memory"):
        ptx.load(f"{HEAD}{COPY}").launch("k", 1, 1, [out, out[1:]])


BROKEN = {
    ".visible .entry (": "Line 4: a function without an end",
    ".visible .entry () { ret; }": "Line 4: an `.entry` without a name",
    ".global .b32 x[8;": "Line 4: `;`, and `]` expected",
    ".global .b32 x[1x];": "Line 4: `1x` is no whole number",
    ".global .b32 x[99999999999999999999];": "Line 4: `99999999999999999999` has more than 64 bits",
    ".global .align 3 .b32 x;": "Line 4: an alignment of 3, which is no power of two",
    ".global .texref x;": "Line 4: `.global .texref` is no declaration of a variable",
    ".visible .entry k(.b32 a) { ret; }": "Line 4: `.b32` is no declaration of a variable",
    ".global .b8 x[99999999999999];": "99,999,999,999,999 bytes of memory are declared, which is more than there is",
    ".global .b64 x[9223372036854775807][99];": "bytes of memory are declared, which is more than there is",
    ".visible .entry k() { .local .b8 x[999999999999999]; ret; }": "bytes of memory are declared",
    ".visible .entry k() { .shared .b8 x[999999999999999]; ret; }": "bytes of memory are declared",
    ".global .f32 x = 0fq;": "Line 4: `0fq` is no whole number",
}
BROKEN_BODIES = {
    ".reg .b32 %x<n>; ret;": "Line 4: `n` is no whole number",
    ".reg .b32 %x<4; ret;": "Line 4: `;`, and `>` expected",
    ".reg .b32 %x<4000000000>; ret;": "Line 4: 4000000000 registers; a kernel has at most 100000 of a name",
    "bra;": "Line 4: `bra` does not say where to",
    "bra 3;": "Line 4: `bra` does not say where to",
    "brx.idx %r0;": "Line 4: `brx.idx` does not say where to",
    "ld.global.u32 %r0, 8;": "Line 4: `ld.global.u32` without an address in brackets",
    "ld.global.u32 %r0, %r;": "Line 4: `ld.global.u32` without an address in brackets",
    "add.u32 %r0, [%r1], %r2;": "Line 4: `add.u32` reads no memory, and has an address",
    "mov.b32 %r0, {};": "Line 4: a vector of nothing",
    "setp.eq.u32;": "Line 4: `setp.eq.u32` with 0 operands",
    "mul.f32;": "Line 4: `mul.f32` with 0 operands",
    "mul;": "Line 4: `mul` is not known to this interpreter",
    "bar.sync;": "Line 4: `bar.sync` is not known to this interpreter: a barrier, and how many threads",
    "bar.sync 0, 32, 1;": "Line 4: `bar.sync` is not known to this interpreter: a barrier, and how many threads",
    "bar.red.popc.u32 %r0, 0;": "Line 4: `bar.red.popc.u32` is not known to this interpreter: a result, a barrier",
    "cp.async.ca.shared.global [0];": "Line 4: `cp.async.ca.shared.global` is not known .*: two addresses and a size",
    "cp.async.ca.shared.global [0], [0], 3;": "Line 4: `cp.async.ca.shared.global` of 3 bytes; 4, 8 or 16",
    "x": "Line 4: the text ends inside of a kernel",
}


@pytest.mark.parametrize(
    ("kernel", "args", "says"),
    [
        ("count", [], r"0 arguments were given; the kernel takes 1: \.u64"),
        ("count", [1.5], r"Argument 0: \.u64 is no float, and 1\.5 was given"),
        ("count", [torch.zeros(4, 4).t()[1:]], "a contiguous tensor on the CPU was expected"),
        ("place", [0, b"123", 1.0], "Argument 1: 3 bytes were given for 8"),
        ("place", [0, b"12345678", np.zeros(1)], r"Argument 2: \.f32 is no address, and an array was given"),
        ("count", [np.zeros(2, np.uint32)], "outside of what there is"),
        ("count", [np.zeros(9, np.uint8)[1:]], "outside of what there is"),
        ("Z5", [], "2 kernels have 'Z5' in their names, such as _Z5countPj, _Z5placePj"),
        ("norm", [], "No kernel has 'norm' in its name"),
    ],
)
def test_a_mistake_is_told(kernel: str, args: list[object], says: str) -> None:
    with pytest.raises(ptx.PtxError, match=says):
        ptx.load(TEXT).launch(kernel, 1, 1, args)  # type: ignore[arg-type]


@pytest.mark.parametrize(("grid", "block"), [(0, 1), (1, 1025), ((1, 1, 1, 1), 1), (1, (32, 33))])
def test_an_extent_that_no_device_takes_is_an_error(grid: object, block: object) -> None:
    with pytest.raises(ptx.PtxError, match="one to three whole numbers"):
        ptx.load(TEXT).launch("count", grid, block, [np.zeros(4, np.uint32)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("int main() {}", "This is no PTX"),
        (f"{HEAD}.visible .entry k() {{ ret;", "a function without an end"),
        (f"{HEAD}.visible .entry k() {{ .reg .b128 %q; ret; }}", r"registers of type `\.b128` are not known"),
        (
            f"{HEAD}.visible .entry k() {{ .reg .b64 %d; ld.global.u32 %d, [%d*2]; ret; }}",
            "Line 4: `\\*` is not understood",
        ),
        (f"{HEAD}.visible .entry k() {{ trap; }}", "Line 4: a thread reached `trap`"),
        (
            f"{HEAD}.visible .entry k() {{ call.uni f, (); }}",
            r"a thread reached `call.uni` \(functions are not built\)",
        ),
        *((f"{HEAD}{text}", says) for text, says in BROKEN.items()),
        *((f"{HEAD}.visible .entry k() {{ .reg .b32 %r<4>; {body} }}", says) for body, says in BROKEN_BODIES.items()),
    ],
)
def test_a_text_that_cannot_be_run_is_told(text: str, says: str) -> None:
    with pytest.raises(ptx.PtxError, match=says):  # noqa: PT012  either may tell it
        module = ptx.load(text)
        module.contractible("k")
        module.launch("k", 1, 1, [])


def test_a_kernel_without_a_statement_ends_at_once() -> None:
    assert ptx.load(f"{HEAD}.visible .entry k() {{ }}").launch("k", 1, 1, []).instructions == 0


def test_a_minus_before_a_float_is_its_sign() -> None:
    body = ".reg .b64 %d; ld.param.u64 %d, [o]; st.global.f32 [%d], -1.5; st.global.f32 [%d+4], -0f3F800000; ret;"
    out = np.zeros(2, np.float32)
    ptx.load(f"{HEAD}.visible .entry k(.param .u64 o) {{ {body} }}").launch("k", 1, 1, [out])
    assert out.tolist() == [-1.5, -1.0]


def test_a_misaligned_vector_is_an_error() -> None:
    body = ".reg .b64 %d; .reg .b32 %r<3>; ld.param.u64 %d, [o]; ld.global.v2.u32 {%r0, %r1}, [%d+4]; ret;"
    with pytest.raises(ptx.PtxError, match="is not a multiple of 8"):
        ptx.load(f"{HEAD}.visible .entry k(.param .u64 o) {{ {body} }}").launch("k", 1, 1, [np.zeros(4)])
