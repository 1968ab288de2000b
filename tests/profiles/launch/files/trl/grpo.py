from trl import GRPOConfig, GRPOTrainer

config = GRPOConfig(output_dir="out", use_vllm=True, vllm_mode="colocate", cast_lm_head_to_fp32=True)
trainer = GRPOTrainer(model="Qwen/Qwen3-30B-A3B", args=config, reward_funcs=len)
