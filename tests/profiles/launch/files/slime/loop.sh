#!/bin/bash
DENSE=3
LAYERS=92
pattern=""
for ((i = 0; i < LAYERS; i++)); do
    if [ $i -lt $DENSE ]; then kind=0; else kind=1; fi
    pattern="$pattern$kind,"
done
FREQ="[0]*$DENSE+[1]*$((LAYERS - DENSE))"
ARGS=(--num-layers $LAYERS --hidden-size 4096 --num-experts 160 --moe-layer-freq $FREQ --moe-router-dtype fp32
      --moe-router-score-function sigmoid --tensor-model-parallel-size 8 --sequence-parallel
      --expert-model-parallel-size 16)
python3 train.py --hf-checkpoint zai-org/GLM-4.5 --rollout-batch-size 64 --rollout-num-gpus-per-engine 8 \
    ${ARGS[@]} --use-rollout-routing-replay
