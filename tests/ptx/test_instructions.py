"""Every instruction in the table is run by some test; those that random programs do not reach are run here."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from moeparity import ptx
from moeparity.numerics.bits import int_view
from moeparity.numerics.special_functions.functions import approximate
from moeparity.ptx.approximate import APPROXIMATIONS
from moeparity.ptx.instructions.refused import _OTHER, _TENSOR
from moeparity.ptx.table import DECLARATIONS
from tests.ptx.templates import TEMPLATES
from tests.ptx.test_programs import BUILDS, FOLDER

HEAD = """.version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u64 in) {
.reg .b32 %r<20>; .reg .b64 %o, %i, %d<6>; .reg .pred %p<5>; .reg .f32 %f<9>; .reg .b16 %h<9>;
.shared .align 16 .b8 sh[64]; .local .align 8 .b8 lo[16];
ld.param.u64 %o, [out]; ld.param.u64 %i, [in]; mov.u32 %r0, %tid.x; mad.wide.u32 %o, %r0, 4, %o; mad.wide.u32 %i, %r0, 4, %i;
"""
LANES = list(range(32))
CASES: dict[str, tuple[str, list[int], Sequence[int | None]]] = {
    "shfl.sync.up.b32": ("shfl.sync.up.b32 %r2|%p1, %r1, 3, 0, -1;", LANES, [max(0, i - 3) if i > 2 else i for i in LANES]),
    "shfl.sync.down.b32": ("shfl.sync.down.b32 %r2, %r1, 4, 31, -1;", LANES, [i + 4 if i < 28 else i for i in LANES]),
    "shfl.sync.idx.b32": ("shfl.sync.idx.b32 %r2, %r1, 2, 0x181f, -1;", LANES, [i // 8 * 8 + 2 for i in LANES]),
    "shfl.sync.bfly.b32": ("shfl.sync.bfly.b32 %r2, %r1, 5, 31, -1;", LANES, [i ^ 5 for i in LANES]),
    "vote.sync.any.pred": ("setp.gt.u32 %p1, %r1, 30; vote.sync.any.pred %p2, %p1, -1; selp.u32 %r2, 1, 0, %p2;", LANES, [1] * 32),
    "vote.sync.all.pred": ("setp.gt.u32 %p1, %r1, 30; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r2, 1, 0, %p2;", LANES, [0] * 32),
    "vote.sync.uni.pred": ("setp.gt.u32 %p1, %r1, 99; vote.sync.uni.pred %p2, %p1, -1; selp.u32 %r2, 1, 0, %p2;", LANES, [1] * 32),
    "match.any.sync.b32": ("and.b32 %r3, %r1, 1; match.any.sync.b32 %r2, %r3, -1;", LANES, [0x55555555 << i % 2 for i in LANES]),
    "match.all.sync.b32": ("match.all.sync.b32 %r2|%p1, %r1, -1;", [7] * 32, [0xFFFFFFFF] * 32),
    "redux.sync.add.u32": ("redux.sync.add.u32 %r2, %r1, -1;", LANES, [496] * 32),
    "redux.sync.min.s32": ("neg.s32 %r3, %r1; redux.sync.min.s32 %r2, %r3, -1;", LANES, [0xFFFFFFE1] * 32),
    "redux.sync.xor.b32": ("redux.sync.xor.b32 %r2, %r1, -1;", [1] * 31 + [6], [7] * 32),
    "activemask.b32": ("activemask.b32 %r2;", LANES, [0xFFFFFFFF] * 32),
    "elect.sync": ("elect.sync _|%p1, -1; selp.u32 %r2, 1, 0, %p1;", LANES, [1] + [0] * 31),
    "bar.warp.sync": ("bar.warp.sync -1; mov.u32 %r2, %r1;", LANES, LANES),
    "barrier.sync": ("barrier.sync.aligned 3, 32; mov.u32 %r2, %r1;", LANES, LANES),
    "bar.arrive": ("setp.lt.u32 %p1, %r0, 0; @%p1 bar.sync 1, 64; bar.arrive 2, 64; mov.u32 %r2, %r1;", LANES, LANES),
    "bar.red.and.pred": ("setp.lt.u32 %p1, %r1, 31; bar.red.and.pred %p2, 0, %p1; selp.u32 %r2, 1, 0, %p2;", LANES, [0] * 32),
    "lanemask": ("mov.u32 %r2, %lanemask_lt;", LANES, [(1 << i) - 1 for i in LANES]),
    "atom.shared.add": ("atom.shared.add.u32 %r2, [sh], %r1;", [1] * 32, LANES),
    "atom.exch": ("atom.shared.exch.b32 %r2, [sh], %r1;", LANES, [0, *LANES[:-1]]),
    "atom.cas": ("atom.shared.cas.b32 %r2, [sh], %r1, 5;", LANES, [0] + [5] * 5 + [5] * 26),
    "atom.inc": ("atom.shared.inc.u32 %r2, [sh], 2;", LANES, [i % 3 for i in LANES]),
    "atom.dec": ("atom.shared.dec.u32 %r2, [sh], 2;", LANES, [(3 - i % 3) % 3 for i in LANES]),
    "atom.max": ("atom.shared.max.s32 %r2, [sh], %r1;", [3, 9, 4] + [0] * 29, [0, 3] + [9] * 30),
    "red.shared.or": ("red.shared.or.b32 [sh], %r1; bar.sync 0; ld.shared.u32 %r2, [sh];", [1 << i for i in LANES], [0xFFFFFFFF] * 32),
    "atom.add.bf16x2": ("atom.shared.add.noftz.bf16x2 %r2, [sh], %r1;", [0x3F804000] * 32,
                        [0, 0x3F804000, 0x40004080, 0x404040C0] + [None] * 28),
    "ld.local": ("st.local.u32 [lo+4], %r1; ld.local.u32 %r2, [lo+4];", LANES, LANES),
    "generic": ("mov.u64 %d1, sh; cvta.shared.u64 %d1, %d1; st.u32 [%d1], 9; isspacep.shared %p1, %d1; "
                "cvta.to.shared.u64 %d2, %d1; ld.shared.u32 %r3, [%d2]; selp.u32 %r2, %r3, 0, %p1;", LANES, [9] * 32),
    "cp.async": ("mov.u64 %d1, sh; mad.wide.u32 %d1, 0, 0, %d1; ld.param.u64 %d2, [in]; cp.async.ca.shared.global [%d1], [%d2], 8; "
                 "cp.async.wait_all; ld.shared.u32 %r2, [sh+4];", [5, 6] + [0] * 30, [6] * 32),
    "nothing": ("membar.gl; fence.acq_rel.gpu; nanosleep.u32 20; prefetch.global.L2 [%o]; griddepcontrol.wait; pmevent 1; "
                "prefetchu.L1 [%o]; mov.u32 %r2, %r1;", LANES, LANES),
    "createpolicy": ("createpolicy.fractional.L2::evict_last.b64 %d1, 1.0; st.global.L2::cache_hint.u32 [%o], %r1, %d1; "
                     "ld.global.L1::evict_last.L2::cache_hint.b32 %r2, [%o], %d1;", LANES, LANES),
    "mapa, getctarank": ("mov.u32 %r3, sh; mapa.shared::cluster.u32 %r4, %r3, 0; st.shared.u32 [%r3+4], 77; "
                         "ld.shared::cluster.u32 %r5, [%r4+4]; getctarank.shared::cluster.u32 %r6, %r4; add.u32 %r2, %r5, %r6;",
                         LANES, [77] * 32),
    "barrier.cluster": ("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.u32 %r2, "
                        "%cluster_nctarank;", LANES, [1] * 32),
    "add.s16x2": ("add.s16x2 %r2, %r1, 0xFFFFFFFF;", [0x00010000, 0x80000001] + [0] * 30, [0x0000FFFF, 0x7FFF0000] + [0xFFFFFFFF] * 30),
    "WARP_SZ": ("mov.u32 %r2, WARP_SZ;", LANES, [32] * 32),
    "mad.f32": ("cvt.rn.f32.u32 %f1, %r1; mad.rn.f32 %f2, %f1, %f1, %f1; cvt.rni.u32.f32 %r2, %f2;", LANES, [i * i + i for i in LANES]),
}  # fmt: skip


def launched(body: str, values: list[int]) -> list[int]:
    out, words_in = np.zeros(32, np.uint32), np.array(values, np.uint32)
    text = f"{HEAD}ld.global.u32 %r1, [%i];\n{body}\nst.global.u32 [%o], %r2;\nret;\n}}\n"
    ptx.load(text).launch("k", 1, 32, [out, words_in])
    return [int(value) for value in out]


@pytest.mark.parametrize("name", CASES)
def test_what_random_programs_do_not_reach(name: str) -> None:
    body, values, expected = CASES[name]
    words_out = launched(body, values)
    assert [value for value, word in zip(words_out, expected, strict=True) if word is not None] == [
        word for word in expected if word is not None
    ]


def test_every_instruction_of_the_table_is_run_by_a_test() -> None:
    programs = "\n".join((FOLDER / f"{build}.ptx").read_text() for build in BUILDS)
    texts = " ".join([programs, *(body for body, _, _ in CASES.values()), *(template.text for template in TEMPLATES)])
    refused = {*_TENSOR, *_OTHER}
    approximate = {name.split(".")[0] for name in APPROXIMATIONS}
    files = ("asynchronous_barriers", "dot_products", "matrices", "tensor_cores", "warp_groups")
    for name in (f"test_{file}.py" for file in files):
        texts += Path(__file__).with_name(name).read_text("utf-8")
    absent = {root for root in DECLARATIONS if f"{root}." not in texts and f" {root} " not in texts}
    assert absent - refused - approximate == set()


@pytest.mark.parametrize("root", [*_TENSOR, *_OTHER])
def test_what_is_refused_is_named_before_anything_is_run(root: str) -> None:
    with pytest.raises(ptx.UnknownInstruction, match=rf"`{root}\.sync\.what`"):
        launched(f"{root}.sync.what %r2, %r1;", LANES)


@pytest.mark.parametrize(
    "statement",
    ["frobnicate.u32 %r2, %r1;", "add.odd.u32 %r2, %r1, %r1;", "fma.f16.f32 %f1, %f2, %f3, %f4;", "ld.global.v16.u32 %r2, [%o];",
     "shfl.bfly.b32 %r2, %r1, 1, 31;", "cvt.rn.e4m3x2.f32 %h1, %f1, %f2;", "bar.cluster.arrive;"],
)  # fmt: skip
def test_an_unknown_instruction_is_an_error_that_names_it(statement: str) -> None:
    with pytest.raises(ptx.UnknownInstruction) as error:
        launched(statement, LANES)
    assert f"`{statement.split(maxsplit=1)[0].rstrip(';')}`" in str(error.value)
    assert "Line 9" in str(error.value)


@pytest.mark.parametrize(
    "statement", ["add.u32 %r2, %r1;", "mov.u32 %x1, %r1;", "bra $nowhere;", "mov.u32 %r2, %clock;"]
)
def test_what_cannot_be_bound_is_an_error_with_its_line(statement: str) -> None:
    with pytest.raises(ptx.PtxError, match="Line 9"):
        launched(statement, LANES)


@pytest.mark.parametrize("name", ["ex2", "lg2", "rsqrt", "rcp", "sqrt", "sin", "cos"])
@pytest.mark.parametrize("ftz", [True, False])
def test_approximate_instructions_are_by_table(name: str, ftz: bool) -> None:
    x = torch.from_numpy(np.random.default_rng(1).uniform(0.01, 20, 30).astype(np.float32))
    x = torch.cat([x, torch.tensor([2.0**-130, -0.0])])
    body = f"mov.b32 %f1, %r1; {name}.approx{'.ftz' * ftz}.f32 %f2, %f1; mov.b32 %r2, %f2;"
    results = torch.from_numpy(
        np.array(launched(body, [bits & 0xFFFFFFFF for bits in int_view(x).tolist()]), np.uint32).view(np.int32)
    )
    assert torch.equal(results, int_view(approximate(name, x, ftz=ftz)))


def test_tanh_is_taken_to_be_correctly_rounded() -> None:
    x = np.random.default_rng(1).uniform(0.01, 20, 32).astype(np.float32)
    body = "mov.b32 %f1, %r1; tanh.approx.f32 %f2, %f1; mov.b32 %r2, %f2;"
    results = np.array(launched(body, x.view(np.uint32).tolist()), np.uint32).view(np.float32)
    exact = np.tanh(x.astype(np.float64))
    assert (np.abs(results - exact) <= np.spacing(np.abs(results)) * 0.5000001).all()


def test_an_exact_tie_is_decided_by_more_digits_than_fp64_has() -> None:
    """tanh(x) lies beside x by x^3 / 3, far below what fp64 sees."""
    x = np.array([2.0**-140, 2.0**-20, -(2.0**-30), 2.0**-13], np.float32)
    tangent = APPROXIMATIONS["tanh.approx.f32"](x)
    exact = Fraction(float(x[1])) - Fraction(float(x[1])) ** 3 / 3
    below = Fraction(float(np.nextafter(x[1], np.float32(0))))
    assert float(tangent[1]) == (float(x[1]) if exact - below > Fraction(float(x[1])) - exact else float(below))


def test_what_a_device_was_measured_to_give_takes_the_place_of_an_assumption() -> None:
    text = f"{HEAD}mov.f32 %f1, 0f40000000; ex2.approx.ftz.f32 %f2, %f1; st.global.f32 [%o], %f2; ret;\n}}\n"
    out = np.zeros(1, np.float32)
    ptx.load(text, approximations={"ex2.approx.f32": lambda x: x * 0 + np.float32(4.5)}).launch("k", 1, 1, [out, out])
    assert out[0] == 4.5


def test_which_products_the_assembler_may_still_fuse_is_told() -> None:
    loaded = {build: ptx.load((FOLDER / f"{build}.ptx").read_text()) for build in BUILDS}
    assert loaded["reductions.nofma"].contractible("contracted") == ()
    text = f"{HEAD}mul.f32 %f1, %f2, %f3;\nadd.f32 %f4, %f1, %f5;\nmul.rn.f32 %f6, %f2, %f3;\nadd.f32 %f7, %f6, %f5;\nret;\n}}\n"
    assert ptx.load(text).contractible("k") == ((8, 9),)
