vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 4 \ # of one node
  --enforce-eager --logprobs-mode processed_logprobs
