"""A kernel's outputs beside this project's on the same numbers: what was compared, and what it verifies."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import graphs
from moeparity import ptx
from moeparity.errors import Where
from moeparity.numerics.bits import int_view
from moeparity.plan.bind import bind
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.expand import expand
from moeparity.plan.schedule.cases import Sizes
from moeparity.profiles.fidelity import Compiled
from tests.engines.cuda import toolchain
from tests.engines.cuda.claims import Claim

BF16, FP32 = torch.bfloat16, torch.float32
VLLM = f"vLLM {toolchain.VLLM}"
FLASHINFER = f"FlashInfer {toolchain.FLASHINFER.partition('==')[2]}"
VERSIONS = {
    "vLLM": VLLM,
    "FlashInfer": FLASHINFER,
    "SGLang": "SGLang 0.5.23",
    "TransformerEngine": "TransformerEngine 2.20.2",
    "TensorRT-LLM": "TensorRT-LLM 1.4.0rc1 (FlashInfer 0.6.18)",
}
COMPILER = "nvcc 13.5.37"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One kernel at one shape: numbers compared, how many differ, the farthest in ulp, what was assumed, seconds."""

    kernel: str
    version: str
    compiler: str
    flags: tuple[str, ...]
    shape: str
    against: str
    numbers: int
    differ: int
    control: int | None
    """How many of the first output differ from the same node with another value, which the data can tell apart."""
    ulp: int
    assumed: tuple[str, ...]
    contractible: int
    seconds: float
    claims: Sequence[Claim] = ()

    @property
    def compiled(self) -> Compiled:
        """What the run rests on beside the source."""
        return Compiled(
            compiler=self.compiler,
            architecture=toolchain.ARCHITECTURE,
            flags=self.flags,
            assumed=self.assumed,
            contractible=self.contractible,
        )

    @property
    def verified(self) -> Mapping[str, Mapping[str, Any]]:
        """The values it verifies, by op; none where a bit differs, nor of what the data does not tell."""
        values_told = {} if self.differ else {claim.op: claim.values_told(self.control) for claim in self.claims}
        return {op: values for op, values in values_told.items() if values}


@dataclass(frozen=True)
class Timed:
    """A launch with its seconds."""

    run: ptx.Run
    seconds: float


def timed(launch: Callable[[], ptx.Run]) -> Timed:
    """Runs it."""
    begin = time.perf_counter()
    run = launch()
    return Timed(run, time.perf_counter() - begin)


def compare(
    kernel: str,
    shape: str,
    launch: Timed,
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    *,
    against: str,
    claims: Sequence[Claim] = (),
    control: torch.Tensor | None = None,
    flags: tuple[str, ...] = (),
    compiler: str = COMPILER,
) -> Compared:
    """The kernel's outputs and ours, bit for bit; `kernel` begins with its engine's name.

    `flags`: of the compiler, beside those that nvcc is given for all of FlashInfer's.
    """
    distances = [(int_view(a).long() - int_view(b).long()).abs() for a, b in pairs]
    engine, _, name = kernel.partition(" ")
    return Compared(
        kernel=name,
        version=VERSIONS[engine],
        flags=toolchain.FAST_MATH if (engine, compiler) == ("FlashInfer", COMPILER) else flags,
        compiler=compiler,
        shape=shape,
        against=against,
        numbers=sum(distance.numel() for distance in distances),
        differ=sum(int((distance != 0).sum()) for distance in distances),
        control=None if control is None else int((int_view(pairs[0][0]) != int_view(control)).sum()),
        ulp=max(int(distance.max()) for distance in distances),
        assumed=launch.run.assumed,
        contractible=launch.run.contractible,
        seconds=launch.seconds,
        claims=claims,
    )


@lru_cache(maxsize=64)
def plan_values(
    profile: str, model: str, op: str, name: str = "", *, rows: int = 1, sizes: tuple[tuple[str, int], ...] = ()
) -> Mapping[str, Any]:
    """The values in effect at the first node of an op, of whose name `name` is a part, dtypes as torch has them.

    `sizes` are those of the model that are not its public checkpoint's, `rows` how many go through the op together.
    """
    where = Where(Path("tests/engines/cuda"))
    graph = expand(Config(Path(graphs.__file__).parent / "configs" / f"{model}.json"))
    plan = bind(replace(graph, sizes={**graph.sizes, **dict(sizes)}), load_profile(profile, where), "bf16")
    node = next(node for node in graph.nodes if node.op.name == op and name in node.name)
    at = plan.at(Sizes("forward", rows=rows, longest=rows, keys=rows, queries=rows))
    return node.op.settings(at.active(node))
