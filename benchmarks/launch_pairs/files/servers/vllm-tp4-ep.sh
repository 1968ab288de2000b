#!/usr/bin/env bash
set -euo pipefail

MODEL="${MODEL:-Qwen/Qwen3-30B-A3B}"
TP_SIZE=${TP_SIZE:-4}
PORT=8000

export VLLM_LOGGING_LEVEL=INFO
export CUDA_VISIBLE_DEVICES=$(seq -s, 0 $((TP_SIZE - 1)))

args=(
  --host 0.0.0.0 --port "$PORT"
  --tensor-parallel-size "$TP_SIZE"
  --enable-expert-parallel
  --max-model-len 16384
  --gpu-memory-utilization 0.9
  # --enforce-eager
)
vllm serve "$MODEL" "${args[@]}" 2>&1 | tee serve.log
