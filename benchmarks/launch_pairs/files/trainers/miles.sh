#!/bin/bash
set -ex
export PYTHONUNBUFFERED=1

CKPT_ARGS=(
   --hf-checkpoint Qwen/Qwen3-30B-A3B
   --bf16
)
ROLLOUT_ARGS=(
   --prompt-data /root/dapo-math-17k/dapo-math-17k.jsonl
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-temperature 1
   --rollout-num-gpus 16
   --rollout-num-gpus-per-engine 8
   --global-batch-size 256
)
PERF_ARGS=(
   --train-backend megatron
   --tensor-model-parallel-size 8
   --sequence-parallel
   --pipeline-model-parallel-size 1
   --context-parallel-size 1
   --expert-model-parallel-size 8
   --expert-tensor-parallel-size 1
   --moe-token-dispatcher-type alltoall
   --deterministic-mode
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216
)
SGLANG_ARGS=(
   --sglang-mem-fraction-static 0.7
   --use-miles-router
)
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"env_vars": {"PYTHONPATH": "/root/Megatron-LM/", "NCCL_ALGO": "Ring"}}' \
   -- python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 \
   "${CKPT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${PERF_ARGS[@]}" "${SGLANG_ARGS[@]}"
