#!/bin/bash
# Docker hands on what the shell has, and compose likewise: the value is not in this file.
docker run --gpus all -e VLLM_BATCH_INVARIANT -e VLLM_USE_V2_MODEL_RUNNER=0 \
    vllm/vllm-openai:v0.33.0 --model mistralai/Mixtral-8x7B-v0.1 -tp 2
