export VLLM_BATCH_INVARIANT=1
vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 2 --dtype bfloat16 --max-num-seqs 64
