python3 -m verl.trainer.main_ppo model_engine=veomni actor_rollout_ref.rollout.name=vllm
