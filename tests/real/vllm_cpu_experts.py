"""vLLM's experts for CPUs, each with one row of its own: `python vllm_cpu_experts.py CASES ANSWERS`.

CASES holds `gate_up` [E, 2I, H] and `down` [E, H, I], bf16. ANSWERS is what a row of ones becomes in each expert,
[E, H] bf16. It imports nothing of this project.
"""

from __future__ import annotations

import sys

import torch
import vllm._custom_ops as ops
from vllm.platforms import current_platform


def main(cases_file: str, answers_file: str) -> None:
    current_platform.import_kernels()
    case = torch.load(cases_file)
    gate_up, down = (ops.cpu_prepack_moe_weight(case[name], "vec") for name in ("gate_up", "down"))
    experts, hidden = down.shape[:2]
    x, out = torch.ones(experts, hidden, dtype=torch.bfloat16), torch.empty(experts, hidden, dtype=torch.bfloat16)
    ids = torch.arange(experts, dtype=torch.int32).unsqueeze(1)
    ops.cpu_fused_moe(out, x, gate_up, down, None, None, torch.ones(experts, 1), ids, "silu", "vec")
    torch.save(out, answers_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
