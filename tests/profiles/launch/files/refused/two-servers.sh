vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 4 &
vllm serve Qwen/Qwen3-4B --tensor-parallel-size 1 --port 8001 &
