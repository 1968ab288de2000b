uv run rl @ prime-rl/rl.toml --trainer.model.impl auto --inference.vllm.enforce-eager --no-inference.enable-fp32-lm-head
