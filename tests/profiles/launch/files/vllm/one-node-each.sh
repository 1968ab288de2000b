#!/bin/bash
vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 4 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1
