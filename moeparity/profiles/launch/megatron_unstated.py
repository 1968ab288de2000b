"""Options of Megatron-LM d98e8a64dd that decide numerics and that no profile states, and options that change no
log-probability.

Sorted by hand from the fields of TransformerConfig, MLATransformerConfig and ModelParallelConfig, as trainers built on
it pass them. Fields that describe the model itself come from the checkpoint.
"""

from __future__ import annotations

from moeparity.profiles.launch.options import Option
from moeparity.profiles.launch.unstated import table

_FP8 = "GEMMs of quantised weights and activations: the format, its scales and which layers it spares"
_CONTEXT = "attention is cut along the sequence, and its parts are merged"
_BALANCE = "the router's choice is changed: other experts than the scores say"

MEANINGS = {
    "fp8": _FP8,
    "fp8_format": _FP8,
    "fp8_recipe = delayed": _FP8,
    "fp8_param": "weights are kept in fp8",
    "fp8_dot_product_attention": _FP8,
    "fp8_multi_head_attention": _FP8,
    "fp8_output_proj": _FP8,
    "first_last_layers_bf16": _FP8,
    "fp4": _FP8,
    "fp4_param": "weights are kept in fp4",
    "quant_recipe": _FP8,
    "use_kitchen": _FP8,
    "enable_autocast": "torch.autocast chooses the dtype of each op",
    "fp16": "fp16 in place of bf16",
    "context_parallel_size = 1": _CONTEXT,
    "cp_comm_type = p2p": _CONTEXT,
    "hybrid_context_parallel": _CONTEXT,
    "tp_comm_overlap": "GEMMs and collectives overlap: sums over ranks are TransformerEngine's userbuffers'",
    "attention_backend = auto": "which attention kernel TransformerEngine takes, of which no profile states any",
    "flash_attention_version": "which attention kernel TransformerEngine takes",
    "softmax_type = vanilla": "a sink, or another softmax",
    "fp32_residual_connection": "the residual stream is fp32",
    "apply_query_key_layer_scaling": "scores are scaled by layer",
    "attention_softmax_in_fp32 unless true 1": "the softmax of attention is not in fp32",
    "disable_bf16_reduced_precision_matmul": "cuBLAS adds split sums in fp32",
    "transformer_impl = transformer_engine": "norms, GEMMs and attention are not TransformerEngine's",
    "use_transformer_engine_op_fuser": "ops are fused that are separate here",
    "fused_single_qkv_rope": "projection and rotary embedding in one kernel",
    "fused_residual_rmsnorm": "addition and norm in one kernel",
    "use_te_activation_func": "TransformerEngine's SwiGLU",
    "batch_invariant_mode": "batch-invariant kernels: GEMMs, attention and the combine are others",
    "moe_router_pre_softmax": "the softmax is taken before the top-k",
    "moe_router_fusion": "TransformerEngine's fused router",
    "moe_router_load_balancing_type = none aux_loss seq_aux_loss global_aux_loss": _BALANCE,
    "moe_router_force_load_balancing": _BALANCE,
    "moe_router_force_biased": _BALANCE,
    "moe_input_jitter_eps": "noise is multiplied into the router's inputs",
    "moe_expert_capacity_factor": "tokens beyond an expert's capacity are dropped",
    "moe_token_dropping": "tokens beyond an expert's capacity are dropped",
    "moe_apply_probs_on_input": "scores are multiplied into the experts' inputs",
    "moe_shared_expert_overlap": "the shared expert's sum is added elsewhere",
    "moe_enable_routing_replay": "routes are replayed, not chosen",
    "moe_dispatch_fwd_dtype = bf16": "the dtype in which rows travel to the experts",
    "moe_latent_size": "experts run on a projection of their inputs",
    "overlap_moe_expert_parallel_comm": "a batch is run in parts: kernels are chosen by the smaller shapes",
    "cuda_graph_impl": "CUDA graphs: batches are padded to captured sizes",
    "cross_entropy_loss_fusion": "another kernel makes log-probabilities",
    "symmetric_ar_type": "an all-reduce over symmetric memory, which adds in fp32",
    "flash_decode": "another attention kernel",
    "experimental_attention_variant": "another attention than the graph's",
    "enable_mhc_connections": "several residual streams",
    "multi_latent_attention_absorb": "latent attention with its projections absorbed",
    "mla_down_proj_fusion": "latent attention's first projections as one GEMM",
    "mtp_num_layers": "layers that predict further tokens, whose loss changes the weights",
    "rope_type": "the rotary embedding's angles",
    "rotary_scaling_factor": "the rotary embedding's angles",
    "use_fused_weighted_squared_relu": "another activation",
    "hidden_dropout": "dropout, where the trainer leaves it on for log-probabilities",
    "attention_dropout": "dropout, where the trainer leaves it on for log-probabilities",
}
"""By the name of the field; a key is as in `unstated.table`."""

_KERNEL = "which attention kernel TransformerEngine takes, of which no profile states any"
_CHANNELS = "how NCCL cuts a message: set all_reduce:channels and all_reduce:protocol"
ENVIRONMENT = table(
    {
        "NVTE_FLASH_ATTN unless 1 true": _KERNEL,
        "NVTE_FUSED_ATTN unless 1 true": _KERNEL,
        "NVTE_UNFUSED_ATTN unless 1 true": _KERNEL,
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO unless 1 true": "attention takes kernels that are deterministic alone",
        "CUBLAS_WORKSPACE_CONFIG": "which algorithms cuBLAS takes, for the workspace they have",
        "NCCL_ALGO = ring": "which of NCCL's algorithms adds up the ranks: set all_reduce:collective",
        "NCCL_PROTO = simple": _CHANNELS,
        "NCCL_MIN_NCHANNELS = 1": _CHANNELS,
        "NCCL_MAX_NCHANNELS = 1": _CHANNELS,
        "NCCL_NVLS_ENABLE = 2": "NCCL adds in the switch, in an order that is not published",
    },
    role="trainer",
    environment=True,
)
"""Environment variables of a trainer on Megatron-LM."""
_READ_ELSEWHERE = "options are read from there, over those of the command line"
ARGUMENTS = {
    "fp4_format": _FP8,
    "fp8_quantizer_factory": _FP8,
    "fp4_quantizer_factory": _FP8,
    "fp8_param_gather": "weights are kept in fp8",
    "fp4_param_gather": "weights are kept in fp4",
    "te_precision_config_file": "TransformerEngine's precision by module",
    "use_kitchen_attention": "another attention kernel",
    "use_flash_attn": "another attention kernel",
    "use_checkpoint_args": _READ_ELSEWHERE,
    "use_mp_args_from_checkpoint_args": _READ_ELSEWHERE,
    "yaml_cfg": _READ_ELSEWHERE,
    "spec": "layers of a specification of one's own",
    "disable_jit_fuser": "fused functions run op by op",
    "output_logit_dtype": "the dtype of logits",
    "fp16_lm_cross_entropy": "log-probabilities are made in fp16",
    "hierarchical_context_parallel_sizes": _CONTEXT,
    "use_rope_scaling": "the rotary embedding's angles",
    "rotary_percent = 1 1.0": "the rotary embedding's angles",
    "rotary_interleaved": "the rotary embedding's angles",
    "apply_layernorm_1p": "norms multiply by one more than their weights",
    "apply_residual_connection_post_layernorm": "the residual stream starts behind the norm",
}
"""By the name of the command line's argument, beside the fields."""

_FIELDS = """
pipeline_model_parallel_size virtual_pipeline_model_parallel_size num_layers_in_first_pipeline_stage
num_layers_in_last_pipeline_stage pipeline_model_parallel_layout account_for_embedding_in_pipeline_split
account_for_loss_in_pipeline_split pipeline_dtype recompute_granularity recompute_method recompute_num_layers
recompute_modules distribute_saved_activations moe_layer_recompute activation_checkpointing
gradient_accumulation_fusion deallocate_pipeline_outputs variable_seq_lengths overlap_p2p_comm batch_p2p_comm
defer_embedding_wgrad_compute cpu_offloading cpu_offloading_num_layers perform_initialization use_cpu_initialization
params_dtype moe_aux_loss_coeff moe_z_loss_coeff moe_router_bias_update_rate moe_router_enable_expert_bias
moe_per_layer_logging moe_grouped_gemm moe_flex_dispatcher_num_sms moe_deepep_num_sms moe_enable_deepep
mtp_loss_scaling_factor
mtp_use_repeated_layer mtp_detach_heads fine_grained_activation_offloading offload_modules calculate_per_token_loss
persist_layer_norm memory_efficient_layer_norm bias_dropout_fusion masked_softmax_fusion fp8_margin fp8_interval
fp8_amax_history_len fp8_amax_compute_algo fp8_wgrad num_layers_at_start_in_bf16 num_layers_at_end_in_bf16
use_te_rng_tracker init_method_std cuda_graph_modules cuda_graph_warmup_steps delay_wgrad_compute
barrier_with_L1_time timers config_logger_dir moe_router_padding_for_fp8 moe_router_padding_for_quantization
clone_scatter_output_in_embedding log_max_attention_logit
"""
FIELDS = frozenset(_FIELDS.split())
"""Fields that change no log-probability, or only what an fp8 option above already warns of."""


def fields(prefix: str, *, role: str = "trainer") -> tuple[Option, ...]:
    """The fields of no profile as options of a trainer on top of Megatron-LM, whose names begin with `prefix`."""
    return table(MEANINGS, prefix=prefix, role=role)


def arguments() -> tuple[Option, ...]:
    """Those of its command line that no field of the configuration is called by."""
    return table(ARGUMENTS, role="trainer")


def irrelevant(prefix: str) -> frozenset[str]:
    """The fields that change nothing, as such a trainer names them."""
    return frozenset(f"{prefix}{name}" for name in FIELDS)
