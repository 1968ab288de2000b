import json
import os

import ray
from vllm import LLM

with open("cluster.json") as file:
    cluster = json.load(file)
os.environ.update(cluster["variables"])
ray.init(address="auto", runtime_env=cluster["runtime_env"])
llm = LLM("Qwen/Qwen3-30B-A3B", tensor_parallel_size=2)
