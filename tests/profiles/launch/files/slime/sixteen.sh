#!/bin/bash
python3 train.py --hf-checkpoint Qwen/Qwen3-235B-A22B --rollout-batch-size 64 --rollout-num-gpus-per-engine 16 \
    --num-layers 94 --tensor-model-parallel-size 4 --sequence-parallel --expert-model-parallel-size 16 \
    --expert-tensor-parallel-size 1 --use-dynamic-batch-size --max-tokens-per-gpu 20480
