"""Options of SGLang 0.5.23 that decide numerics and that no profile states, and options that change no log-probability.

Sorted by hand from sglang/srt/arg_groups/fields (531 options) and sglang/srt/environ.py.
"""

from __future__ import annotations

from moeparity.profiles.launch.architecture import QUANTISED, STATE
from moeparity.profiles.launch.unstated import details, table
from moeparity.profiles.launch.vllm_unstated import VARIABLES

_SPECULATIVE = "speculative decoding: tokens are verified several at a time; log-probabilities are another kernel's"
_QUANTISED = "weights, and activations where the method says so, are quantised: other values, kernels and scales"
_CONTEXT = "attention is cut along the sequence and its parts are merged by log-sum-exp"
_LORA = "an adapter is added to each GEMM's output"
_STATE = "the state of linear attention or Mamba: its dtype, rounding or kernel"
_REPLICAS = "replicas of experts: which rank computes a row, and so which partial sum holds it"
_SPARSE = "sparse attention: which tokens the indexer keeps, and by which kernel"
_OVERLAP = "a batch is run in parts: kernels are chosen by the smaller shapes"

_OF_QUANTISED = """
fp8_gemm_backend fp4_gemm_backend flashinfer_mxfp4_moe_precision enable_w4a4_mxfp4_megamoe
disable_flashinfer_cutlass_moe_fp4_allgather SGLANG_ENABLE_JIT_DEEPGEMM
SGLANG_FORCE_FP8_MARLIN SGLANG_HUMMING_USE_F16_ACCUM SGLANG_MOE_NVFP4_DISPATCH
"""
_OF_STATE = """
mamba_backend mamba_ssm_dtype enable_mamba_cache_stochastic_rounding enable_int8_mamba_checkpoint linear_attn_backend
linear_attn_decode_backend linear_attn_prefill_backend linear_attn_verify_backend enable_linear_replayssm
enable_linear_replayssm_spec SGLANG_MAMBA_SSM_DTYPE SGLANG_MAMBA_CONV_DTYPE
"""

ARGUMENTS = table(
    {
        "quantization": _QUANTISED,
        "quantization_param_path": "scales of a quantised cache of keys and values",
        "modelopt_quant": _QUANTISED,
        "quantize_and_serve": _QUANTISED,
        "rl_quant_profile": _QUANTISED,
        "torchao_config": _QUANTISED,
        "prefill_kv_cache_dequant_dtype": "the dtype in which prefill reads a cache in NVFP4",
        "fp8_gemm_backend fp8_gemm_runner_backend": "the kernels of fp8 GEMMs",
        "fp4_gemm_backend fp4_gemm_runner_backend": "the kernels of fp4 GEMMs",
        "bf16_gemm_backend bf16_gemm_runner_backend": "the kernels of bf16 GEMMs",
        "flashinfer_mxfp4_moe_precision": "the dtype of activations of experts in MXFP4",
        "enable_w4a4_mxfp4_megamoe": _QUANTISED,
        "speculative_algorithm": _SPECULATIVE,
        "speculative_draft_model_path speculative_draft_model": _SPECULATIVE,
        "speculative_num_steps": _SPECULATIVE,
        "speculative_num_draft_tokens": _SPECULATIVE,
        "speculative_eagle_topk": _SPECULATIVE,
        "speculative_attention_mode = prefill": "the attention kernel that verifies drafts",
        "enable_multi_layer_eagle": _SPECULATIVE,
        "speculative_adaptive": _SPECULATIVE,
        "speculative_accept_threshold_single = 1 1.0": "drafts are accepted below their probability",
        "speculative_accept_threshold_acc = 1 1.0": "drafts are accepted below their probability",
        "decoupled_spec_role": _SPECULATIVE,
        "attn_cp_size attention_context_parallel_size = 1": _CONTEXT,
        "dcp_size decode_context_parallel_size = 1": _CONTEXT,
        "enable_prefill_cp": _CONTEXT,
        "enable_kv_cache_sharding": _CONTEXT,
        "moe_dp_size moe_data_parallel_size = 1": "experts lie on a part of the ranks, several times",
        "moe_dense_tp_size": "dense layers are cut over fewer ranks than attention",
        "dwdp_size = 1": "experts are fetched instead of rows sent: no partial sums, other shapes",
        "enable_attn_tp_input_scattered": "sums are scattered by tokens over the ranks of attention",
        "enable_shared_experts_attn_tp": "over how many ranks shared experts are cut",
        "enable_dense_mlp_attn_tp": "over how many ranks dense layers are cut",
        "enable_layernorm_sp": "sequence parallel: sums are scattered by tokens",
        "boundary_reduction": "which collective ends a layer: all-reduce or reduce-scatter",
        "enable_quant_communications": "partial sums are quantised to int8 before they are added",
        "enable_nccl_nvls": "NCCL adds in the switch, in an order that is not published",
        "enable_symm_mem": "NCCL's symmetric-memory kernels, which add in fp32",
        "enable_mscclpp": "MSCCL++ adds up small messages",
        "enable_torch_symm_mem": "torch's symmetric-memory all-reduce, which rounds each addition to bf16",
        "enable_aiter_allreduce_fusion": "AITER's all-reduce, on ROCm",
        "enable_fused_moe_sum_all_reduce": "experts' rows and ranks are added in one kernel",
        "decode_attention_backend": "the attention kernel of decode, which need not be prefill's",
        "prefill_attention_backend": "the attention kernel of prefill, which need not be decode's",
        "enable_lean_attention": "how decode cuts the keys",
        "triton_attention_reduce_in_fp32": "the dtype in which Triton's attention merges its splits",
        "triton_attention_num_kv_splits = 8": "into how many splits Triton's decode attention cuts the keys",
        "triton_attention_split_tile_size": "how Triton's decode attention cuts the keys",
        "flashinfer_mla_disable_ragged": "which kernel runs MLA's prefill",
        "disable_chunked_prefix_cache": "how MLA's prefill reads a cached prefix",
        "enable_fused_qk_norm_rope": "norms of heads and rotary embedding in one kernel",
        "enable_nvidia_megakernel": "decode runs in one kernel",
        "enable_amd_monokernel": "decode runs in one kernel",
        "monokernel_backend": "decode runs in one kernel",
        "enable_tf32_matmul": "fp32 GEMMs run in TF32",
        "enable_torch_compile": "Inductor fuses and keeps values unrounded between kernels",
        "enable_lora": _LORA,
        "lora_paths": _LORA,
        "lora_backend = csgmv": _LORA,
        "lora_use_virtual_experts": _LORA,
        "enable_eplb": _REPLICAS,
        "ep_num_redundant_experts": _REPLICAS,
        "ep_dispatch_algorithm": _REPLICAS,
        "init_expert_location = trivial": "on which rank each expert lies, and so which partial sum holds its rows",
        "elastic_ep_backend": "the number of expert-parallel ranks may change",
        "enable_waterfill": "the shared expert runs as a further routed expert",
        "enforce_shared_experts_fusion": "the shared expert runs as a further routed expert: set combine:shared slot",
        "deepep_dispatcher_output_dtype = bf16 bfloat16": "the dtype in which rows travel to the experts",
        "flashinfer_a2a_dispatch_type": "the dtype in which rows travel to the experts",
        "enable_paged_experts": "experts are moved between host and GPU",
        "kt_weight_path": "experts run on the CPU, quantised",
        "enable_two_batch_overlap": _OVERLAP,
        "enable_single_batch_overlap": _OVERLAP,
        "enable_pdmux": "prefill and decode share the SMs: kernels are chosen for fewer of them",
        "disaggregation_mode": "prefill and decode run on different servers, which may be started differently",
        "enable_mixed_chunk": "prefill and decode share a call: kernels are chosen by the larger shape",
        "enable_dp_lm_head": "over which ranks the head is cut",
        "mamba_backend = triton": _STATE,
        "mamba_ssm_dtype": _STATE,
        "enable_mamba_cache_stochastic_rounding": _STATE,
        "enable_int8_mamba_checkpoint": _STATE,
        "linear_attn_backend = triton": _STATE,
        "linear_attn_decode_backend": _STATE,
        "linear_attn_prefill_backend": _STATE,
        "enable_linear_replayssm": _STATE,
        "dsa_prefill_backend nsa_prefill_backend": _SPARSE,
        "dsa_decode_backend nsa_decode_backend": _SPARSE,
        "dsa_topk_backend = sgl-kernel": _SPARSE,
        "dsa_paged_mqa_logits_backend": _SPARSE,
        "dsv4_attn_backend": _SPARSE,
        "enable_hisparse": _SPARSE,
        "enable_deepseek_v4_fp4_indexer": _SPARSE,
        "model_impl = sglang": "whose modelling code runs: SGLang's own, or transformers'",
        "device = cuda": "kernels are another device's",
        "json_model_override_args": "fields of config.json are replaced",
        "enable_custom_logit_processor": "a processor of yours may change logits before the sampler",
        "sampling_defaults ! openai": (
            "requests that name no temperature take that of the model's generation_config.json, and log-probabilities "
            "are of logits over it"
        ),
        "preferred_sampling_params": "temperature, top-p and top-k, which SGLang's log-probabilities include",
        "forward_hooks": "code of yours runs between the layers",
        "dsv4_prefill_backend": _SPARSE,
        "enable_dsa_fused_indexer": _SPARSE,
        "qsa_indexer_dtype": _SPARSE,
        "linear_attn_verify_backend": _STATE,
        "enable_linear_replayssm_spec": _STATE,
        "enable_scattered_sconv": "sums are scattered along the hidden dimension",
        "dcp_comm_backend": _CONTEXT,
        "dcp_replicate_q_proj": _CONTEXT,
        "cp_strategy": _CONTEXT,
        "enable_cp_decode_attn_tp": _CONTEXT,
        "shared_experts_tp_size": "over how many ranks shared experts are cut",
        "enable_megamoe_for_layernorm_sp": "experts and their dispatch in one kernel",
        "speculative_use_rejection_sampling": _SPECULATIVE,
        "speculative_use_block_verification": _SPECULATIVE,
        "uno_lora_path": _SPECULATIVE,
        "debug_cuda_graph": "graphs are broken up or run eagerly",
        "experts_shared_outer_loras": _LORA,
        "dsa_triton_union": _SPARSE,
        "disable_flashinfer_cutlass_moe_fp4_allgather": _QUANTISED,
        "dllm_algorithm": "a diffusion model: tokens are not made left to right",
        "num_continuous_decode_steps = 1": "several decode steps are scheduled at once",
        "chunked_prefill_size ! -1": "chunked prefill: how prompts are cut into calls, which kernels are chosen by",
        "disable_radix_cache ! true": "prefix caching: keys and values of a shared prefix come from another call",
        "disable_cuda_graph ! true": "CUDA graphs: batches are padded to captured sizes",
    },
    concerns={**dict.fromkeys(_OF_QUANTISED.split(), QUANTISED), **dict.fromkeys(_OF_STATE.split(), STATE)},
) + details("max_lora_rank lora_target_modules", "of the adapters of enable_lora")
"""Options of the server."""

ENVIRONMENT = table(
    {
        "SGLANG_ROPE_CACHE_FP32": "cos and sin are kept in fp32",
        "SGLANG_USE_1STAGE_ALLREDUCE": "which of the custom all-reduce's kernels runs",
        "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2 unless 1 true": "the custom all-reduce's older kernels",
        "SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB": "up to what size the custom all-reduce is taken",
        "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PULL_SIZE_KB": "which kernel adds a message of a given size",
        "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PUSH_SIZE_KB": "which kernel adds a message of a given size",
        "SGLANG_DETERMINISTIC_NCCL_NCHANNELS": "NCCL's channels in the deterministic mode",
        "SGLANG_ENABLE_JIT_DEEPGEMM": "whose fp8 GEMMs run",
        "SGLANG_ENABLE_BF16_SPLITK_GEMM": "bf16 GEMMs split K",
        "SGLANG_USE_DEEPGEMM_BMM": "whose batched GEMMs run",
        "SGLANG_DEEPEP_BF16_DISPATCH": "the dtype in which rows travel to the experts",
        "SGLANG_MOE_NVFP4_DISPATCH": "rows travel to the experts in NVFP4",
        "SGLANG_FORCE_FP8_MARLIN": _QUANTISED,
        "SGLANG_INT4_WEIGHT": _QUANTISED,
        "SGLANG_MAMBA_SSM_DTYPE": _STATE,
        "SGLANG_MAMBA_CONV_DTYPE": _STATE,
        "SGLANG_FLASHINFER_MOE_FUSED_FINALIZE": "rows are added in the GEMM's epilogue: in the order of arrival",
        "SGLANG_OPT_USE_BF16_ROUTER_GEMM": "the router's GEMM in bf16",
        "SGLANG_USE_CUSTOM_ROUTER_SUM": "in which order the chosen scores are added",
        "SGLANG_FORCE_FUSED_OP_BACKEND": "whose fused kernels run",
        "SGLANG_TRITON_DECODE_ATTN_STATIC_KV_SPLITS": "into how many splits decode attention cuts the keys",
        "SGLANG_TRITON_DECODE_SPLIT_TILE_SIZE": "how decode attention cuts the keys",
        "SGLANG_FLASHINFER_PREFILL_SPLIT_TILE_SIZE": "how prefill attention cuts the keys",
        "SGLANG_FLASHINFER_DECODE_SPLIT_TILE_SIZE": "how decode attention cuts the keys",
        "SGLANG_TRITON_FP8_PREFILL_ATTN": "prefill attention in fp8",
        "SGLANG_USE_SAGE_ATTENTION_IMPL": "attention with quantised keys",
        "SGLANG_SKIP_SOFTMAX_PREFILL_THRESHOLD_SCALE_FACTOR": "blocks of small probabilities are skipped",
        "SGLANG_SKIP_SOFTMAX_DECODE_THRESHOLD_SCALE_FACTOR": "blocks of small probabilities are skipped",
        "SGLANG_HUMMING_USE_F16_ACCUM": "GEMMs accumulate in fp16",
        "SGLANG_SIMULATE_UNIFORM_EXPERTS": "experts are not the router's",
        "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS": "experts are not the router's",
        "SGLANG_ENABLE_DP_GATHER_FP8": "rows are gathered in fp8",
        "SGLANG_SANITIZE_NAN_LOGITS": "NaN among logits is replaced",
        "SGLANG_ENABLE_FAST_INPUT_LOGPROBS": "which kernel makes a prompt's log-probabilities",
        "FLASHINFER_USE_CUDA_NORM": "norms are FlashInfer's in CUDA, not in CuTe-DSL: set rms_norm:order",
    },
    environment=True,
    concerns={**dict.fromkeys(_OF_QUANTISED.split(), QUANTISED), **dict.fromkeys(_OF_STATE.split(), STATE)},
)
"""Environment variables of SGLang."""

_IRRELEVANT = """
model_path model model_config_parser base_gpu_id gpu_id_step random_seed watchdog_timeout soft_watchdog_timeout
sleep_on_idle use_ray custom_sigquit_handler numa_node gc_threshold disaggregation_decode_allocation_policy
disaggregation_transfer_backend disaggregation_enable_kv_checksum disaggregation_bootstrap_port
disaggregation_ib_device disaggregation_decode_enable_radix_cache disaggregation_decode_enable_offload_kvcache
num_reserved_decode_tokens encoder_only language_only language_model_only encoder_transfer_backend encoder_urls
pdmux_config_path sm_group_num enable_memory_saver enable_weights_cpu_backup enable_draft_weights_cpu_backup
enable_watermark enable_return_hidden_states enable_return_routed_experts enable_return_indexer_topk
disable_outlines_disk_cache enable_mis sampling_backend grammar_backend disable_flashinfer_autotune
flashinfer_autotune_skip_ops cuda_graph_config cuda_graph_backend_decode cuda_graph_backend_prefill
cuda_graph_max_bs_decode cuda_graph_max_bs_prefill cuda_graph_bs_decode cuda_graph_bs_prefill cuda_graph_bs
cuda_graph_max_bs disable_prefill_cuda_graph disable_decode_cuda_graph disable_cuda_graph_padding
enable_profile_cuda_graph enable_cudagraph_gc torch_compile_max_bs enable_layerwise_nvtx_marker pre_warm_nccl
eplb_algorithm eplb_rebalance_num_iterations eplb_rebalance_layers_per_chunk expert_distribution_recorder_mode
expert_distribution_recorder_buffer_size enable_expert_distribution_metrics deepep_config deepep_v2_mode
mooncake_ib_device tbo_token_distribution_threshold offload_mode cpu_offload_gb
max_loaded_loras max_loras_per_batch lora_eviction_policy max_lora_chunk_size
radix_eviction_policy enable_page_major_kv_layout enable_unified_memory radix_cache_backend enable_hierarchical_cache
enable_hicache hicache_ratio hicache_size hicache_write_policy hicache_io_backend hicache_mem_layout
hicache_storage_backend hicache_storage_prefetch_policy hicache_storage_backend_extra_config enable_lmcache
enable_flexkv enable_multimodal mm_attention_backend load_format model_loader_extra_config trust_remote_code
context_length is_embedding revision modelopt_checkpoint_restore_path modelopt_checkpoint_save_path
modelopt_export_path startup_weight_load_mode custom_weight_loader weight_loader_disable_mmap
weight_loader_prefetch_checkpoints download_dir model_checksum delete_ckpt_after_loading decrypted_config_file
remote_instance_weight_loader_backend remote_instance_weight_loader_start_seed_via_transfer_engine
remote_instance_weight_loader_seed_instance_ip engine_info_bootstrap_port checkpoint_engine_wait_weights_before_ready
weight_cache_mode weight_cache_socket log_level log_level_http log_requests log_requests_level log_requests_format
log_requests_target crash_dump_folder show_time_cost enable_metrics enable_mfu_metrics
enable_metrics_for_all_schedulers decode_log_interval enable_request_time_stats_logging kv_events_config enable_trace
otlp_traces_endpoint export_metrics_to_file export_metrics_to_file_dir kv_canary debug_tensor_dump_output_folder
debug_tensor_dump_layers debug_tensor_dump_input_file nccl_port dist_timeout dist_init_addr nccl_init_addr node_rank
pp_max_micro_batch_size pp_async_batch_depth load_balance_method
enable_dp_attention_local_control_broadcast enable_tp_lm_head_all_to_all disable_attn_tp_gather enable_p2p_check
mem_fraction_static max_running_requests max_queued_requests max_total_tokens prefill_decode_interval
enable_dynamic_chunking max_prefill_tokens prefill_max_requests schedule_policy enable_priority_scheduling
schedule_conservativeness page_size swa_full_tokens_ratio disable_hybrid_swa_memory disable_overlap_schedule
scheduler_recv_interval max_mamba_cache_size mamba_full_memory_ratio enable_prefill_delayer tokenizer_path
tokenizer_mode tokenizer_backend tokenizer_worker_num detokenizer_worker_num skip_tokenizer_init host port
fastapi_root_path grpc_mode grpc_port skip_server_warmup warmups enable_http2 ssl_keyfile ssl_certfile ssl_ca_certs
api_key admin_api_key served_model_name weight_version chat_template completion_template file_storage_path
enable_cache_report reasoning_parser tool_call_parser tool_server allow_auto_truncate
stream_interval batch_notify_size incremental_streaming_output enable_dynamic_batch_tokenizer
enable_tokenizer_batch_encode disable_tokenizer_batch_decode constrained_json_whitespace_pattern
speculative_draft_model_revision speculative_token_map speculative_ngram_min_bfs_breadth
speculative_ngram_max_bfs_breadth triton_attention SGLANG_HEALTH_CHECK_TIMEOUT
SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION SGLANG_USE_MODELSCOPE SGLANG_DISABLE_TP_MEMORY_INBALANCE_CHECK
SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK
SGLANG_TORCH_PROFILER_DIR SGLANG_WARMUP_TIMEOUT SGLANG_CACHE_DIR SGLANG_JIT_CACHE_DIR SGLANG_DG_CACHE_DIR
SGLANG_LOG_MS SGLANG_PORT SGLANG_IS_IN_CI SGLANG_JIT_DEEPGEMM_PRECOMPILE SGLANG_SET_CPU_AFFINITY
SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK SGLANG_VLM_CACHE_SIZE_MB SGLANG_BATCH_TOKENIZER_OUTPUTS
mlx_enable_sampling decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints decoupled_spec_rank
disaggregation_decode_retraction_backup disaggregation_decode_extra_slots disaggregation_decode_polling_interval
enable_pd_role_switch optimistic_prefill_attempts encoder_bootstrap_port encoder_register_urls
enable_adaptive_dispatch_to_encoder disaggregation_decode_host_receive_threshold watermark_key watermark_key_b
watermark_context_window watermark_mixing_probability watermark_max_probability watermark_default_enabled
watermark_enforce_all return_hidden_states_mode enable_return_aux_hidden_states aux_hidden_state_capture
return_aux_hidden_state_layer_ids enable_encoder_swa_bounded_replay enable_decoder_swa_bounded_replay
sampling_mask_max_tokens enable_precise_embedding_interpolation mamba_max_states_per_path mamba_radix_cache_strategy
uses_mamba_radix_cache mamba_track_interval int8_mamba_ckpt_size linear_replayssm_cache_len
cuda_graph_max_seq_len_prefill cuda_graph_prefill_max_context enable_torch_compile_debug_mode
disable_aiter_allreduce_fusion_in_prefill disable_aiter_allreduce_fusion_in_decode fuseep_mode
eplb_min_rebalancing_utilization_threshold expert_balancedness_report_mode enable_elastic_expert_backup ep_join_mode
elastic_ep_scale_timeout paged_experts_num_resident kt_method kt_cpuinfer kt_threadpool_count kt_num_gpu_experts
kt_max_deferred_experts_per_token ple_offload_embedding ple_offload_backend ple_offload_dir dllm_algorithm_config
dllm_fdfo enable_lora_overlap_loading lora_strict_loading lora_drain_wait_threshold radix_eviction_policy_config
enable_session_radix_cache hicache_host_memory_mode hicache_host_memory_fraction
hicache_storage_prefetch_retry_poll_interval hicache_storage_prefetch_retry_max_attempts
enable_unified_cache_external_linker unified_cache_external_linker_backend unified_cache_external_linker_config
enable_linker_mla_dedup hisparse_config lmcache_config_file flexkv_config_file enable_broadcast_mm_inputs_process
enable_prefix_mm_cache mm_enable_dp_encoder mm_process_config mm_processor_worker_num mm_io_worker_num
media_url_max_file_size_mb mm_preprocess_cache_size_mb trust_mm_content_hashes limit_mm_data_per_request
enable_mm_global_cache image_processor_backend mm_global_cache_backend disable_fast_image_processor
mm_feature_transport weight_loader_prefetch_num_threads weight_loader_drop_cache_after_load
remote_instance_weight_loader_seed_instance_service_port remote_instance_weight_loader_send_weights_group_ports
modelexpress_config decrypted_draft_config_file weight_cache_timeout uvicorn_access_log_exclude_prefixes
smg_http_sidecar_port load_snapshot_publish_interval tokenizer_metrics_custom_labels_header
tokenizer_metrics_allowed_custom_labels extra_metric_labels bucket_time_to_first_token bucket_inter_token_latency
bucket_e2e_request_latency prompt_tokens_buckets generation_tokens_buckets gc_warning_threshold_secs
load_publish_endpoint enable_forward_pass_metrics forward_pass_metrics_worker_id forward_pass_metrics_ipc_name
trace_modules otlp_service_name stat_loggers kv_canary_real_data kv_canary_sweep_interval msprobe_dump_config
gated_launch_port enable_cp_tp_group_sharing enable_dsa_cache_layer_split ep_join_rank_offset elastic_ep_initial_size
max_ep_size prefill_decode_interval_min_bs disable_priority_preemption default_priority_value
abort_on_priority_when_disabled schedule_low_priority_values_first priority_scheduling_preemption_threshold
retraction_policy c128_page_size swa_prefix_tails prefill_only_disable_kv_cache prefill_delayer_max_delay_passes
prefill_delayer_token_usage_low_watermark prefill_delayer_forward_passes_buckets prefill_delayer_wait_seconds_buckets
prefill_delayer_queue_min_ratio prefill_delayer_max_delay_ms min_free_slots_delay enable_response_store
enable_http_worker_reuseport smg_grpc_mode grpc_response_timeout_secs grpc_worker_threads sidecar sidecar_args
http2_max_concurrent_streams http2_initial_connection_window_size ssl_keyfile_password enable_ssl_refresh
trust_request_chat_template hf_chat_template_name return_input_ids return_output_ids default_chat_template_kwargs
strip_thinking_cache enable_strict_thinking asr_max_buffer_seconds asr_max_concurrent_sessions
stream_response_default_include_usage enable_streaming_session constrained_json_disable_any_whitespace
constrained_json_max_whitespace_cnt dynamic_batch_tokenizer_batch_size dynamic_batch_tokenizer_batch_timeout
speculative_boundary_reduction speculative_draft_load_format speculative_dflash_block_size
speculative_domino_candidate_pool_size speculative_dspark_block_size speculative_dspark_sps_table_path
speculative_dspark_confidence_sts_path speculative_dspark_align_verify_tokens_to_graph_tier
speculative_draft_attention_backend speculative_dsa_topk_backend speculative_draft_kv_cache_dtype
speculative_draft_window_size speculative_draft_sink_size speculative_moe_runner_backend speculative_moe_a2a_backend
speculative_enable_w4a4_mxfp4_megamoe speculative_draft_model_quantization speculative_adaptive_config spec_trace_dir
speculative_ngram_match_type speculative_ngram_max_trie_depth speculative_ngram_capacity
speculative_ngram_external_corpus_path speculative_ngram_external_sam_budget
speculative_ngram_external_corpus_max_tokens config allowed_media_domains mamba_cache_philox_rounds offload_group_size
offload_num_in_group offload_prefetch_step watermark_config grpc_http_sidecar_port context_bucket elastic_ep_join_mode
elastic_ep_join_rank_offset hierarchical_sparse_attention_extra_config
"""
IRRELEVANT = VARIABLES.union(_IRRELEVANT.split())
"""Options and variables that change no log-probability, or only which request meets which kernel."""
