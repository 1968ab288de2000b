python -m torch.distributed.run --nproc_per_node 8 /workspace/Megatron-LM/pretrain_gpt.py \
  --num-layers 24 --tensor-model-parallel-size 2 --sequence-parallel --deterministic-mode --no-bias-swiglu-fusion
