export VLLM_BATCH_INVARIANT=1
vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 4 --dtype bfloat16
