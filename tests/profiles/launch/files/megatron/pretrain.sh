#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"1"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)
MOE_ARGS=(
    --num-layers 32
    --num-experts 8
#    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
    --moe-permute-fusion
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 1
    --expert-model-parallel-size $WORLD_SIZE
    --bf16
)
if [ -n "${WANDB_API_KEY}" ]; then
    PARALLEL_ARGS+=(
        --wandb-project ${WANDB_PROJECT:-"moe"}
    )
fi
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MOE_ARGS[@]} \
    ${PARALLEL_ARGS[@]}
