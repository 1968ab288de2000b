ray job submit --runtime-env-json='{"working_dir": "/openrlhf"}' -- python3 -m openrlhf.cli.train_ppo_ray --bf16 \
   --vllm_num_engines 2 --attn_implementation eager --temperature 0.9
