set -x
MODEL_NAME="Qwen/Qwen3-30B-A3B"
ENFORCE_EAGER=true # graphs aside
MEGATRON_TP=4
MEGATRON_EP=8
uv run --isolated --extra megatron -m examples.train.dapo.main_dapo \
  data.train_data="['$HOME/data/dapo/train.parquet']" \
  trainer.policy.model.path="$MODEL_NAME" \
  trainer.strategy=megatron \
  trainer.policy.megatron_config.tensor_model_parallel_size=$MEGATRON_TP \
  trainer.policy.megatron_config.expert_model_parallel_size=$MEGATRON_EP \
  +trainer.policy.megatron_config.transformer_config_kwargs.moe_router_dtype=fp32 \
  generator.inference_engine.backend=vllm \
  generator.inference_engine.tensor_parallel_size=8 \
  generator.inference_engine.enforce_eager=$ENFORCE_EAGER \
  trainer.run_name="tp${MEGATRON_TP}_ep${MEGATRON_EP}" \
  $@
