RUNTIME_ENV='{"env_vars": {"VLLM_USE_V1": "1"}}'
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json="$RUNTIME_ENV" -- \
    python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size="$TP" \
    actor_rollout_ref.rollout.name=vllm
