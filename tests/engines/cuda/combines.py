"""What is made of the experts' rows: vLLM's moe_sum against the node `combine`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from moeparity import ptx
from moeparity.ops.kernels.combine import combine
from moeparity.ptx.launch_arguments import Argument
from tests.engines.cuda import toolchain
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.compared import BF16, Compared, compare, plan_values, timed
from tests.engines.cuda.norms import Rows


@lru_cache(maxsize=1)
def vllm() -> ptx.Module:
    """csrc/moe/moe_align_sum_kernels.cu."""
    return ptx.load(toolchain.vllm("moe/moe_align_sum_kernels.cu"))


def zero_sums(tokens: int, slots: int, hidden: int) -> torch.Tensor:
    """bf16 rows that add up to 0 over the slots, of sizes 2^-14 to 2^14: what is left of a sum is its roundings."""
    g = torch.Generator().manual_seed(hidden)
    shape = (tokens, slots // 2, hidden)
    half = torch.randn(shape, generator=g) * 2.0 ** torch.randint(-14, 15, shape, generator=g)
    halves = torch.cat([half, -half], dim=1).to(BF16)
    return halves[:, torch.randperm(slots, generator=g)].contiguous()


def vllm_moe_sum(rows: Rows, slots: int = 8) -> Compared:
    """`moe_sum`: a token's rows added in fp32 by ascending slot, rounded once."""
    h, tokens = rows.hidden, rows.rows
    x = zero_sums(tokens, slots, h)
    y = torch.zeros(tokens, h, dtype=BF16)
    args: list[Argument] = [y, x, tokens, h, slots * h, h, 0, 0, 0, 0]
    name = f"moe_sum_vec_kernelIN3c108BFloat16EiLi{slots}ELb0"
    blocks = -(-tokens * h // 8 // 256)
    launch = timed(lambda: vllm().launch(name, blocks, 256, args))
    at = plan_values("vllm", "qwen3_moe", "combine")
    expected, descending = (_combined(part, at) for part in (x, x.flip(1)))
    return compare(
        f"vLLM moe_sum_vec_kernel, top-{slots}", rows.shape, launch, [(y, expected)], against="`combine`",
        claims=[Claim("combine", at, lambda values: [_combined(x, values)])], control=descending,
    )  # fmt: skip


def _combined(rows: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """rows [tokens, slots, hidden] by the node, which have met their weights before; experts in no order."""
    tokens, slots, _ = rows.shape
    ids = torch.rand(tokens, 4 * slots, generator=torch.Generator().manual_seed(slots)).argsort(-1)[:, :slots]
    p = {"scale": 1.0, "experts": 4 * slots, "top_k": slots}
    return combine(rows[None], ids[None], None, w={}, p=p, at={**at, "scaling": "weights"})[0]
