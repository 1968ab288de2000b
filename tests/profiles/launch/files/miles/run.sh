#!/bin/bash
# Trains on what SGLang's deterministic kernels sample; its servers are two groups of eight GPUs.
MODEL_ARGS=(
   --hf-checkpoint Qwen/Qwen3-30B-A3B
   --bf16
)
ROLLOUT_ARGS=(
   --rollout-batch-size 32
   --rollout-temperature 1
   --rollout-num-gpus 16
   --rollout-num-gpus-per-engine 8
   --sglang-mem-fraction-static 0.7
)
TRAIN_ARGS=(
   --train-backend megatron
   --tensor-model-parallel-size 4
   --sequence-parallel
   --expert-model-parallel-size 8
   --expert-tensor-parallel-size 1
   --moe-token-dispatcher-type alltoall
   --true-on-policy-mode
   --use-miles-router
)

ray job submit --address="http://127.0.0.1:8265" -- python3 train.py \
   "${MODEL_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}"
