"""Roots and means of engines' norms: an ulp of a root changes few numbers of bf16, so there are many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from moeparity.ops.kernels.norm import rms_norm
from moeparity.profiles.fidelity import Compiled
from tests.engines.cuda import cute_dsl, norms, sglang, toolchain
from tests.engines.cuda.compared import COMPILER, VERSIONS
from tests.engines.cuda.norms import EPS, Rows, values


@dataclass(frozen=True, kw_only=True)
class Root:
    """A kernel's norm of `count` rows: `run` gives its output, `order` and `mean` are the node's; `attributes`: of
    which another value changes the output.
    """

    engine: str
    kernel: str
    hidden: int
    count: int
    run: Callable[[Rows], torch.Tensor]
    order: str
    mean: str
    attributes: tuple[str, ...]
    compiler: str = COMPILER

    @cached_property
    def rows(self) -> Rows:
        """Drawn when they are asked for."""
        return Rows.drawn(self.hidden, self.count)

    @property
    def against(self) -> str:
        """With the engine's version."""
        return f"{VERSIONS[self.engine]} {self.kernel}"

    @property
    def compiled(self) -> Compiled:
        """What the run rests on beside the source."""
        return Compiled(compiler=self.compiler, architecture=toolchain.ARCHITECTURE)

    def by_node(self, **at: Any) -> torch.Tensor:
        """The node's output, with an approximate root unless `at` says so."""
        choices: Mapping[str, Any] = {**values(self.order), "rsqrt": "approx", "mean": self.mean, **at}
        return rms_norm(self.rows.x, w={"weight": self.rows.weight}, p={"eps": EPS, "heads": None}, at=choices)


def _by_cute_dsl(caller: cute_dsl.Caller, rows: Rows) -> torch.Tensor:
    y = torch.zeros_like(rows.x)
    launch = cute_dsl.launched(caller, "rmsnorm", rows, rows.x.clone(), rows.weight, y)
    assert launch.run.assumed == ()
    return y


def _by_qk_norm(rows: Rows) -> torch.Tensor:
    launch, x = sglang.launched_head_norms(rows, rows.rows, 1, 0, rows.weight)
    assert launch.run.assumed == ()
    return x


def _by_vllm(rows: Rows) -> torch.Tensor:
    launch, y = norms.launched_vllm_rms_norm(rows)
    assert launch.run.assumed == ()
    return y


def roots() -> Iterator[Root]:
    """Of widths that divide a sum exactly, and of one that does not."""
    callers: tuple[cute_dsl.Caller, ...] = ("FlashInfer", "TensorRT-LLM")
    for caller in callers:
        for hidden, count, attributes in ((2048, 6000, ("rsqrt",)), (7168, 2000, ("rsqrt", "mean"))):
            yield Root(
                engine=caller, kernel="RMSNormKernel (CuTe-DSL)", hidden=hidden, count=count, attributes=attributes,
                run=partial(_by_cute_dsl, caller), order=cute_dsl.ORDER, mean="divide", compiler=cute_dsl.COMPILER,
            )  # fmt: skip
    yield Root(
        engine="SGLang", kernel="fused_qknorm_half_warp", hidden=128, count=60_000, run=_by_qk_norm,
        order="sglang.qk_rms_norm", mean="divide", attributes=("rsqrt",),
    )  # fmt: skip
    yield Root(
        engine="vLLM", kernel="rms_norm_kernel", hidden=7168, count=1000, run=_by_vllm, order="vllm.rms_norm",
        mean="divide", attributes=("rsqrt", "mean"),
    )  # fmt: skip
