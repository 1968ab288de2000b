#!/bin/bash
export SGLANG_ENABLE_JIT_DEEPGEMM=0
docker run --gpus all --shm-size 32g --network=host --privileged --ipc=host \
    -v /models:/models -e SGLANG_ENABLE_JIT_DEEPGEMM \
    lmsysorg/sglang:v0.5.23 \
    python3 -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp-size 8 --dp-size 8 --enable-dp-attention \
    --ep-size 8 --moe-a2a-backend deepep --deepep-mode normal --port 30000
