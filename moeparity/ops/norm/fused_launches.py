"""Launch rules as in `launches`, for kernels that also reduce over ranks: all-reduce, residual add and RMSNorm in one.
They need no torch.

If a launch depends on the GPU, it is that of SM90: clusters of up to 8 blocks, at most 64 registers a thread, so that
1024 threads fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

from moeparity.ops.norm.launches import WARP, Launch, accesses, refuse, warps_of

_BLOCK = 1024
"""The most threads of a block."""
_CLUSTER = 8
"""The most blocks of a cluster."""

_ONE_SHOT, _TWO_SHOT = "trtllm.all_reduce_rms_norm", "trtllm.two_shot_rms_norm"
_MOE = "trtllm.moe_all_reduce_rms_norm"
_MNNVL = "flashinfer.mnnvl_rms_norm"
_LL, _LL_MOE = "flashinfer.cutedsl_ll_rms_norm", "flashinfer.cutedsl_ll_moe_rms_norm"
_BT, _BT_MOE = "flashinfer.cutedsl_bt_rms_norm", "flashinfer.cutedsl_bt_moe_rms_norm"


def fused_launch(launch: Launch, name: str = _ONE_SHOT) -> tuple[int, int]:
    """(threads of a block, blocks of a cluster), with one thread for each 16 bytes of a row.

    The cluster shrinks until blocks have 128 threads, and until the clusters of all rows fit the SMs.
    """
    needed = accesses(name, launch)
    cluster = gcd(_CLUSTER, needed)
    block = needed // cluster
    while block < 128 and cluster >= 2:
        block, cluster = 2 * block, cluster // 2
    while launch.rows * cluster > launch.sm_count and cluster > 1 and block <= _BLOCK // 2:
        block, cluster = 2 * block, cluster // 2
    if block > _BLOCK:
        raise refuse(name, "blocks of at most 1024 threads", launch)
    return block, cluster


def fused_all_reduce(launch: Launch) -> str:
    """A thread for each 16 bytes, over a cluster of up to 8 blocks; fewer blocks if many rows share the SMs."""
    return _clustered(f"blocks({launch.vector}, fma)", *fused_launch(launch))


def two_shot(launch: Launch) -> str:
    """As one-shot, but launched for the rows of one rank: the number of rows divided by `tensor`, rounded up."""
    share = replace(launch, rows=-(-launch.rows // launch.ranks))
    block, cluster = fused_launch(share, _TWO_SHOT)
    if block < launch.ranks:
        raise refuse(_TWO_SHOT, f"a thread for each of {launch.ranks} ranks in a block", launch)
    return _clustered(f"blocks({launch.vector}, fma)", block, cluster)


def moe_all_reduce(launch: Launch) -> str:
    """A thread for each 16 bytes over a cluster of up to 8 blocks of whole warps."""
    warps = warps_of(accesses(_MOE, launch))
    block = warps // gcd(_CLUSTER, warps)
    if block * WARP > _BLOCK:
        raise refuse(_MOE, "blocks of at most 1024 threads", launch)
    return f"blocks({launch.vector}, fma) | fold_hi(32) | {_fold(block)}sequential"


def mnnvl_launch(launch: Launch) -> tuple[int, int]:
    """As `fused_launch`, but the cluster grows again, down to 64 threads a block, if that fits the SMs."""
    block, cluster = fused_launch(launch, _MNNVL)
    widest = gcd(_CLUSTER, block * cluster)
    while cluster < widest and block // 2 >= 64 and launch.rows * 2 * cluster <= launch.sm_count:
        block, cluster = block // 2, 2 * cluster
    return block, cluster


def mnnvl(launch: Launch) -> str:
    """One-shot and two-shot over multi-node NVLink: a thread for each 16 bytes, over a cluster that fits the SMs."""
    # Squares of 16-bit rows are exact (two-shot), or rounded (one-shot, `square: model`).
    contracted = "" if launch.itemsize == 2 else ", fma"
    return _clustered(f"blocks({launch.vector}{contracted})", *mnnvl_launch(launch))


def cutedsl_ll(launch: Launch) -> str:
    """The low-latency protocol of the CuTe-DSL backend: clusters of 128 threads a block, 64 for 8192 over 16 ranks."""
    _one_trip(_LL, launch)
    warps = 2 if (launch.hidden, launch.ranks) == (8192, 16) else 4
    return f"blocks(8) | fold_lo(32) | fold_hi({warps}) | sequential"


def cutedsl_ll_moe(launch: Launch) -> str:
    """As `cutedsl_ll`, after MoE finalize; two lanes share a vector for 8192 over 16 ranks and 7168 over 8."""
    _one_trip(_LL_MOE, launch)
    lanes, warps = {(8192, 16): (2, 4), (7168, 8): (2, 8)}.get((launch.hidden, launch.ranks), (1, 4))
    return f"blocks(8) | fold_lo({WARP // lanes}) | fold_hi({warps}) | sequential"


def cutedsl_bt(launch: Launch) -> str:
    """The CuTe-DSL backend's balanced protocol: 1024 threads a row, fewer for many rows of 7168."""
    return _bt(_BT, {4: (512, 512), 8: (256, 448)}, launch)


def cutedsl_bt_moe(launch: Launch) -> str:
    """As `cutedsl_bt`, after MoE finalize."""
    return _bt(_BT_MOE, {4: (512, 512), 8: (512, 512)}, launch)


def _bt(name: str, of_7168: Mapping[int, tuple[int, int]], launch: Launch) -> str:
    """`of_7168`: ranks -> (up to how many rows of 7168 elements there are 1024 threads, how many threads beyond)."""
    _one_trip(name, launch)
    few, threads = of_7168.get(launch.ranks, (0, _BLOCK)) if launch.hidden == 7168 else (0, _BLOCK)
    return f"blocks(8) | threads({_BLOCK if launch.rows <= few else threads}) | fold_hi(32) | fold_hi"


def _one_trip(name: str, launch: Launch) -> None:
    if launch.dtype != "bf16" or launch.hidden > 8192 or launch.hidden % 8:
        raise refuse(name, "at most 8192 elements in bf16, a multiple of 8", launch)


def _clustered(thread: str, block: int, cluster: int) -> str:
    """Threads with one vector each, folded within each block; then the blocks of a cluster in turn."""
    if cluster == 1:
        return f"{thread} | fold_hi(32) | fold_hi"
    if block % WARP == 0:
        return f"{thread} | fold_hi(32) | {_fold(block // WARP)}sequential"
    blocks = [range(first, first + block) for first in range(0, block * cluster, block)]
    return f"{thread} | tree({'+'.join(map(_short_warps, blocks))})"


def _fold(width: int) -> str:
    """`fold_hi` of so many neighbours, as one of several levels."""
    return "" if width == 1 else f"fold_hi({width}) | "


def _short_warps(block: range) -> str:
    """A block's threads written out: a fold in each warp, the last of which is not full, then over the warps."""
    threads = [str(thread) for thread in block]
    return _folded([_folded(threads[i : i + WARP]) for i in range(0, len(threads), WARP)])


def _folded(values: list[str]) -> str:
    """fold_hi written out; values missing to a power of two are left out, since sums of squares are never -0."""
    half = 1 << (len(values) - 1).bit_length() >> 1
    if len(values) == 1:
        return values[0]
    pairs = [f"({a}+{b})" for a, b in zip(values, values[half:], strict=False)]
    return _folded(pairs + values[len(pairs) : half])
