#!/bin/bash
export NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=1 NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 CUBLAS_WORKSPACE_CONFIG=:4096:8
export NCCL_ALGO=Ring
torchrun --nproc-per-node 8 pretrain_gpt.py --bf16 --num-layers 61 --hidden-size 7168 --num-experts 256 \
    --moe-router-topk 8 --moe-router-score-function sigmoid --moe-router-pre-softmax --moe-router-dtype fp32 \
    --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 4 --expert-tensor-parallel-size 1
