set -x

ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"working_dir": "/openrlhf"}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --ref.num_nodes 1 \
   --ref.num_gpus_per_node 8 \
   --actor.num_nodes 1 \
   --actor.num_gpus_per_node 8 \
   --vllm.num_engines 4 \
   --vllm.tensor_parallel_size 2 \
   --vllm.enforce_eager \
   --ds.param_dtype bf16 \
   --ds.zero_stage 3 \
   --ds.attn_implementation flash_attention_2 \
   --actor.model_name_or_path Qwen/Qwen3-30B-A3B \
   --rollout.temperature 1.0
