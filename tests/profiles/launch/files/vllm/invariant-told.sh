export VLLM_BATCH_INVARIANT=1 VLLM_USE_BREAKABLE_CUDAGRAPH=0
vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 2 --dtype bfloat16
