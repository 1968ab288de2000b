"""Trains on what vLLM samples in the same process."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward

dataset = load_dataset("trl-lib/DeepMath-103K", split="train")

training_args = GRPOConfig(
    output_dir="qwen-grpo",
    bf16=True,
    per_device_train_batch_size=8,
    num_generations=8,
    use_vllm=True,
    vllm_mode="colocate",
    vllm_tensor_parallel_size=2,
    temperature=1.0,
    model_init_kwargs={"dtype": "bfloat16", "attn_implementation": "flash_attention_2"},
)
trainer = GRPOTrainer(
    model="Qwen/Qwen3-30B-A3B",
    reward_funcs=accuracy_reward,
    args=training_args,
    train_dataset=dataset,
)
trainer.train()
