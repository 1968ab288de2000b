#!/usr/bin/env bash
set -xeuo pipefail
INFER_BACKEND=${INFER_BACKEND:-vllm}
actor_tp=${ACTOR_TP:-4}
actor_ep=${ACTOR_EP:-8}
rollout_tp=${ROLLOUT_TP:-4}
case "${INFER_BACKEND}" in
    vllm | sglang) ;;
    *)
        echo "no such backend: ${INFER_BACKEND}" >&2
        exit 1
        ;;
esac
optional=(actor_rollout_ref.rollout.mode=async)
if [ "${INFER_BACKEND}" = vllm ]; then
    optional+=(actor_rollout_ref.rollout.enforce_eager=True)
fi
python3 -m verl.trainer.main_ppo \
    model_engine=megatron \
    data.train_files="$HOME/data/train.parquet" \
    actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=${actor_tp} \
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=${actor_ep} \
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_router_dtype=fp32 \
    +actor_rollout_ref.actor.megatron.override_transformer_config.apply_rope_fusion=False \
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_permute_fusion=True \
    actor_rollout_ref.rollout.name=${INFER_BACKEND} \
    actor_rollout_ref.rollout.tensor_model_parallel_size=${rollout_tp} \
    "${optional[@]}" "$@"
