"""`mbarrier` and `cp.async.mbarrier.arrive`: phases that are over once all have arrived, and not before."""

from __future__ import annotations

import numpy as np
import pytest

from moeparity import ptx

HEAD = """.version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u64 in) {
.reg .b32 %r<20>; .reg .b64 %o, %i, %s, %d<4>; .reg .pred %p<4>; .shared .align 16 .b8 full[8];
.shared .align 16 .b8 free[8]; .shared .align 16 .b8 box[128]; ld.param.u64 %o, [out]; ld.param.u64 %i, [in];
mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 31; setp.ne.u32 %p1, %r0, 0; @%p1 bra $A;
mbarrier.init.shared::cta.b64 [full], 32; mbarrier.init.shared::cta.b64 [free], 32;
$A: bar.sync 0; setp.ge.u32 %p2, %r0, 32;\n"""
TURNS = 5
SENT = f"""mov.u32 %r2, 0; mov.u32 %r3, box; mad.lo.u32 %r3, %r1, 4, %r3; @%p2 bra $RECEIVE;
$SEND: and.b32 %r4, %r2, 1; xor.b32 %r4, %r4, 1;
$W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [free], %r4; @!%p3 bra $W;
mad.lo.u32 %r5, %r2, 32, %r1; mad.wide.u32 %d0, %r5, 4, %i; COPY
add.u32 %r2, %r2, 1; setp.lt.u32 %p3, %r2, {TURNS}; @%p3 bra $SEND; ret;
$RECEIVE: and.b32 %r4, %r2, 1;
$V: mbarrier.test_wait.parity.shared::cta.b64 %p3, [full], %r4; @!%p3 bra $V;
mov.u32 %r6, box; sub.u32 %r7, 31, %r1; mad.lo.u32 %r6, %r7, 4, %r6; ld.shared.u32 %r8, [%r6];
mad.lo.u32 %r5, %r2, 32, %r7; mad.wide.u32 %d1, %r5, 4, %o; st.global.u32 [%d1], %r8;
mbarrier.arrive.shared::cta.b64 %s, [free];
add.u32 %r2, %r2, 1; setp.lt.u32 %p3, %r2, {TURNS}; @%p3 bra $RECEIVE; ret;"""
COPIES = {
    "store": "ld.global.u32 %r9, [%d0]; st.shared.u32 [%r3], %r9; mbarrier.arrive.shared::cta.b64 %s, [full];",
    "copy": "cp.async.ca.shared.global [%r3], [%d0], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [full];",
}


def run(body: str, threads: int, seed: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    sent = np.arange(1, 32 * TURNS + 1, dtype=np.uint32)
    out = np.zeros_like(sent)
    ptx.load(f"{HEAD}{body}\n}}\n").launch("k", 1, threads, [out, sent], seed=seed)
    return sent, out


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("copy", COPIES)
def test_a_warp_hands_over_through_one_box(copy: str, seed: int | None) -> None:
    """Each turn waits until the one before has been read, and each reader until all have sent."""
    sent, out = run(SENT.replace("COPY", COPIES[copy]), 64, seed)
    assert out.tolist() == sent.tolist()


def test_who_does_not_wait_reads_what_is_not_there() -> None:
    hasty = SENT.replace("COPY", COPIES["store"]).replace("@!%p3 bra $V;", "").replace("@!%p3 bra $W;", "")
    outcomes = [run(hasty, 64, seed) for seed in range(6)]
    assert any(sent.tolist() != out.tolist() for sent, out in outcomes)


def test_the_phase_before_the_first_is_over_and_the_first_is_not() -> None:
    """And an arrival gives what the barrier was."""
    body = """mbarrier.try_wait.parity.shared::cta.b64 %p3, [full], 1; selp.u32 %r2, 1, 0, %p3;
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [full], 0; selp.u32 %r3, 1, 0, %p3;
    mbarrier.arrive.shared::cta.b64 %s, [full]; mbarrier.try_wait.parity.shared::cta.b64 %p3, [full], 0;
    selp.u32 %r4, 1, 0, %p3; setp.eq.u32 %p3, %r0, 0; @!%p3 ret; st.global.v4.u32 [%o], {%r2, %r3, %r4, %r4};
    mbarrier.inval.shared::cta.b64 [full]; ret;"""
    _, out = run(body, 32)
    assert out[:3].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mbarrier.arrive.shared::cta.b64 %s, [full], 2;", "a thread arrives once"),
        ("mbarrier.try_wait.shared::cta.b64 %p3, [full], %s;", "named by its parity"),
        ("mbarrier.try_wait.parity.shared::cta.b64 %p3, [full], 0, 100;", "without a limit of time"),
        ("mbarrier.arrive.expect_tx.shared::cta.b64 %s, [full], 16;", "`.expect_tx` has no meaning there"),
    ],
)
def test_what_is_not_built_is_named(text: str, why: str) -> None:
    with pytest.raises(ptx.UnknownInstruction, match=why):
        run(f"{text} ret;", 32)
