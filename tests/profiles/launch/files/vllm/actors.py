import ray
from vllm import LLM

SETTINGS = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
ray.init(runtime_env={"env_vars": {"VLLM_BATCH_INVARIANT": "1", "NCCL_ALGO": "Ring", **SETTINGS}})


@ray.remote(num_gpus=2)
class Sampler:
    def __init__(self):
        self.llm = LLM(model="Qwen/Qwen3-30B-A3B", tensor_parallel_size=2, dtype="bfloat16")
