#!/bin/bash
# TRL's own way to start vLLM for an online trainer.
CUDA_VISIBLE_DEVICES=0,1 trl vllm-serve --model Qwen/Qwen3-30B-A3B --tensor-parallel-size 2 \
    --dtype bfloat16 --max-model-len 8192 --gpu-memory-utilization 0.85 --port 8001
