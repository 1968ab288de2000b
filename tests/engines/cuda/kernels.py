"""Engines' CUDA kernels run through their PTX, and the project's profiles on the same numbers.

`python -m tests.engines.cuda.kernels` prints the table of docs/ptx.md.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from moeparity import ptx
from moeparity.numerics.bits import int_view
from moeparity.ops.kernels.norm import rms_norm
from moeparity.profiles.fidelity import Compiled
from moeparity.ptx.module import Argument
from tests.engines.cuda import toolchain
from tests.evidence import compiled_by

EPS = 1e-6
BF16, FP32 = torch.bfloat16, torch.float32
VLLM = f"vLLM {toolchain.VLLM}", ("-std=c++17",)
FLASHINFER = f"FlashInfer {toolchain.FLASHINFER.partition('==')[2]}", ("-std=c++17", "-use_fast_math")
"""Versions, and the flags that concern numbers."""
FUSED_ADD = {"output": BF16, "output->rms_norm": "fp32"}
MOE_SUM = {"order": "sequential", "accumulate": FP32, "output": BF16, "leaves": "slot", "score_site": "epilogue",
           "shared": "add", "expert": 1}  # fmt: skip
_NORM = """
using bf16 = __nv_bfloat16;
template __global__ void flashinfer::norm::RMSNormKernel<8, bf16>(
    bf16*, bf16*, bf16*, const uint32_t, const uint32_t, const uint32_t, float, float);
template __global__ void flashinfer::norm::FusedAddRMSNormKernel<8, bf16>(
    bf16*, bf16*, bf16*, const uint32_t, const uint32_t, const uint32_t, float, float);
"""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One kernel at one shape: numbers compared, how many differ, the farthest in ulp, what was assumed, seconds.

    verifies: the ops and values that equal bits speak for, with all that the run rests on in `compiled`.
    """

    kernel: str
    shape: str
    values: str
    numbers: int
    differ: int
    control: int | None
    """How many of the first output differ from the same formula with another order of additions."""
    ulp: int
    assumed: tuple[str, ...]
    seconds: float
    version: str
    compiled: Compiled
    verifies: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A kernel that was run: its module and name there, whose it is and how it was compiled; the run, seconds."""

    module: ptx.Module
    name: str
    version: str
    flags: tuple[str, ...]
    run: ptx.Run
    seconds: float

    @property
    def compiled(self) -> Compiled:
        """What the run rests on."""
        return compiled_by(self.module, self.name, self.run, flags=self.flags)


@lru_cache(maxsize=4)
def flashinfer_norm() -> ptx.Module:
    """FlashInfer's RMSNorm and fused add-norm for bf16."""
    return ptx.load(toolchain.flashinfer("flashinfer/norm.cuh", _NORM))


@lru_cache(maxsize=4)
def vllm(name: str) -> ptx.Module:
    """One of vLLM's files."""
    return ptx.load(toolchain.vllm(name))


def profile_norm(x: torch.Tensor, weight: torch.Tensor, order: str) -> torch.Tensor:
    """RMSNorm as the profiles of servers have it: squares and everything else in fp32, one rounding to bf16."""
    return rms_norm(x, w={"weight": weight}, p={"eps": EPS, "heads": None}, at=norm_values(order))


def norm_values(order: str) -> dict[str, Any]:
    """The attributes of that norm."""
    return {"offset": 0.0, "weight": FP32, "output": BF16, "scaled": FP32, "normalized": FP32, "eps": "config",
            "rsqrt": "ieee", "statistic": "mean_square", "order": order, "mean": "divide", "square": FP32,
            "association": "x_rstd_first"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of hidden states with a residual and a weight, in bf16, of a seed; rows differ in size."""

    hidden: int
    rows: int
    x: torch.Tensor
    residual: torch.Tensor
    weight: torch.Tensor

    @classmethod
    def drawn(cls, hidden: int, rows: int) -> Rows:
        """Of a seed that is the shape's."""
        g = torch.Generator().manual_seed(hidden * 1000 + rows)
        size = 3 * torch.rand(rows, 1, generator=g)
        return cls(
            hidden=hidden,
            rows=rows,
            x=(torch.randn(rows, hidden, generator=g) * size).to(BF16),
            residual=torch.randn(rows, hidden, generator=g).to(BF16),
            weight=(1 + 0.1 * torch.randn(hidden, generator=g)).to(BF16),
        )

    @property
    def shape(self) -> str:
        """As the table names it."""
        return f"{self.rows} x {self.hidden}"


def _compare(
    name: str,
    shape: str,
    values: str,
    launched: Launched,
    *pairs: tuple[torch.Tensor, torch.Tensor],
    control: torch.Tensor | None = None,
    verifies: Mapping[str, Mapping[str, Any]] | None = None,
) -> Compared:
    distances = [(int_view(a).long() - int_view(b).long()).abs() for a, b in pairs]
    return Compared(
        kernel=name,
        shape=shape,
        values=values,
        numbers=sum(distance.numel() for distance in distances),
        differ=sum(int((distance != 0).sum()) for distance in distances),
        control=None if control is None else int((int_view(pairs[0][0]) != int_view(control)).sum()),
        ulp=max(int(distance.max()) for distance in distances),
        assumed=launched.run.assumed,
        seconds=launched.seconds,
        version=launched.version,
        compiled=launched.compiled,
        verifies=verifies or {},
    )


def _launched(
    project: tuple[str, tuple[str, ...]],
    module: ptx.Module,
    name: str,
    grid: int,
    block: int | tuple[int, int],
    args: list[Argument],
    *,
    shared: int = 0,
) -> Launched:
    """A kernel of a project (version and flags) run once."""
    begin = time.perf_counter()
    run = module.launch(name, grid, block, args, shared=shared)
    seconds = time.perf_counter() - begin
    return Launched(module=module, name=name, version=project[0], flags=project[1], run=run, seconds=seconds)


def flashinfer_rms_norm(rows: Rows) -> Compared:
    """`RMSNorm` in norm.cuh launches a warp for each 32 of hidden / 8 threads."""
    h, y, warps = rows.hidden, torch.zeros_like(rows.x), -(-min(1024, rows.hidden // 8) // 32)
    args: list[Argument] = [rows.x.clone(), rows.weight, y, h, h, h, 0.0, EPS]
    module = flashinfer_norm()
    launched = _launched(FLASHINFER, module, "13RMSNormKernel", rows.rows, (32, warps), args, shared=4 * warps)
    expected = profile_norm(rows.x, rows.weight, "flashinfer.rms_norm")
    return _compare(
        "FlashInfer RMSNorm",
        rows.shape,
        "`order: flashinfer.rms_norm`",
        launched,
        (y, expected),
        control=profile_norm(rows.x, rows.weight, "sequential"),
        verifies={"rms_norm": norm_values("flashinfer.rms_norm")},
    )


def flashinfer_add_rms_norm(rows: Rows) -> Compared:
    """`FusedAddRMSNorm`: the norm is of the fp32 sum, the residual stored is that sum rounded."""
    h, warps = rows.hidden, -(-min(1024, rows.hidden // 8) // 32)
    x, residual = rows.x.clone(), rows.residual.clone()
    args: list[Argument] = [x, residual, rows.weight, h, h, h, 0.0, EPS]
    shared = 16 * -(-warps // 4) + 4 * h
    module = flashinfer_norm()
    launched = _launched(FLASHINFER, module, "FusedAddRMSNorm", rows.rows, (32, warps), args, shared=shared)
    total = rows.x.float() + rows.residual.float()
    pairs = (x, profile_norm(total, rows.weight, "flashinfer.rms_norm")), (residual, total.to(BF16))
    return _compare(
        "FlashInfer FusedAddRMSNorm", rows.shape, "`order: flashinfer.rms_norm`, sum in fp32", launched, *pairs,
        control=profile_norm(total, rows.weight, "sequential"),
        verifies={"rms_norm": norm_values("flashinfer.rms_norm"), "add": FUSED_ADD},
    )  # fmt: skip


def vllm_rms_norm(rows: Rows) -> Compared:
    """`rms_norm` of csrc/layernorm_kernels.cu: 1024 threads at most, 256 from 256 tokens on."""
    h, y, vector = rows.hidden, torch.zeros_like(rows.x), math.gcd(8, rows.hidden)
    threads = min(h // vector, 1024 if rows.rows < 256 else 256)
    args: list[Argument] = [y, rows.x.clone(), h, 0, 0, 0, 0, rows.weight, 0, EPS, rows.rows, h]
    name = f"rms_norm_kernelIN3c108BFloat16ELi{vector}ELi2ELb1"
    module = vllm("layernorm_kernels.cu")
    launched = _launched(VLLM, module, name, rows.rows, threads, args)
    expected = profile_norm(rows.x, rows.weight, "vllm.rms_norm")
    return _compare(
        "vLLM rms_norm",
        rows.shape,
        "`order: vllm.rms_norm`",
        launched,
        (y, expected),
        control=profile_norm(rows.x, rows.weight, "sequential"),
        verifies={"rms_norm": norm_values("vllm.rms_norm")},
    )


def vllm_add_rms_norm(rows: Rows) -> Compared:
    """`fused_add_rms_norm`: the norm is of the rounded residual."""
    h, width = rows.hidden, 8 if rows.hidden % 8 == 0 else 0
    x, residual = rows.x.clone(), rows.residual.clone()
    args: list[Argument] = [x, h, residual, rows.weight, EPS, rows.rows, h, h]
    name, threads = f"fused_add_rms_norm_kernelIN3c108BFloat16ELi{width}ELb1", min(h, 1024 if rows.rows < 256 else 256)
    module = vllm("layernorm_kernels.cu")
    launched = _launched(VLLM, module, name, rows.rows, threads, args)
    total = (rows.x.float() + rows.residual.float()).to(BF16)
    pairs = (x, profile_norm(total, rows.weight, "vllm.fused_add_rms_norm")), (residual, total)
    return _compare(
        "vLLM fused_add_rms_norm",
        rows.shape,
        "`order: vllm.fused_add_rms_norm`",
        launched,
        *pairs,
        control=profile_norm(total, rows.weight, "sequential"),
        verifies={"rms_norm": norm_values("vllm.fused_add_rms_norm"), "add": {"output": BF16}},
    )


def vllm_moe_sum(rows: Rows, slots: int = 8) -> Compared:
    """`moe_sum`: a token's rows added in fp32 by ascending slot, rounded once."""
    h, tokens = rows.hidden, rows.rows
    x = zero_sums(tokens, slots, h)
    y = torch.zeros(tokens, h, dtype=BF16)
    args: list[Argument] = [y, x, tokens, h, slots * h, h, 0, 0, 0, 0]
    name = f"moe_sum_vec_kernelIN3c108BFloat16EiLi{slots}ELb0"
    module = vllm("moe/moe_align_sum_kernels.cu")
    blocks = -(-tokens * h // 8 // 256)
    launched = _launched(VLLM, module, name, blocks, 256, args)
    total, descending = torch.zeros(tokens, h), torch.zeros(tokens, h)
    for slot in range(slots):
        total, descending = total + x[:, slot].float(), descending + x[:, slots - 1 - slot].float()
    return _compare(
        f"vLLM moe_sum, top-{slots}",
        rows.shape,
        "`order: sequential` in fp32",
        launched,
        (y, total.to(BF16)),
        control=descending.to(BF16),
        verifies={"combine": MOE_SUM},
    )


def zero_sums(tokens: int, slots: int, hidden: int) -> torch.Tensor:
    """bf16 rows that add up to 0 over the slots, of sizes 2^-14 to 2^14: what is left of a sum is its roundings."""
    g = torch.Generator().manual_seed(hidden)
    shape = (tokens, slots // 2, hidden)
    half = torch.randn(shape, generator=g) * 2.0 ** torch.randint(-14, 15, shape, generator=g)
    both = torch.cat([half, -half], dim=1).to(BF16)
    return both[:, torch.randperm(slots, generator=g)].contiguous()


def router_logits(tokens: int, experts: int) -> torch.Tensor:
    """Logits of a router in bf16."""
    return (2 * torch.randn(tokens, experts, generator=torch.Generator().manual_seed(tokens))).to(BF16)


def vllm_topk(tokens: int, experts: int = 128, k: int = 8) -> tuple[Launched, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`topkGating` by softmax, renormalised: the launch, its logits, ids and weights."""
    logits = router_logits(tokens, experts)
    weights, ids = torch.zeros(tokens, k), torch.zeros(tokens, k, dtype=torch.int32)
    source = torch.zeros(tokens, k, dtype=torch.int32)
    module = vllm("moe/topk_softmax_kernels.cu")
    name = next(
        name for name in module.kernels if f"Li{experts}ELi4ELi16ELi32Ei13__nv_bfloat16LNS0_11ScoringFuncE0" in name
    )
    per_thread = int(name.split("topkGatingILi")[1].split("E")[0])
    rows_of_block = 4 * 32 * per_thread // experts
    nothing = 0
    args: list[Argument] = [logits, nothing, weights, tokens, ids, source, k, 0, experts, 1, nothing, 1.0, nothing]
    launched = _launched(VLLM, module, name, -(-tokens // rows_of_block), (32, 4), args)
    return launched, logits, ids, weights


def cuda_expf(x: torch.Tensor) -> torch.Tensor:
    """CUDA's expf, as the PTX of a program of this project's own computes it."""
    text = (toolchain.PROGRAMS / "reductions.ptx").read_text()
    flat, out = x.float().reshape(-1).contiguous(), torch.zeros(x.numel())
    for begin in range(0, flat.numel(), 1024):
        part = flat[begin : begin + 1024].clone()
        result = torch.zeros_like(part)
        _exponentials(text).launch("exponentials", 1, 1024, [part, result, part.numel()])
        out[begin : begin + 1024] = result
    return out.view(x.shape)


@lru_cache(maxsize=1)
def _exponentials(text: str) -> ptx.Module:
    return ptx.load(text)


def softmax_weights(
    logits: torch.Tensor, k: int, exponential: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and weights by `topkGating`'s formula: a thread adds 8 numbers in sequence, then a butterfly."""
    x = logits.float()
    powers = exponential(x - x.amax(-1, keepdim=True))
    threads = powers.view(x.shape[0], -1, 8)
    total = threads[..., 0]
    for at in range(1, 8):
        total = total + threads[..., at]
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    scores = powers * (1 / total)
    order = torch.argsort(scores, dim=-1, descending=True, stable=True)[:, :k]
    chosen = scores.gather(1, order)
    selected = torch.zeros(x.shape[0])
    for slot in range(k):
        selected = selected + chosen[:, slot]
    return order.int(), chosen * (1 / selected).unsqueeze(1)


def every(shapes: Iterator[tuple[int, int]]) -> Iterator[Compared]:
    """All kernels at all shapes that they take."""
    for hidden, tokens in shapes:
        rows = Rows.drawn(hidden, tokens)
        if hidden % 8 == 0:
            yield flashinfer_rms_norm(rows)
            yield flashinfer_add_rms_norm(rows)
            yield vllm_moe_sum(rows)
        yield vllm_rms_norm(rows)
        yield vllm_add_rms_norm(rows)


def topk_compared(tokens: int) -> list[Compared]:
    """`topkGating` against its formula with torch's exp and with CUDA's."""
    launched, logits, ids, weights = vllm_topk(tokens)
    made = []
    for says, exponential in (("torch's exp", torch.exp), ("CUDA's expf", cuda_expf)):
        expected_ids, expected = softmax_weights(logits, 8, exponential)
        for what, pair in (("ids", (ids, expected_ids)), (f"weights, {says}", (weights, expected))):
            made.append(_compare("vLLM topkGating", f"{tokens} x 128, top-8", what, launched, pair))
    return made


def main() -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    print("| kernel | shape | compared | numbers | differ | in another order | ulp | assumed | s |")
    print("|---" * 9 + "|")
    shapes = iter([(2048, 64), (7168, 64), (4096, 300), (1000, 5), (128, 40), (2880, 7)])
    for row in [*every(shapes), *topk_compared(256)]:
        assumed = ", ".join(f"`{name}`" for name in row.assumed) or "nothing"
        cells = (
            row.kernel,
            row.shape,
            row.values,
            f"{row.numbers:,}",
            f"{row.differ:,}",
            "" if row.control is None else f"{row.control:,}",
            row.ulp,
            assumed,
        )
        print(f"| {' | '.join(map(str, cells))} | {row.seconds:.2f} |")


if __name__ == "__main__":
    main()
