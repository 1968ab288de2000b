"""Samples with one GPU."""

import os

os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"

from vllm import LLM, SamplingParams

MODEL = "Qwen/Qwen3-30B-A3B"

llm = LLM(model=MODEL, dtype="bfloat16", max_model_len=4096, gpu_memory_utilization=0.9, seed=0)
params = SamplingParams(temperature=1.0, max_tokens=1024, logprobs=0)
outputs = llm.generate(["The capital of France is"], params)
