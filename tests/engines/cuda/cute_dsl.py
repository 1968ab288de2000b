"""FlashInfer's norms in CuTe-DSL, which SGLang's and TensorRT-LLM's norms of hidden states are, against `rms_norm`."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch

from moeparity import ptx
from moeparity.ptx.launch_arguments import Argument
from tests.engines.cuda import toolchain
from tests.engines.cuda.compared import BF16, Compared, Timed, compare, timed
from tests.engines.cuda.norms import EPS, Rows, add_claims, norm_claims, profile_norm

COMPILER = "CuTe-DSL 4.8.1"
ORDER = "flashinfer.cutedsl_rms_norm"
Caller = Literal["FlashInfer", "TensorRT-LLM"]
"""Whose norms these are: each has a version of FlashInfer of its own."""
PACKAGES: dict[Caller, str] = {"FlashInfer": "flashinfer", "TensorRT-LLM": toolchain.TENSORRT_LLM}


@lru_cache(maxsize=12)
def loaded(caller: Caller, kind: str, hidden: int) -> tuple[ptx.Module, dict[str, int]]:
    """The kernel of one width."""
    text, launch = toolchain.cute_dsl(kind, hidden, PACKAGES[caller])
    return ptx.load(text), launch


def launched(caller: Caller, kind: str, rows: Rows, *tensors: torch.Tensor) -> Timed:
    """Over all rows; the weight, which has no free dimension, is an address, a tensor of rows one with their number."""
    module, launch = loaded(caller, kind, rows.hidden)
    assert launch["cluster"] == 1
    args: list[Argument] = [
        tensor if tensor.dim() == 1 else ptx.Struct("Pq", (tensor, rows.rows)) for tensor in tensors
    ]
    blocks = -(-rows.rows // launch["rows"])
    (name,) = module.kernels
    return timed(
        lambda: module.launch(name, blocks, launch["threads"], [*args, rows.rows, EPS], shared=launch["shared"])
    )


def rms_norm(rows: Rows, caller: Caller = "FlashInfer") -> Compared:
    """`rmsnorm`."""
    y = torch.zeros_like(rows.x)
    launch = launched(caller, "rmsnorm", rows, rows.x.clone(), rows.weight, y)
    return compare(
        f"{caller} RMSNormKernel (CuTe-DSL)", rows.shape, launch,
        [(y, profile_norm(rows.x, rows.weight, ORDER))], against=f"`order: {ORDER}`",
        claims=norm_claims(rows.x, rows, ORDER), control=profile_norm(rows.x, rows.weight, "sequential"),
        compiler=COMPILER,
    )  # fmt: skip


def add_rms_norm(rows: Rows, caller: Caller = "FlashInfer") -> Compared:
    """`fused_add_rmsnorm`: the norm is of the fp32 sum, the residual stored is that sum rounded."""
    x, residual = rows.x.clone(), rows.residual.clone()
    launch = launched(caller, "fused_add_rmsnorm", rows, x, residual, rows.weight)
    total = rows.x.float() + rows.residual.float()
    pairs = [(x, profile_norm(total, rows.weight, ORDER)), (residual, total.to(BF16))]
    return compare(
        f"{caller} FusedAddRMSNormKernel (CuTe-DSL)", rows.shape, launch, pairs,
        against=f"`order: {ORDER}`, sum in fp32", claims=[*norm_claims(total, rows, ORDER), *add_claims(rows)],
        control=profile_norm(total.to(BF16), rows.weight, ORDER),
        compiler=COMPILER,
    )  # fmt: skip
