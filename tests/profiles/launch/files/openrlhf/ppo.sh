set -x
python3 -m openrlhf.cli.train_ppo_ray \
   --actor_num_nodes 1 \
   --actor_num_gpus_per_node 8 \
   --vllm_num_engines 4 \
   --vllm_tensor_parallel_size 2 \
   --eps_clip_low_high 0.2 0.27 \
   --pretrain Qwen/Qwen3-30B-A3B \
   --param_dtype bf16 \
   --enforce_eager \
   --vllm_enable_sleep
# You could also try
#   --attn_implementation eager
