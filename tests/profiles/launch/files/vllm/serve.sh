#!/usr/bin/env bash
# One node, options in an array, defaults from outside.
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-30B-A3B}
TP=${TP:-4}
ARGS=(
  --tensor-parallel-size "$TP"      # one rank for each GPU
  # --enforce-eager
  --enable-expert-parallel
  --hf-overrides '{
    "head_dtype": "float32"
  }'
)
if [[ "$TP" -gt 1 && -n "${MODEL}" ]]; then
  ARGS+=(--moe-backend=triton)
fi
export VLLM_USE_V2_MODEL_RUNNER=0
exec nohup vllm serve "$MODEL" "${ARGS[@]}" --port 8000 > server.log 2>&1
