"""vLLM's GEMM for CPUs, which calls oneDNN by itself: `python vllm_cpu_gemm.py CASES ANSWERS`.

CASES is a list of `x` [M, K] and `weight` [N, K], bf16. ANSWERS has each product [M, N] bf16. It imports nothing of
this project.
"""

from __future__ import annotations

import sys

import torch
import vllm._custom_ops as ops
from vllm.platforms import current_platform


def main(cases_file: str, answers_file: str) -> None:
    current_platform.import_kernels()
    answers = []
    for case in torch.load(cases_file):
        handler = ops.create_onednn_mm(case["weight"].t(), 32)
        answers.append(ops.onednn_mm(handler, case["x"], None))
    torch.save(answers, answers_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
