#!/bin/bash
vllm serve Qwen/Qwen3-235B-A22B-Instruct-2507 --tensor-parallel-size 16 --nnodes 2 --node-rank "$RANK" \
    --master-addr "$HEAD" --max-num-seqs 128 --generation-config vllm
