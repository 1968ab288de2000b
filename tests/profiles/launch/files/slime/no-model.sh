source models/not-there.sh
python3 train_async.py --hf-checkpoint /root/GLM --rollout-batch-size 8 ${MODEL_ARGS[@]} \
   --tensor-model-parallel-size ${TP} --no-rope-fusion --rollout-num-gpus-per-engine 2
