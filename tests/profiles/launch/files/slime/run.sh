#!/bin/bash
pkill -9 sglang
set -ex
NVLINKS=$(nvidia-smi topo -m 2>/dev/null | grep -o 'NV[0-9]*' | wc -l)
if [ "$NVLINKS" -gt 0 ]; then
    HAS_NVLINK=1
else
    HAS_NVLINK=0
fi
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/moe.sh"

PERF_ARGS=(
   --tensor-model-parallel-size 4
   --sequence-parallel
   --expert-model-parallel-size 8

   # --micro-batch-size 1
   --use-dynamic-batch-size
)
SGLANG_ARGS=(
   --rollout-num-gpus-per-engine 8
   --sglang-ep-size 8
   --sglang-mem-fraction-static 0.7
   --sglang-enable-fp32-lm-head
)
RUNTIME_ENV_JSON="{
  \"env_vars\": {
    \"PYTHONPATH\": \"/root/Megatron-LM/\",
    \"SGLANG_RETURN_ORIGINAL_LOGPROB\": \"true\",
    \"NCCL_NVLS_ENABLE\": \"${HAS_NVLINK}\"
  }
}"
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json="${RUNTIME_ENV_JSON}" \
   -- python3 train.py --colocate --hf-checkpoint /root/Qwen3-30B-A3B --rollout-batch-size 8 \
   --rollout-temperature 0.8 ${MODEL_ARGS[@]} ${PERF_ARGS[@]} ${SGLANG_ARGS[@]}
