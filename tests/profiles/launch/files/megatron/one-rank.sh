#!/bin/bash
torchrun --nproc-per-node 8 pretrain_gpt.py --bf16 --num-layers 48 --hidden-size 2048 --num-experts 128 \
    --moe-router-topk 8 --tensor-model-parallel-size 1 --sequence-parallel --expert-model-parallel-size 8 \
    --moe-token-dispatcher-type alltoall --moe-grouped-gemm
