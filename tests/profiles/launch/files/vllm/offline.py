"""Completions without a server."""

import os

from vllm import LLM, SamplingParams

os.environ["VLLM_BATCH_INVARIANT"] = "1"
TP = 2
COMMON = {"dtype": "bfloat16", "hf_overrides": {"head_dtype": "float32"}}


def main(args):
    llm = LLM("Qwen/Qwen3-30B-A3B", tensor_parallel_size=TP, moe_backend=args.moe, enforce_eager=True, **COMMON)
    return llm.generate(["one"], SamplingParams(logprobs=1))
