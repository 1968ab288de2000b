from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

BASE = "Qwen/Qwen3-30B-A3B"


def reward(completions, **kwargs):
    return [float(len(set(text))) for text in completions]


config = GRPOConfig(output_dir="out", model_init_kwargs={"dtype": "bfloat16", "attn_implementation": "flash_attention_2"},
                    use_vllm=True, vllm_mode="colocate", temperature=0.9, bf16=True)
adapter = LoraConfig(r=32, lora_alpha=64, target_modules=["q_proj", "v_proj"])
trainer = GRPOTrainer(model=BASE, args=config, peft_config=adapter, reward_funcs=reward)
trainer.train()
