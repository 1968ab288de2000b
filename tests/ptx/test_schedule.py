"""Interleavings: what may not depend on them does not, and what is wrong shows."""

from __future__ import annotations

import numpy as np
import pytest

from moeparity import ptx
from tests.ptx.random_programs import Program
from tests.ptx.test_programs import fold, module, normal

HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out) {\n"


def kernel(body: str) -> ptx.Module:
    return ptx.load(f"{HEAD}.reg .b32 %r<9>; .reg .b64 %o; .reg .pred %p<3>; ld.param.u64 %o, [out];\n{body}\n}}\n")


def test_a_missing_barrier_shows_as_values_that_depend_on_the_interleaving() -> None:
    x = normal(2, 128)
    right: set[bytes] = set()
    wrong: set[bytes] = set()
    for seed in range(5):
        for name, outcomes in (("shared_tree", right), ("missing_barrier", wrong)):
            y = np.zeros(2, np.float32)
            module().launch(name, 2, 128, [x, y], shared=512, seed=seed)
            outcomes.add(y.tobytes())
    assert right == {fold(x).tobytes()}
    assert len(wrong) > 1


def test_a_read_beyond_a_buffer_is_an_error_that_names_line_block_and_thread() -> None:
    x, y = normal(100), np.zeros(32, np.float32)
    with pytest.raises(ptx.PtxError, match=r"Line \d+, block \(0, 0, 0\), thread \(4, 0, 0\): the global address 0x"):
        module().launch("beyond_the_end", 1, 32, [x, y, 100])


@pytest.mark.parametrize("seed", range(6))
def test_programs_without_memory_in_common_do_not_depend_on_the_seed(seed: int) -> None:
    assert Program(1000 + seed, length=20).differences(seed) == []


def test_a_barrier_that_some_never_reach_is_an_error() -> None:
    stuck = kernel("mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 8; @%p1 bra $A; bar.sync 1;\n$A: bar.sync 0; ret;")
    with pytest.raises(ptx.PtxError, match="waits at a barrier for threads that never come; 32 threads wait in all"):
        stuck.launch("k", 1, 32, [np.zeros(1)])


def test_a_shuffle_that_a_thread_of_its_mask_never_reaches_is_an_error() -> None:
    body = """mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 3; @%p1 bra $B;
        shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1; ret;\n$B: bar.sync 0; ret;"""
    with pytest.raises(ptx.PtxError, match="at an instruction of its warp for threads that never come"):
        kernel(body).launch("k", 1, 32, [np.zeros(1)])


def test_a_mask_without_the_thread_itself_is_an_error() -> None:
    with pytest.raises(ptx.PtxError, match="has not the thread itself"):
        kernel("mov.u32 %r1, 1; vote.sync.ballot.b32 %r2, 1, 254; ret;").launch("k", 1, 32, [np.zeros(1)])


def test_threads_that_ended_are_not_waited_for() -> None:
    out = np.zeros(64, np.uint32)
    body = """mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 40; @%p1 ret;
        bar.sync 0; vote.sync.ballot.b32 %r2, 1, -1; mad.wide.u32 %o, %r1, 4, %o; st.global.u32 [%o], %r2; ret;"""
    for seed in (None, 0, 1):
        kernel(body).launch("k", 1, 64, [out], seed=seed)
        assert out.tolist() == [0xFFFFFFFF] * 32 + [0xFF] * 8 + [0] * 24


def test_a_thread_may_wait_for_a_flag_that_a_later_one_sets() -> None:
    body = """mov.u32 %r1, %ctaid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra $S;
        $W: ld.volatile.global.u32 %r2, [%o]; setp.eq.u32 %p2, %r2, 0; @%p2 bra $W;
        add.u32 %r2, %r2, 1; st.global.u32 [%o+4], %r2; ret;
        $S: mov.u32 %r3, 41; st.release.gpu.global.u32 [%o], %r3; ret;"""
    for seed in (None, 3):
        out = np.zeros(2, np.uint32)
        kernel(body).launch("k", 2, 1, [out], seed=seed)
        assert out.tolist() == [41, 42]


def test_a_kernel_that_does_not_end_is_given_up() -> None:
    with pytest.raises(ptx.PtxError, match=r"100 steps were taken and threads still run \(`limit`\)"):
        kernel("$L: bra $L;").launch("k", 1, 1, [np.zeros(1)], limit=100)
