"""vLLM's rotary embedding for CPUs, called as two of its models call it: `python vllm_cpu_rope.py CASES ANSWERS`.

CASES holds `positions` [T], `table` [P, R] bf16 (cosines, then sines), `q` [T, H, N + R], `k` [T, L + R] bf16. ANSWERS
has `q` and `k` after a call on their last R columns as multi-head latent attention makes it, `latents`, and with rows
of heads side by side, `rows`. It imports nothing of this project.
"""

from __future__ import annotations

import sys

import torch
from vllm.platforms import current_platform


def main(cases_file: str, answers_file: str) -> None:
    current_platform.import_kernels()
    case = torch.load(cases_file)
    positions, table = case["positions"], case["table"]
    width = table.shape[1]
    q, k = case["q"].clone(), case["k"].clone()
    torch.ops._C.rotary_embedding(positions, q[..., -width:], k[..., -width:].unsqueeze(1), width, table, False)
    rows_q = case["q"][..., -width:].reshape(len(positions), -1).contiguous()
    rows_k = case["k"][..., -width:].contiguous()
    torch.ops._C.rotary_embedding(positions, rows_q, rows_k, width, table, False)
    torch.save({"latents": {"q": q, "k": k}, "rows": {"q": rows_q, "k": rows_k}}, answers_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
