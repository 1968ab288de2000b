"""All-reduces over simulated ranks: vLLM's one-stage and two-stage kernels, FlashInfer's one-shot and two-shot ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

import torch

from moeparity import ptx
from moeparity.numerics.collectives.execute import all_reduce
from moeparity.numerics.collectives.registry import COLLECTIVES
from moeparity.ptx.launch_arguments import Argument, Struct
from tests.engines.cuda import toolchain
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.combines import zero_sums
from tests.engines.cuda.compared import BF16, Compared, compare, timed
from tests.engines.cuda.norms import EPS, profile_norm

_MOST_RANKS = 16
_SIGNAL = 2 * 36 * _MOST_RANKS * 4 + 36 * 4
_SIGNAL_BYTES = -(-_SIGNAL // 128) * 128
"""struct Signal of csrc/custom_collective_common.cuh: two flags for each of 36 blocks and 16 ranks, one for a block."""
_FUSION = "flashinfer::trtllm_allreduce_fusion::"
RANKS = (2, 4, 8)


@lru_cache(maxsize=1)
def vllm() -> ptx.Module:
    """csrc/custom_all_reduce.cu."""
    return ptx.load(toolchain.vllm("custom_all_reduce.cu"))


def instances() -> tuple[str, str, str]:
    """comm/trtllm_allreduce_fusion.cuh: the sum alone, and with residual and norm; additions rounded, and in fp32."""
    text = ["using bf16 = __nv_bfloat16;\nusing namespace flashinfer::trtllm_allreduce_fusion;\n"]
    for ranks, pattern, wide in itertools.product(RANKS, ("kAllReduce", "kARResidualRMSNorm"), ("false", "true")):
        head = f"template __global__ void {_FUSION}allreduce_fusion_kernel_"
        of = f"AllReduceFusionPattern::{pattern}, bf16, {ranks}, {wide}"
        tokens = f"std::array<int, {ranks}>"
        text.append(f"{head}oneshot_lamport<{of}, true>(AllReduceFusionParams<bf16>);\n")
        text.append(f"{head}twoshot_sync<{of}>(AllReduceFusionParams<bf16>, {tokens}, {tokens});\n")
    return "flashinfer/comm/trtllm_allreduce_fusion.cuh", "".join(text), "--expt-relaxed-constexpr"


@lru_cache(maxsize=1)
def flashinfer() -> ptx.Module:
    """Those instances."""
    return ptx.load(toolchain.flashinfer(*instances()))


def inputs(ranks: int, tokens: int, hidden: int) -> list[torch.Tensor]:
    """What each rank has, in bf16: in every other column the ranks add up to 0, and what is left is roundings."""
    g = torch.Generator().manual_seed(ranks * tokens + hidden)
    parts = zero_sums(tokens, ranks, hidden).transpose(0, 1).contiguous()
    parts[..., ::2] = torch.randn(ranks, tokens, hidden // 2, generator=g).to(BF16)
    parts[0, :, ::64] = -0.0
    return list(parts)


def vllm_all_reduce(
    ranks: int, tokens: int, hidden: int, stages: int, *, seed: int | None = None, module: ptx.Module | None = None
) -> Compared:
    """`CustomAllreduce::allreduce`: 512 threads, up to 36 blocks; 1 or 2 stages by VLLM_CUSTOM_ALLREDUCE_ALGO."""
    x, size = inputs(ranks, tokens, hidden), tokens * hidden // 8
    room = 2 * tokens * hidden + 4096 if stages == 2 else 0
    signals = [torch.zeros(_SIGNAL_BYTES + room, dtype=torch.uint8) for _ in range(ranks)]
    unused = [0] * (_MOST_RANKS - ranks)
    data, pads = (Struct(f"{_MOST_RANKS}P", [*parts, *unused]) for parts in (x, signals))
    y = [torch.zeros_like(part) for part in x]
    args: list[list[Argument]] = [[data, pads, signals[rank], y[rank], rank, size] for rank in range(ranks)]
    name = f"cross_device_reduce_{stages}stageI13__nv_bfloat16Li{ranks}E"
    blocks = min(36, -(-size // 512))
    launch = timed(lambda: (module or vllm()).launch_ranks(name, blocks, 512, args, seed=seed))
    collective = f"vllm.{'one' if stages == 1 else 'two'}_stage"
    expected = all_reduce(COLLECTIVES[collective], x)
    control = all_reduce(COLLECTIVES["vllm.two_stage" if stages == 1 else "vllm.one_stage"], x)[0]
    return compare(
        f"vLLM cross_device_reduce_{stages}stage", f"{ranks} ranks, {tokens} x {hidden}", launch,
        list(zip(y, expected, strict=True)), against=f"`collective: {collective}`",
        claims=[Claim("all_reduce", {"collective": collective})], control=control,
    )  # fmt: skip


class _Workspace:
    """What every rank's table points to: buffers of sums and flags, Lamport's slots, and counters (6 words)."""

    def __init__(self, ranks: int, tokens: int, hidden: int) -> None:
        message = 2 * tokens * hidden
        slots = ranks * message
        self._sums = [torch.zeros(2 * message, dtype=torch.uint8) for _ in range(ranks)]
        self._flags = [torch.zeros(256 * ranks, dtype=torch.int32) for _ in range(ranks)]
        # -0 in bf16: nothing has arrived.
        empty = torch.full((3 * slots // 2,), -0.0, dtype=BF16)
        self._slots = [empty.clone() for _ in range(ranks)]
        self._counters = [torch.tensor([0, 0, 0, slots, 0, 0], dtype=torch.int32) for _ in range(ranks)]

    def of(self, rank: int) -> Struct:
        """A rank's table, by its address."""
        pointers = [*self._sums, *self._flags, *self._slots, self._counters[rank]]
        return Struct(f"{len(pointers)}P", pointers)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A launch of the fused kernels: allreduce_fusion_kernel_launcher of trtllm_allreduce_fusion.cuh."""

    blocks: int
    threads: int
    cluster: int

    @classmethod
    def of(cls, tokens: int, hidden: int, *, multiprocessors: int = 132, most_threads: int = 1024) -> Grid:
        """Eight blocks for a token, fewer where threads do not divide, are under 128, or SMs are not enough."""
        threads_of_token = hidden // 8
        cluster = next(size for size in (8, 4, 2, 1) if threads_of_token % size == 0)
        threads = threads_of_token // cluster
        while threads < 128 and cluster >= 2:
            threads, cluster = threads * 2, cluster // 2
        while tokens * cluster > multiprocessors and cluster > 1 and threads <= most_threads // 2:
            threads, cluster = threads * 2, cluster // 2
        return cls(blocks=min(multiprocessors, tokens * cluster) // cluster * cluster, threads=threads, cluster=cluster)


@dataclass(frozen=True, kw_only=True)
class Fused:
    """The fused all-reduce at one shape: in one shot (Lamport's flags: a slot that holds -0 is empty) or two."""

    ranks: int
    tokens: int
    hidden: int
    shots: int = 1
    fp32: bool = False
    norm: bool = False

    @property
    def split(self) -> list[int]:
        """Tokens of each rank, in two shots."""
        return [self.tokens // self.ranks + (rank < self.tokens % self.ranks) for rank in range(self.ranks)]

    @property
    def grid(self) -> Grid:
        """Its launch."""
        return Grid.of(self.tokens if self.shots == 1 else max(self.split), self.hidden)

    @property
    def kernel(self) -> str:
        """Its name without template arguments."""
        return f"allreduce_fusion_kernel_{'oneshot_lamport' if self.shots == 1 else 'twoshot_sync'}"

    @property
    def mangled(self) -> str:
        """Words of its mangled name."""
        pattern = f"ILNS0_22AllReduceFusionPatternE{int(self.norm)}E13__nv_bfloat16"
        return f"{self.kernel}{pattern}Li{self.ranks}ELb{int(self.fp32)}E"

    def arguments(self, rank: int, table: Struct, pointers: list[torch.Tensor | int]) -> list[Argument]:
        """AllReduceFusionParams, and the tokens of each rank."""
        size = self.tokens * self.hidden
        values = [
            self.ranks, rank, size, self.hidden, table, *pointers, EPS, 0.0, 0, self.shots == 1, 0, 0,
            int(self.norm), True, 0, 0,
        ]  # fmt: skip
        params = Struct("iiiiPPPPPPPPPffP?iPi?ii0P", values)
        starts = [sum(self.split[:at]) for at in range(self.ranks)]
        return [params] if self.shots == 1 else [params, *(Struct(f"{self.ranks}i", x) for x in (starts, self.split))]


def flashinfer_all_reduce(
    ranks: int, tokens: int, hidden: int, *, shots: int = 1, fp32: bool = False, norm: bool = False,
    seed: int | None = None, module: ptx.Module | None = None,
) -> Compared:  # fmt: skip
    """`allreduce_fusion_op`: the sum alone, or with residual and norm."""
    case = Fused(ranks=ranks, tokens=tokens, hidden=hidden, shots=shots, fp32=fp32, norm=norm)
    x, g = inputs(ranks, tokens, hidden), torch.Generator().manual_seed(hidden)
    residual = torch.randn(tokens, hidden, generator=g).to(BF16)
    weight = (1 + 0.1 * torch.randn(hidden, generator=g)).to(BF16)
    y, total = ([torch.zeros_like(part) for part in x] for _ in range(2))
    spaces = _Workspace(ranks, tokens, hidden)
    args = []
    for rank in range(ranks):
        operands: list[torch.Tensor | int] = [y[rank], 0, 0, 0, 0, 0, 0]
        if norm:
            operands = [0, residual, total[rank], y[rank], 0, 0, weight]
        args.append(case.arguments(rank, spaces.of(rank), [x[rank], *operands]))
    loaded, grid = module or flashinfer(), case.grid
    launch = timed(
        lambda: loaded.launch_ranks(case.mangled, grid.blocks, grid.threads, args, cluster=grid.cluster, seed=seed)
    )
    collective = f"flashinfer.{'one' if shots == 1 else 'two'}_shot{'_fp32' if fp32 else ''}"
    summed = all_reduce(COLLECTIVES[collective], x)
    claims = [Claim("all_reduce", {"collective": collective})]
    pairs, control = list(zip(y, summed, strict=True)), all_reduce(COLLECTIVES[collective], x[::-1])[0]
    if norm:
        stream = [(part.float() + residual.float()).to(BF16) for part in summed]
        order = f"trtllm.{'all_reduce' if shots == 1 else 'two_shot'}_rms_norm"
        normed = [profile_norm(part, weight, order, ranks=ranks) for part in stream]
        pairs = [*zip(y, normed, strict=True), *zip(total, stream, strict=True)]
        control = profile_norm(stream[0], weight, "sequential")
        claims = [Claim("rms_norm", {"order": order})]
    return compare(
        f"FlashInfer {case.kernel}", f"{ranks} ranks, {tokens} x {hidden}{', norm' if norm else ''}", launch, pairs,
        against=f"`collective: {collective}`", claims=claims, control=control,
    )  # fmt: skip
