import os

from vllm import LLM

os.environ.update({"VLLM_BATCH_INVARIANT": "1"}, VLLM_ALLREDUCE_USE_FLASHINFER="0")
os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": "0"}
os.putenv("NCCL_ALGO", "Ring")
llm = LLM("Qwen/Qwen3-30B-A3B", tensor_parallel_size=4, compilation_config=0)
