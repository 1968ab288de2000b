uv run rl @ prime-rl/rl.toml --trainer.model.impl hf --inference.model.enforce_eager
