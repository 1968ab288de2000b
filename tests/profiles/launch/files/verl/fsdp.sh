ACTOR=(actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.optim.lr=1e-6)
ROLLOUT=(
    actor_rollout_ref.rollout.name=sglang
    actor_rollout_ref.rollout.tensor_model_parallel_size=${ROLLOUT_TP:-2}
    actor_rollout_ref.rollout.temperature=0.7
)
LAUNCH=(python3)
if [ "${USE_UV:-1}" != 0 ]; then
    uv sync --frozen
    LAUNCH=(uv run --frozen --no-sync python3)
fi
"${LAUNCH[@]}" -m verl.trainer.main_ppo "${ACTOR[@]}" "${ROLLOUT[@]}" trainer.logger='["console","wandb"]'
