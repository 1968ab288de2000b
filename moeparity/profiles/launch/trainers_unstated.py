"""What verl's and NeMo-RL's own options decide that no profile states, and those that change no log-probability."""

from __future__ import annotations

from moeparity.profiles.launch.unstated import details, table

_ROLLOUT, _ACTOR, _MODEL = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor.", "actor_rollout_ref.model."
_GENERATION, _POLICY = "policy.generation.", "policy."
_TOP = "the sampler's truncation: processed log-probabilities are of what remains, a trainer's are of all tokens"
_QUANTISED = "the rollout's weights and activations are quantised: other values, kernels and scales"
_LORA = "an adapter is added to each GEMM's output, on both sides"
_SPECULATIVE = "speculative decoding: tokens are verified several at a time, in other shapes than a decode of one"
_CONTEXT = "attention is cut along the sequence, and its parts are merged"
_BATCHES = "how prompts are cut into calls: kernels and splits are chosen by the shape of a call"
_COMPILED = "torch.compile fuses and keeps values unrounded between kernels"
_STATES = "the dtype of the states of Mamba"
_FP8 = "GEMMs of quantised weights and activations: the format, its scales and which layers it spares"

VERL = (
    *table(
        {
            "top_k = -1": _TOP,
            "top_p = 1 1.0": _TOP,
            "min_p": _TOP,
            "repetition_penalty = 1 1.0": "logits of tokens that occurred are changed",
            "quantization": _QUANTISED,
            "quantization_config_file": _QUANTISED,
            "kv_cache_dtype": "keys and values are stored in this dtype and read back from it",
            "enable_rollout_routing_replay": "the trainer replays the rollout's routes",
            "layered_summon": _LORA,
            "enable_chunked_prefill ! false": f"chunked prefill: {_BATCHES}",
            "enable_prefix_caching ! false": "prefix caching: keys and values of a prefix come from another call",
        },
        prefix=_ROLLOUT,
        role="rollout",
    ),
    *table({"mtp.enable_rollout": _SPECULATIVE}, prefix=_MODEL, role="rollout"),
    *table(
        {
            "lora_rank": _LORA,
            "lora.rank": _LORA,
            "lora_adapter_path": _LORA,
            "use_liger": "Liger's kernels in place of transformers'",
            "use_fused_kernels": "head and log-softmax in one kernel",
            "tiled_mlp.enabled": "the MLP runs in tiles of tokens",
            "override_config.attn_implementation": "which attention transformers takes",
            "override_config.attention_dropout": "dropout",
            "mtp.enable": "layers that predict further tokens",
        },
        prefix=_MODEL,
        role="trainer",
    ),
    *details("lora_alpha target_modules exclude_modules", "of lora_rank", prefix=_MODEL, role="trainer"),
    *table({"device = cuda": "kernels are another device's, on both sides"}, prefix="trainer.", role="trainer"),
    *table(
        {
            "ulysses_sequence_parallel_size = 1": _CONTEXT,
            "use_torch_compile ! false": f"entropy and log-probabilities: {_COMPILED}",
            "entropy_from_logits_with_chunking": "log-softmax by chunks",
            "megatron.router_replay.mode router_replay.mode": "routes are replayed, not chosen",
            "fsdp_config.dtype = bfloat16": "the dtype of autocast",
            "fsdp_config.model_dtype": "the dtype of the weights that FSDP keeps",
            "fsdp_config.mixed_precision": "the dtypes in which FSDP computes and reduces",
            "fsdp_config.use_torch_compile ! false": _COMPILED,
            "fsdp_config.ulysses_sequence_parallel_size = 1": _CONTEXT,
            "megatron.context_parallel_size = 1": _CONTEXT,
            "megatron.dtype = bfloat16": "the dtype of weights and activations",
            "megatron.override_mcore_model_config.": "fields of the model",
            "veomni.": "VeOmni's engine",
        },
        prefix=_ACTOR,
        role="trainer",
    ),
)
"""verl's options; those of Megatron-LM are `megatron_unstated`'s."""

OF_VERL = frozenset(
    (
        *("data.", "trainer.", "critic.", "reward_model.", "reward_manager.", "reward.", "algorithm.", "ray_kwargs."),
        *("global_profiler.", "custom_reward_function.", "transfer_queue.", "hydra.", "ray_init.", "config_path"),
        *("reward_manager", "reward_loop.", "actor_rollout_ref.hybrid_engine", "actor_rollout_ref.nccl_timeout"),
        *(f"{_ACTOR}optim.", f"{_ACTOR}checkpoint.", f"{_ACTOR}profiler.", f"{_ACTOR}policy_loss."),
        *(f"{_ROLLOUT}multi_turn.", f"{_ROLLOUT}val_kwargs.", f"{_ROLLOUT}agent.", f"{_ROLLOUT}trace."),
        *(f"{_ROLLOUT}checkpoint_engine.", f"{_ROLLOUT}profiler.", f"{_ROLLOUT}prometheus."),
        *(
            f"{_ACTOR}{name}"
            for name in (
                *("ppo_mini_batch_size", "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz"),
                *("ppo_max_token_len_per_gpu", "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"),
                *("loss_agg_mode", "entropy_coeff", "use_kl_loss", "kl_loss_coef", "kl_loss_type", "ppo_epochs"),
                *("shuffle", "grad_clip", "data_loader_seed", "load_weight", "entropy_checkpointing"),
                *("fsdp_config.param_offload", "fsdp_config.optimizer_offload", "fsdp_config.offload_policy"),
                *("fsdp_config.reshard_after_forward", "fsdp_config.fsdp_size", "fsdp_config.forward_prefetch"),
                *("fsdp_config.entropy_checkpointing", "megatron.param_offload", "megatron.grad_offload"),
                *("megatron.optimizer_offload", "megatron.pipeline_model_parallel_size"),
                *("megatron.virtual_pipeline_model_parallel_size", "megatron.use_dist_checkpointing"),
                *("megatron.dist_checkpointing_path", "megatron.use_distributed_optimizer"),
                *("megatron.seed", "megatron.override_ddp_config", "megatron.use_remove_padding"),
            )
        ),
        *(
            f"{_MODEL}{name}"
            for name in (
                *("path", "use_shm", "trust_remote_code", "tokenizer_path", "hf_config_path", "custom_chat_template"),
                *("use_remove_padding", "enable_gradient_checkpointing", "enable_activation_offload", "external_lib"),
            )
        ),
        *(
            f"{_ROLLOUT}{name}"
            for name in (
                *("mode", "prompt_length", "response_length", "gpu_memory_utilization", "ignore_eos", "n", "do_sample"),
                *("free_cache_engine", "max_num_batched_tokens", "max_model_len"),
                *("max_num_seqs", "scheduling_policy", "load_format", "disable_log_stats", "calculate_log_probs"),
                *("log_prob_micro_batch_size", "log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz"),
                *("log_prob_max_token_len_per_gpu", "over_sample_rate", "multi_stage_wake_up", "skip_rollout"),
                *("skip_dump_dir", "skip_tokenizer_init", "cudagraph_capture_sizes", "update_weights_bucket_megabytes"),
            )
        ),
    )
)

_OF_ADAPTERS = """
target_modules exclude_modules match_all_linear dim alpha dropout dropout_position lora_dtype use_triton
"""
NEMO_RL = (
    *table(
        {
            "top_k": _TOP,
            "top_p = 1 1.0": _TOP,
            "quant_cfg": _QUANTISED,
            "vllm_cfg.precision = bfloat16 ${policy.precision}": _QUANTISED,
            "vllm_cfg.kv_cache_dtype": "keys and values are stored in this dtype and read back from it",
            "vllm_cfg.is_mx": _QUANTISED,
            "vllm_cfg.use_deep_gemm": "fp8 GEMMs are DeepGEMM's",
            "vllm_cfg.quantization_ignored_layer_kws": "layers that are not quantised",
            "vllm_cfg.num_first_layers_in_bf16": "layers that are not quantised",
            "vllm_cfg.num_last_layers_in_bf16": "layers that are not quantised",
            "vllm_cfg.use_activation_pow2_scale": _QUANTISED,
            "vllm_cfg.pow2_weight_scaling_factors": _QUANTISED,
            "vllm_cfg.hf_overrides": "fields of config.json are replaced",
            "vllm_cfg.enable_prefix_caching ! false": "prefix caching: keys and values come from another call",
            "bad_words": "logits of these tokens are taken out before the sampler",
            "mcore_generation_config.num_speculative_tokens": _SPECULATIVE,
            "mcore_generation_config.mamba_inference_ssm_states_dtype": _STATES,
            "mcore_generation_config.mamba_inference_conv_states_dtype": _STATES,
            "mcore_generation_config.inference_grouped_gemm_backend": "whose grouped GEMM runs the experts",
            "mcore_generation_config.inference_moe_token_dispatcher_type": "how rows travel to the experts and home",
            "mcore_generation_config.enable_chunked_prefill": f"chunked prefill: {_BATCHES}",
            "mcore_generation_config.enable_prefix_caching": "prefix caching: keys and values come from another call",
        },
        prefix=_GENERATION,
        role="rollout",
    ),
    *table(
        {
            "draft.enabled": _SPECULATIVE,
            "hf_config_overrides": "fields of config.json are replaced",
            "quant_cfg": _FP8,
            "dtensor_cfg.context_parallel_size = 1": _CONTEXT,
            "dtensor_cfg.lora_cfg.enabled": _LORA,
            "dtensor_cfg.automodel_kwargs": "which kernels NeMo Automodel takes",
            "dtensor_cfg.expert_parallel_size = 1": "experts lie on so many ranks, dispatched by NeMo Automodel",
            "megatron_cfg.fp8_cfg.enabled": _FP8,
            "megatron_cfg.peft.enabled": _LORA,
            "megatron_cfg.model_overrides": "fields of the model",
            "megatron_cfg.use_fused_linear_logprobs": "head and log-softmax in one kernel",
            "megatron_cfg.defer_fp32_logits": "where logits become fp32",
            "router_replay.enabled": "routes are replayed, not chosen",
        },
        prefix=_POLICY,
        role="trainer",
    ),
    *(
        option
        for prefix, names in (
            ("megatron_cfg.fp8_cfg", "fp8 fp8_recipe fp8_param"),
            ("megatron_cfg.peft", _OF_ADAPTERS),
            ("dtensor_cfg.lora_cfg", _OF_ADAPTERS),
        )
        for option in details(names, f"of {prefix}.enabled", prefix=f"{_POLICY}{prefix}.", role="trainer")
    ),
)
"""NeMo-RL's options; those of Megatron-LM are `megatron_unstated`'s."""

OF_NEMO_RL = frozenset(
    (
        *(
            "ppo.",
            "data_plane.",
            "policy.dtensor_cfg.env_vars.",
            "policy.megatron_cfg.env_vars.",
            "policy.generation.vllm_cfg.env_vars.",
            f"{_GENERATION}mcore_generation_config.",
            "grpo.",
            "dpo.",
            "sft.",
            "distillation.",
            "loss_fn.",
            "checkpointing.",
            "data.",
            "env.",
            "logger.",
            "cluster.",
        ),
        *("reward_penalties.", "defaults", "teacher.", "policy.model_name", "policy.tokenizer.", "policy.optimizer."),
        *("policy.scheduler", "policy.scheduler.", "policy.dynamic_batching.", "policy.sequence_packing."),
        *("policy.generation.colocated.", "policy.generation.refit_cfg.", "policy.megatron_cfg.optimizer."),
        *("policy.megatron_cfg.scheduler.", "policy.megatron_cfg.checkpoint.", "policy.megatron_cfg.peft."),
        *("policy.megatron_cfg.distributed_data_parallel_config.", "policy.dtensor_cfg.lora_cfg."),
        *("policy.megatron_cfg.fp8_cfg.", "policy.draft."),
        *(
            f"{_POLICY}{name}"
            for name in (
                *("train_global_batch_size", "train_micro_batch_size", "generation_batch_size", "logprob_batch_size"),
                *("max_total_sequence_length", "logprob_chunk_size", "offload_optimizer_for_logprob", "max_grad_norm"),
                *("make_sequence_length_divisible_by", "dtensor_cfg._v2", "dtensor_cfg.cpu_offload"),
                *("dtensor_cfg.dp_replicate_size", "megatron_cfg.converter_type"),
                *("dtensor_cfg.activation_checkpointing", "megatron_cfg.force_reconvert_from_hf"),
                *("megatron_cfg.empty_unused_memory_level", "megatron_cfg.freeze_moe_router"),
                *("megatron_cfg.use_gloo_process_groups", "megatron_cfg.fused_linear_logprobs_chunk_size"),
            )
        ),
        *(
            f"{_GENERATION}{name}"
            for name in (
                *("port_range_low", "port_range_high", "max_new_tokens", "val_temperature", "val_top_p", "val_top_k"),
                *("stop_token_ids", "stop_strings", "refit_transport", "real_quant_export_cpu_offload"),
                *("vllm_cfg.async_engine", "vllm_cfg.gpu_memory_utilization"),
                *("vllm_cfg.max_model_len", "vllm_cfg.load_format", "vllm_cfg.skip_tokenizer_init"),
                *("vllm_cfg.enable_vllm_metrics_logger", "vllm_cfg.vllm_metrics_logger_interval", "vllm_cfg.use_tqdm"),
                *("vllm_cfg.reset_encoder_cache_after_weight_update", "vllm_cfg.http_server_serving_chat_kwargs."),
            )
        ),
    )
)
