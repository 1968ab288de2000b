#!/bin/bash
python3 train.py --train-backend fsdp --attn-implementation flash_attention_2 \
    --hf-checkpoint Qwen/Qwen3-30B-A3B --rollout-batch-size 32 --rollout-num-gpus-per-engine 4 --sglang-dtype bfloat16
