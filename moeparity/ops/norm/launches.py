"""How kernels that add up the squares of an RMSNorm are launched, and the order of additions that follows. No torch
here.

Each function gives the order as text, or raises OrderError for a launch that its kernel refuses or that is not known.
Kernels that are fused with an all-reduce are in `fused_launches`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from moeparity.numerics.orders import OrderError

WARP = 32
SM_COUNT = 132
"""Streaming multiprocessors of an H100 or H200 (SXM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a launch depends on: `rows` rows of `hidden` elements, stored in `dtype`, on a GPU with `sm_count` SMs.

    ranks: over how many ranks the all-reduce goes with which the kernel is fused.
    """

    hidden: int
    rows: int = 1
    dtype: str = "bf16"
    sm_count: int = SM_COUNT
    ranks: int = 1

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return {"fp64": 8, "fp32": 4}.get(self.dtype, 2)

    @property
    def vector(self) -> int:
        """How many elements the widest load has that divides the row, of at most 16 bytes."""
        return gcd(16 // self.itemsize, self.hidden)


def refuse(name: str, needs: str, launch: Launch) -> OrderError:
    """The error of a kernel that does not take such rows."""
    return OrderError(f"{name} needs {needs}, not {launch.hidden} elements in {launch.dtype}.")


def warps_of(threads: int) -> int:
    """How many warps hold so many threads."""
    return -(-threads // WARP)


def _few_or_many(rows: int) -> int:
    return 1024 if rows < 256 else 256


def vllm(launch: Launch) -> str:
    """At most 1024 threads; at most 256 from 256 rows on."""
    threads = min(launch.hidden // launch.vector, _few_or_many(launch.rows))
    return f"threads({threads}, vector={launch.vector}, fma) | fold_lo(32) | sequential"


def vllm_fused_add(launch: Launch) -> str:
    """The same number of threads; each adds pairs of squares, then the pairs of 8 elements."""
    threads = min(launch.hidden, _few_or_many(launch.rows))
    if launch.itemsize != 2 or launch.hidden % 8:
        return f"threads({threads}, fma) | fold_lo(32) | sequential"
    return f"blocks(2) | blocks(4) | threads({threads}) | fold_lo(32) | sequential"


def flashinfer(launch: Launch) -> str:
    """A thread for each 16 bytes, at most 1024: the CUDA kernels, with or without residual add."""
    threads = WARP * warps_of(min(1024, launch.hidden // launch.vector))
    return f"threads({threads}, vector={launch.vector}, fma) | fold_hi(32) | fold_hi"


def _ladder(hidden: int) -> int:
    """How many threads share a row in FlashInfer's CuTe-DSL kernels, and in quack, which they follow."""
    steps = ((64, 8), (128, 16), (3072, 32), (6144, 64), (16384, 128))
    return next((threads for widest, threads in steps if hidden <= widest), 256)


def cutedsl(launch: Launch) -> str:
    """8 to 256 threads a row; the CuTe-DSL kernels, the default where nvidia-cutlass-dsl is installed.

    Their PTX (CuTe-DSL 4.8.1, sm_90) contracts squares, which shows where x is a sum in fp32.
    """
    # With a residual, two rows have to fit half of an H100's shared memory.
    if launch.hidden * launch.itemsize > 56 << 10:
        raise refuse("flashinfer.cutedsl_rms_norm", "rows of at most 56 KiB (longer ones may be split)", launch)
    return f"threads({_ladder(launch.hidden)}, vector={launch.vector}, fma) | fold_lo(32) | fold_lo"


def cutedsl_qk(launch: Launch) -> str:
    """The CuTe-DSL kernel for heads of q and k on SM100, SM103 and SM107: 32 elements a thread, at least 4 threads."""
    if launch.hidden * launch.itemsize > 56 << 10:
        raise refuse("flashinfer.cutedsl_qk_rms_norm_sm100", "heads of at most 56 KiB", launch)
    shared = 1 << max(launch.hidden // 32, 1).bit_length() - 1
    threads = min(_ladder(launch.hidden), max(4, shared))
    return f"threads({threads}, vector={launch.vector}) | fold_lo(32) | fold_lo"


def quack(launch: Launch) -> str:
    """8 to 256 threads a row, as in FlashInfer's CuTe-DSL kernels, but folded the other way."""
    if launch.hidden > (1 << 14 if launch.itemsize == 2 else 1 << 15):
        raise refuse("quack.rms_norm", "at most 16384 elements, 32768 in fp32 (longer rows are split)", launch)
    return f"threads({_ladder(launch.hidden)}, vector={launch.vector}) | fold_hi(32) | fold_hi"


def sglang(launch: Launch) -> str:
    """A thread for each 16 bytes; one warp up to 256 elements."""
    fits = launch.hidden % 256 == 0 and launch.hidden <= 8192
    if launch.itemsize != 2 or not (fits or launch.hidden in {64, 128}):
        raise refuse("sglang.rms_norm", "64, 128 or a multiple of 256 to 8192 16-bit elements", launch)
    return f"blocks({min(8, launch.hidden // WARP)}, fma) | fold_hi(32) | fold_hi"


def sglang_qk(launch: Launch) -> str:
    """Heads of q and k: one warp, or more from 512 elements on; for other sizes FlashInfer's CuTe-DSL kernel."""
    fits = launch.itemsize == 2 and launch.hidden in {64, 128, 256, 512, 1024}
    return sglang(launch) if fits else cutedsl(launch)


def trtllm(launch: Launch) -> str:
    """At most 1024 threads; each adds pairs of squares."""
    threads = WARP * warps_of(min(launch.hidden, 1024))
    if launch.itemsize != 2:
        return f"threads({threads}, fma) | fold_hi(32) | fold_hi"
    if launch.hidden % 2:
        raise refuse("trtllm.rms_norm", "an even hidden size", launch)
    return f"blocks(2) | threads({threads}) | fold_hi(32) | fold_hi"


def accesses(name: str, launch: Launch) -> int:
    """How many 16-byte loads a row takes; each thread of kernel `name` makes one. Raises OrderError for other rows."""
    if launch.hidden * launch.itemsize % 16:
        raise refuse(name, "a multiple of 16 bytes", launch)
    return launch.hidden // launch.vector


def _cuda(launch: Launch) -> tuple[str, int, int]:
    """The levels within threads, how many threads of a block's row share a row of x, and over how many of the block's
    rows it is split, in torch's reduction of contiguous fp32 rows.
    """
    hidden, vector = launch.hidden, 4 if launch.hidden >= 128 else 1
    if hidden % vector or hidden >= 1 << 17:
        raise refuse("torch.cuda_mean", "below 131072 elements, a multiple of 4 from 128 on", launch)
    width, height = (min(512, 1 << (n.bit_length() - 1)) for n in (hidden // vector, launch.rows))
    height = min(height, 512 // min(width, WARP))
    width = min(width, 512 // height)
    height = height if -(-hidden // width) >= min(16 * height, 256) else 1
    threads = width * height
    return f"lanes({4 * threads}) | {'blocks(4)' if vector == 4 else f'lanes({threads})'}", width, height


def cuda_mean(launch: Launch) -> str:
    """Torch's mean of fp32 rows on a GPU, as transformers calls it; with fewer than 16 rows, more threads share one."""
    levels, width, height = _cuda(launch)
    return f"{levels} | fold_hi({width}) | fold_hi" if height > 1 else f"{levels} | fold_hi"


def cuda_mean_2_9(launch: Launch) -> str:
    """Torch's mean before torch 2.10, and with ROCm since: neighbours first within a warp."""
    levels, width, height = _cuda(launch)
    if height == 1 and width <= WARP:
        return f"{levels} | fold_lo"
    rows = [_shuffled([str(row * width + thread) for thread in range(width)]) for row in range(height)]
    while len(rows) > 1:
        half = len(rows) // 2
        rows = [f"({a}+{b})" for a, b in zip(rows[:half], rows[half:], strict=True)]
    return f"{levels} | tree({rows[0]})"


def _shuffled(values: list[str]) -> str:
    """The sum of a block's row of threads: halved down to a warp, then neighbours first."""
    while len(values) > 1:
        half = len(values) // 2
        low, high = (values[:half], values[half:]) if half >= WARP else (values[::2], values[1::2])
        values = [f"({a}+{b})" for a, b in zip(low, high, strict=True)]
    return values[0]


def cuda_rms_norm(launch: Launch) -> str:
    """The fused kernel of F.rms_norm on a GPU, for aligned rows."""
    if launch.hidden % 4:
        raise refuse("torch.cuda_rms_norm", "a multiple of 4", launch)
    return "threads(128, vector=4, fma) | fold_hi(32) | fold_hi"


def apex(launch: Launch) -> str:
    """128 threads a row."""
    return f"threads(128, vector={8 if launch.dtype == 'fp16' else 4}, fma) | fold_lo(32) | fold_hi"


def liger(launch: Launch) -> str:
    """One Triton program for each row; many short rows share a program."""
    tile = 1 << (launch.hidden - 1).bit_length()
    if tile <= 256 and launch.rows >= 1 << 15:
        raise refuse("liger.rms_norm", f"fewer than 32768 rows to 256 wide, of which there are {launch.rows}", launch)
    threads = WARP * next(n for least, n in ((32768, 32), (8192, 16), (2048, 8), (0, 4)) if tile >= least)
    vector = max(1, min(16 // launch.itemsize, tile // threads))
    return f"threads({threads}, vector={vector}) | fold_hi(32) | fold_hi"


def vllm_tiles(launch: Launch) -> str:
    """Tiles of 1024 elements over 4 warps; a thread's 8 elements in pairs, then the tiles."""
    # The kernel contracts one square of each pair into an fma, which has no effect: 16-bit squares are exact in fp32.
    if launch.itemsize != 2:
        raise refuse("vllm.batch_invariant", "16-bit elements", launch)
    return "fold_lo(8) | fold_hi(32) | fold_hi(4) | sequential"


def sglang_mean(launch: Launch) -> str:
    """Squares rounded to fp32, in tiles of 1024 over 4 warps; a thread's 4 and 4 elements in pairs, then the tiles."""
    if launch.hidden % 16:
        raise refuse("sglang.batch_invariant_mean", "a multiple of 16 elements", launch)
    fours = list(map(str, range(launch.hidden // 4)))
    return f"fold_lo(4) | tree({'+'.join(_fp32_tile(fours[i : i + 256]) for i in range(0, len(fours), 256))})"


def _fp32_tile(fours: list[str]) -> str:
    """A tile of which each thread has four elements of either half: threads, lanes, warps; "" where a mask leaves
    out.
    """
    fours = fours + [""] * (256 - len(fours))
    threads = [_half_on_half([fours[i], fours[i + 128]]) for i in range(128)]
    return _half_on_half([_half_on_half(threads[i : i + WARP]) for i in range(0, 128, WARP)])


def _half_on_half(values: list[str]) -> str:
    while len(values) > 1:
        halves = zip(values[: len(values) // 2], values[len(values) // 2 :], strict=True)
        values = [f"({low}+{high})" if high else low for low, high in halves]
    return values[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """TransformerEngine's tuned kernel: mean and M2 of each of `warps` parts of a row, in `order`, then merged.

    `vector` elements of a part lie side by side for each of its 32 threads.
    """

    order: str
    vector: int
    warps: int


TUNED = (512, 768, 1024, 2048, 4096, 8192)
"""Hidden sizes of TransformerEngine's tuned kernels, which need a number of rows divisible by 4."""


def te_moments(launch: Launch) -> Moments | None:
    """The tuned kernel of a launch; None if the general one is taken, which adds up squares (`te_order`)."""
    if launch.rows % 4 or launch.hidden not in TUNED:
        return None
    vector = 16 // launch.itemsize
    return Moments(
        order=f"threads(32, vector={vector}, fma) | fold_lo", vector=vector, warps=4 if launch.hidden >= 4096 else 1
    )


def te_order(launch: Launch) -> str:
    """The order of squares in TransformerEngine's general kernel: one warp up to 2048 elements, else four for each
    8192.
    """
    vector = 4 if launch.hidden <= 128 else 16 // launch.itemsize
    if launch.hidden <= 2048:
        return f"threads(32, vector={vector}, fma) | fold_lo"
    blocks = -(-launch.hidden // 8192)
    last = "sequential" if blocks == 1 else f"lanes({blocks}) | fold_lo"
    return f"threads({128 * blocks}, vector={vector}, fma) | fold_hi(32) | {last}"


WELFORD_THREADS = 512
"""How many threads share a row in torch's kernel for rows that are not aligned or not a multiple of 4 (`welford`)."""
