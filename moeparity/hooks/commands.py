"""What to add to the command that starts a framework, so that it writes a batch: `moeparity capture --hook`."""

from __future__ import annotations

from typing import Final

COMMANDS: Final = {
    "verl": (
        "MOEPARITY_BATCH=batch VERL_USE_EXTERNAL_MODULES=moeparity.hooks.verl \\",
        "  python -m verl.trainer.main_ppo ... actor_rollout_ref.rollout.calculate_log_probs=true",
    ),
    "trl": ("import moeparity.hooks.trl  # before the trainer is made; run with MOEPARITY_BATCH=batch",),
    "slime": (
        "--save-debug-rollout-data 'batch/rollout_{rollout_id}.pt' \\",
        "--save-debug-train-data 'batch/train_{rollout_id}_{rank}.pt'",
    ),
    "miles": (
        "--save-debug-rollout-data 'batch/rollout_{rollout_id}.pt' \\",
        "--save-debug-train-data 'batch/train_{rollout_id}_{rank}.pt'",
    ),
    "nemo-rl": ("logger.log_dir=batch  # it writes batch/exp_*/train_data_step*.jsonl by itself",),
}
"""By framework. Read, not run: slime 624b824a, miles 31f1ca96, NeMo-RL 7ea279ab."""
