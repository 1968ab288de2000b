#!/bin/bash
# On both nodes, with NODE_RANK 0 and 1.
export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0
vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 16 --nnodes 2 --node-rank ${NODE_RANK:-0} \
  --master-addr ${HEAD_IP:-10.0.0.1} --distributed-executor-backend mp --max-num-seqs 256
