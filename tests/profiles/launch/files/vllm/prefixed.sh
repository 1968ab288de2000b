#!/bin/bash
vllm serve "${BASE_DIR}/Qwen3-235B-A22B-FP8" --tensor-parallel-size 4 --enable-expert-parallel
