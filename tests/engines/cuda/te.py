"""TransformerEngine's RMSNorm, tuned and general, against nodes of profile megatron."""

from __future__ import annotations

from functools import lru_cache

import torch

from moeparity import ptx
from tests.engines.cuda import toolchain
from tests.engines.cuda.compared import Compared, compare, timed
from tests.engines.cuda.norms import EPS, Rows, norm_claims, profile_norm

_HEAD = """#include <cuda_bf16.h>
#include "utils.cuh"
#include "normalization/kernel_traits.h"
#include "normalization/rmsnorm/rmsnorm_fwd_kernels.cuh"
namespace te = transformer_engine::normalization;
using bf16 = nv_bfloat16;
"""
TUNED = {512: (4, 1), 2048: (4, 1), 4096: (1, 4)}
"""Hidden size -> warps along rows and along a row, as registered in rmsnorm_fwd_cuda_kernel.cu."""
GENERAL = {128: (4, 1, 8), 512: (4, 1, 16), 2048: (4, 1, 16), 8192: (1, 4, 16)}
"""Up to which hidden size -> these, and bytes of a load."""


@lru_cache(maxsize=1)
def module() -> ptx.Module:
    """rmsnorm_fwd_kernels.cuh for rows, weights and outputs in bf16."""
    kinds = [("tuned", width, (*warps, 16)) for width, warps in TUNED.items()]
    kinds += [("general", width, shape) for width, shape in GENERAL.items()]
    instances = "".join(
        f"template __global__ void te::rmsnorm_fwd_{kind}_kernel<te::Kernel_traits<bf16, bf16, bf16, float, uint32_t, "
        f"{width}, 1, {m}, {n}, {load}>>(te::ForwardKernelParams);\n"
        for kind, width, (m, n, load) in kinds
    )
    # Host headers (cuDNN's among them) are left out, as TransformerEngine's own runtime compiler leaves them out.
    absent = ("-DTRANSFORMER_ENGINE_COMMON_NORM_COMMON_H_", "-DTRANSFORMER_ENGINE_COMMON_COMMON_H_")
    return ptx.load(toolchain.transformer_engine("kernel_params.h", _HEAD + instances, *absent))


def rms_norm(hidden: int, count: int) -> Compared:
    """Tuned where there is a kernel of that width and rows come in whole groups of 4."""
    rows, tuned = Rows.drawn(hidden, count), hidden in TUNED and count % 4 == 0
    width = hidden if tuned else min(limit for limit in GENERAL if limit >= hidden)
    m, n = TUNED[width] if tuned else GENERAL[width][:2]
    y, roots, blocks = torch.zeros_like(rows.x), torch.zeros(count), -(-count // m)
    first = (blocks, 1, count, hidden, rows.x.clone(), 0, roots, rows.weight, 0, 0, 0)
    params = ptx.Struct("iiiiPPPPPP?0PPPfPiPPi?0P", (*first, y, 0, EPS, 0, 0, 0, 0, 0, 0))
    name = f"rmsnorm_fwd_{'tuned' if tuned else 'general'}_kernel fjLj{width}ELj1E"
    launch = timed(lambda: module().launch(name, blocks, 32 * m * n, [params], shared=4096))
    kind = "tuned" if tuned else "general"

    def by_node(statistic: str) -> torch.Tensor:
        return profile_norm(rows.x, rows.weight, "native", statistic=statistic)

    return compare(
        f"TransformerEngine rmsnorm_fwd_{kind}_kernel", rows.shape, launch, [(y, by_node("transformer_engine"))],
        against="`statistic: transformer_engine`",
        claims=norm_claims(rows.x, rows, "native", statistic="transformer_engine"),
        control=profile_norm(rows.x, rows.weight, "sequential"),
    )  # fmt: skip
