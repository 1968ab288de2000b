"""Clusters: numbers of blocks, shared memory of other blocks, barriers."""

from __future__ import annotations

import numpy as np
import pytest

from moeparity import ptx

HEAD = """.version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u64 size) {
.reg .b32 %r<20>; .reg .b64 %o, %d<6>; .reg .pred %p<3>; .shared .align 16 .b8 sh[256]; .extern .shared .b8 more[];
ld.param.u64 %o, [out]; mov.u32 %r0, %tid.x;\n"""


def run(body: str, out: np.ndarray, grid: object, block: int, cluster: object, seed: int | None = None) -> None:
    module = ptx.load(f"{HEAD}{body}\nret;\n}}\n")
    module.launch("k", grid, block, [out, 0], cluster=cluster, seed=seed)  # type: ignore[arg-type]


PLACE = """mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %nctaid.x; mad.lo.u32 %r1, %r2, %r3, %r1;
mad.wide.u32 %o, %r1, 16, %o; mov.u32 %r4, %cluster_ctarank; mov.u32 %r5, %clusterid.x; mov.u32 %r6, %clusterid.y;
mov.u32 %r7, %cluster_ctaid.y; st.global.v4.u32 [%o], {%r4, %r5, %r6, %r7};"""


def test_where_a_block_is_in_its_cluster() -> None:
    out = np.zeros((3, 4, 4), np.uint32)
    run(PLACE, out, (4, 3), 1, (2, 3))
    for y in range(3):
        for x in range(4):
            assert out[y, x].tolist() == [x % 2 + 2 * y, x // 2, 0, y]


SUM = """mov.u32 %r1, %ctaid.x; add.u32 %r2, %r1, 1; mov.u32 %r3, sh; st.shared.u32 [%r3], %r2;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
mov.u32 %r4, 0; mov.u32 %r5, 0; mov.u32 %r9, %cluster_nctarank;
$L: mapa.shared::cluster.u32 %r6, %r3, %r5; ld.shared::cluster.u32 %r7, [%r6]; mad.lo.u32 %r4, %r4, 10, %r7;
add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, %r9; @%p1 bra $L;
mad.wide.u32 %o, %r1, 4, %o; st.global.u32 [%o], %r4;"""


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_block_reads_what_the_others_of_its_cluster_have(seed: int | None) -> None:
    out = np.zeros(8, np.uint32)
    run(SUM, out, 8, 1, 4, seed)
    assert out.tolist() == [1234] * 4 + [5678 + 0] * 4


def test_a_generic_address_of_another_block_can_be_written_to() -> None:
    body = """mov.u64 %d1, sh; cvta.shared.u64 %d1, %d1; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %cluster_ctarank;
    xor.b32 %r2, %r2, 1; mapa.u64 %d2, %d1, %r2; add.u32 %r3, %r1, 50; st.u32 [%d2+8], %r3;
    barrier.cluster.arrive; barrier.cluster.wait; ld.shared.u32 %r4, [sh+8]; mad.wide.u32 %o, %r1, 4, %o; st.global.u32 [%o], %r4;"""
    for seed in (None, 0, 5):
        out = np.zeros(4, np.uint32)
        run(body, out, 4, 1, 2, seed)
        assert out.tolist() == [51, 50, 53, 52]


def test_without_the_barrier_values_depend_on_the_interleaving() -> None:
    body = SUM.replace("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", "")
    outcomes = set()
    for seed in range(8):
        out = np.zeros(4, np.uint32)
        run(body, out, 4, 1, 4, seed)
        outcomes.add(out.tobytes())
    assert len(outcomes) > 1


def test_threads_that_ended_are_not_waited_for_and_phases_do_not_mix() -> None:
    body = """setp.ge.u32 %p1, %r0, 20; @%p1 ret; mov.u32 %r1, %ctaid.x; mov.u32 %r5, 0; mov.u32 %r3, sh;
    $L: st.shared.u32 [%r3], %r5; barrier.cluster.arrive; barrier.cluster.wait;
    xor.b32 %r6, %r1, 1; mapa.shared::cluster.u32 %r7, %r3, %r6; ld.shared::cluster.u32 %r8, [%r7];
    barrier.cluster.arrive; barrier.cluster.wait; setp.ne.u32 %p2, %r8, %r5; @%p2 trap;
    add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 3; @%p2 bra $L; st.global.u32 [%o], %r5;"""
    for seed in (None, 3):
        out = np.zeros(1, np.uint32)
        run(body, out, 2, 32, 2, seed)
        assert out.tolist() == [3]


@pytest.mark.parametrize(
    ("body", "message"),
    [("barrier.cluster.wait;", "without having arrived"), ("barrier.cluster.arrive; barrier.cluster.arrive;", "arrived twice"),
     ("mov.u32 %r1, sh; mapa.shared::cluster.u32 %r2, %r1, 2; ld.shared::cluster.u32 %r3, [%r2];", "outside of what there is"),
     ("mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; barrier.cluster.arrive; @%p1 barrier.cluster.wait; @!%p1 bra $S; ret; "
      "$S: bar.sync 0, 64;", "never come")],
)  # fmt: skip
def test_what_no_kernel_may_do_is_an_error(body: str, message: str) -> None:
    with pytest.raises(ptx.PtxError, match=message):
        run(body, np.zeros(2, np.uint32), 2, 1, 2)


def test_a_grid_that_is_no_whole_number_of_clusters_is_an_error() -> None:
    with pytest.raises(ptx.PtxError, match="3 blocks does not divide into clusters of 2"):
        run("", np.zeros(2, np.uint32), 3, 1, 2)
