"""torchtitan 0.2.2's MoE layer on CPU, run by test_torchtitan_0_2.py: the last version with `score_before_experts`.

Its counting of tokens by expert is CUDA's only, in torch (histc of integers) and in Triton (run by its interpreter).
Both are integers.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

from typing import Any

import torch
from torch import Tensor
from torchtitan.models.moe.moe import MoE, MoEArgs

from tests.engines.live import answer


def _counted(x: Tensor, *, bins: int, **_: int) -> Tensor:
    return torch.bincount(x, minlength=bins)


def moe(x: Tensor, weights: dict[str, Tensor], bias: Tensor, settings: dict[str, Any]) -> dict[str, Tensor]:
    experts, wide, hidden = weights["experts.w1"].shape
    module = MoE(MoEArgs(num_experts=experts, num_shared_experts=1, **settings), hidden, wide).to(x.dtype)
    module.load_state_dict(weights | {"expert_bias": bias})
    module.expert_bias = bias
    scores, ids, _ = module.router(x.flatten(0, 1), bias)
    output = module(x)
    module.shared_experts = None
    shape = (*x.shape[:2], -1)
    return {"ids": ids.view(shape), "weights": scores.view(shape), "routed": module(x), "output": output}


if __name__ == "__main__":
    setattr(torch, "histc", _counted)  # noqa: B010 - torch has a stub for it
    answer({"moe": moe})
