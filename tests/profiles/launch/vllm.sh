#!/bin/bash
# A server as it is started on one node.
export VLLM_BATCH_INVARIANT=1
CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve Qwen/Qwen3-30B-A3B \
  --tensor-parallel-size 4 --enable-expert-parallel \
  --enforce-eager --hf-overrides '{"head_dtype": "float32"}' \
  --gpu-memory-utilization 0.9 --moe_backnd triton
