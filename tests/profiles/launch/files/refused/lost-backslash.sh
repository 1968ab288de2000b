MODEL_ARGS=(--num-layers 48 --hidden-size 2048)
ray job submit -- python3 train.py \
   --actor-num-nodes 4
   ${MODEL_ARGS[@]} \
   --rollout-num-gpus-per-engine 8
