#!/bin/bash
#SBATCH --job-name=rollout
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --time=04:00:00
module load cuda
source ~/venv/bin/activate
srun --ntasks=1 python -m vllm.entrypoints.openai.api_server \
    --model Qwen/Qwen3-30B-A3B \
    --tensor-parallel-size 8 --enforce-eager --dtype bfloat16 \
    --trust-remote-code
