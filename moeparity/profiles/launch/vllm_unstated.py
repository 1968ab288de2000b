"""Options of vLLM 0.33.0 that decide numerics and that no profile states, and options that change no log-probability.

Sorted by hand from vllm/engine/arg_utils.py (322 actions of `vllm serve`), vllm/config and vllm/envs.py.
"""

from __future__ import annotations

from moeparity.profiles.launch.architecture import GROUPED, LATENT, QUANTISED, STATE
from moeparity.profiles.launch.unstated import details, table

_SPECULATIVE = "speculative decoding: tokens are verified several at a time, in other shapes than a decode of one"
_QUANTISED = "weights, and activations where the method says so, are quantised: other values, kernels and scales"
_CONTEXT = "attention is cut along the sequence and its parts are merged by log-sum-exp"
_LORA = "an adapter is added to each GEMM's output, in the adapter's dtype"
_HYBRID = "the state of linear attention or Mamba: its dtype, rounding or kernel"
_BATCHES = "how prompts are cut into calls: kernels and splits are chosen by the shape of a call"

_OF_STATE = """
mamba_backend mamba_ssu_algorithm mamba_cache_dtype mamba_ssm_cache_dtype enable_mamba_cache_stochastic_rounding
use_replayssm gdn_prefill_backend kda_prefill_backend kda_decode_backend
"""
_OF_QUANTISED = """
VLLM_USE_DEEP_GEMM VLLM_MOE_USE_DEEP_GEMM VLLM_USE_DEEP_GEMM_E8M0 VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER
VLLM_MARLIN_USE_ATOMIC_ADD VLLM_MARLIN_INPUT_DTYPE VLLM_USE_TRITON_AWQ VLLM_USE_FLASHINFER_MOE_INT4
VLLM_HUMMING_INPUT_QUANT_CONFIG VLLM_HUMMING_USE_F16_ACCUM
"""
"""Variables that decide nothing for weights in 16 or 32 bits."""

ARGUMENTS = table(
    {
        "quantization q": _QUANTISED,
        "quantization_config": _QUANTISED,
        "kv_cache_dtype_skip_layers": "layers whose keys and values keep their dtype",
        "calculate_kv_scales": "scales of a quantised cache of keys and values, from the first batch",
        "speculative_config sc": _SPECULATIVE,
        "spec_method": _SPECULATIVE,
        "spec_model": _SPECULATIVE,
        "spec_tokens": _SPECULATIVE,
        "decode_context_parallel_size dcp = 1": _CONTEXT,
        "prefill_context_parallel_size pcp = 1": _CONTEXT,
        "dcp_comm_backend": _CONTEXT,
        "dcp_q_replicate": "which GEMM makes a query under decode context parallelism",
        "enable_hc_sp": "a model's own sequence parallelism: sums are scattered by tokens",
        "enable_eplb": "replicas of experts: which rank computes a row, and so which partial sum holds it",
        "eplb_config": "replicas of experts: which rank computes a row, and so which partial sum holds it",
        "enable_elastic_ep": "the number of expert-parallel ranks changes while the server runs",
        "enable_dbo": "a batch is run in two halves: kernels are chosen by the smaller shapes",
        "ubatch_size = 1": "a batch is run in parts: kernels are chosen by the smaller shapes",
        "enable_lora": _LORA,
        "lora_dtype": _LORA,
        "default_mm_loras": _LORA,
        "enable_mixed_moe_lora_format": _LORA,
        "enable_moe_shared_loras": _LORA,
        "linear_backend": "the kernels of linear layers",
        "kernel_config": "the kernels of norms, linear layers and experts",
        "ir_op_priority": "which implementation of norms and other ops runs",
        "attention_config ac": "the attention backend and its splits of keys",
        "monokernel": "decode layers run in one kernel of the model's own",
        "model_impl = vllm": "whose modelling code runs: vLLM's own, or transformers'",
        "model_class_overrides": "whose modelling code runs",
        "disable_sliding_window": "every layer attends to all tokens, where the model has a sliding window",
        "logits_processors": "a processor of yours changes logits before the sampler",
        "performance_mode = balanced": "kernels are chosen for latency or throughput",
        "kv_sharing_fast_prefill": "prefill skips layers whose keys and values are shared",
        "mamba_backend": _HYBRID,
        "mamba_ssu_algorithm": _HYBRID,
        "mamba_cache_dtype": _HYBRID,
        "mamba_ssm_cache_dtype": _HYBRID,
        "enable_mamba_cache_stochastic_rounding": _HYBRID,
        "use_replayssm": _HYBRID,
        "gdn_prefill_backend": _HYBRID,
        "kda_prefill_backend": _HYBRID,
        "kda_decode_backend": _HYBRID,
        "sparse_indexer_topk_backend": "how ties between the indexer's top-k tokens are broken",
        "generation_config ! vllm": (
            "requests that name no temperature, top-p or top-k take those of generation_config.json, the model's own "
            "where nothing is set, and processed log-probabilities are of what is sampled from"
        ),
        "hf_config_path": "config.json is another one's",
        "worker_cls = auto": "a worker of one's own, which may run what it likes",
        "override_generation_config": "the sampler's temperature, top-p and top-k, which processed_logprobs include",
        "diffusion_config dc": "a diffusion model: tokens are not made left to right",
        "engram_config": "how n-gram embeddings are stored and cut",
        "additional_config": "options of a platform that are not read",
        "rope_scaling": "the rotary embedding's angles",
        "rope_theta": "the rotary embedding's angles",
        "enable_prompt_embeds": "prompts may be embeddings, which no token names",
        "enable_chunked_prefill ! false": f"chunked prefill: {_BATCHES}",
        "enable_prefix_caching ! false": "prefix caching: keys and values of a shared prefix come from another call",
        "cudagraph_capture_sizes ! false": "CUDA graphs: batches are padded to captured sizes",
    },
    concerns=dict.fromkeys(_OF_STATE.split(), STATE),
) + details("lora_modules max_lora_rank lora_target_modules fully_sharded_loras", "of the adapters of enable_lora")
"""Options of `vllm serve`."""

ENVIRONMENT = table(
    {
        "VLLM_FLOAT32_MATMUL_PRECISION = highest ieee": "fp32 GEMMs run in TF32",
        "VLLM_ALLREDUCE_USE_SYMM_MEM unless 1 true": "which all-reduce takes messages above the custom kernel's limit",
        "VLLM_USE_NCCL_SYMM_MEM": "NCCL's symmetric-memory kernels, which add in fp32",
        "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC": "FlashInfer's all-reduce over PCIe",
        "VLLM_DISABLE_PYNCCL": "whose NCCL adds up the ranks",
        "VLLM_USE_DEEP_GEMM unless 1 true": "fp8 GEMMs are not DeepGEMM's",
        "VLLM_MOE_USE_DEEP_GEMM unless 1 true": "fp8 experts are not DeepGEMM's",
        "VLLM_USE_DEEP_GEMM_E8M0 unless 1 true": "scales of fp8 GEMMs are powers of two, or not",
        "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER": "fp8 GEMMs are FlashInfer's",
        "VLLM_MARLIN_USE_ATOMIC_ADD": "Marlin adds with atomics: in the order of arrival",
        "VLLM_MARLIN_INPUT_DTYPE": "activations of Marlin's GEMMs are quantised",
        "VLLM_USE_FUSED_MOE_GROUPED_TOPK unless 1 true": "grouped routers are torch's, not the kernel",
        "VLLM_MLA_DISABLE": "latent attention runs expanded in decode too",
        "VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE unless 1 true": "Inductor's choice of kernels",
        "VLLM_ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING unless 1 true": "Inductor's choice of kernels",
        "VLLM_DISABLED_KERNELS": "kernels that are not taken",
        "VLLM_USE_OINK_OPS": "norms by another library",
        "VLLM_USE_HW_AGNOSTIC": "kernels that run on any hardware",
        "VLLM_ENABLE_HPC_OPS": "kernels by another library",
        "VLLM_FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE": "rows travel home in fewer bits",
        "VLLM_DEEPEPLL_NVFP4_DISPATCH": "rows travel to the experts in NVFP4",
        "VLLM_DEEPEP_V2_ALLOW_MULTIPLE_REDUCTION": "in how many steps DeepEP adds a token's rows",
        "VLLM_USE_TRITON_AWQ": "whose AWQ kernels run",
        "VLLM_USE_FLASHINFER_MOE_INT4": "experts in int4",
        "VLLM_HUMMING_ONLINE_QUANT_CONFIG": _QUANTISED,
        "VLLM_HUMMING_INPUT_QUANT_CONFIG": _QUANTISED,
        "VLLM_HUMMING_USE_F16_ACCUM": "GEMMs accumulate in fp16",
        "VLLM_GDN_DECODE_KERNEL": _HYBRID,
        "VLLM_ENABLE_FLA_PACKED_RECURRENT_DECODE": _HYBRID,
        "VLLM_ATTENTION_BACKEND": "an attention backend by the environment, which 0.33.0 no longer reads",
        "VLLM_USE_FLASHINFER_MOE_FP16": "experts by FlashInfer, which 0.33.0 chooses with --moe-backend",
        "VLLM_TRITON_FORCE_FIRST_CONFIG": "Triton's kernels are not tuned",
        "VLLM_TUNED_CONFIG_FOLDER": "tile sizes of the Triton experts",
        "VLLM_ENABLE_GEMM_RS": "GEMM and reduce-scatter in one kernel",
        "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "all-reduces of quantised values, on ROCm",
    },
    environment=True,
    concerns={
        **dict.fromkeys(_OF_QUANTISED.split(), QUANTISED),
        **dict.fromkeys(("VLLM_GDN_DECODE_KERNEL", "VLLM_ENABLE_FLA_PACKED_RECURRENT_DECODE"), STATE),
        "VLLM_MLA_DISABLE": LATENT,
        "VLLM_USE_FUSED_MOE_GROUPED_TOPK": GROUPED,
    },
)
"""Environment variables of vLLM."""

_IRRELEVANT = """
model model_tag runner convert tokenizer tokenizer_mode trust_remote_code seed config config_format
allowed_local_media_path allowed_media_domains revision code_revision tokenizer_revision max_model_len
allow_deprecated_quantization enable_return_routed_experts return_sampling_mask max_logprobs use_fp64_gumbel
enable_trace_replay disable_cascade_attn skip_tokenizer_init served_model_name hf_token pooler_config
enable_sleep_mode sleep_mode_backend sleep_mode_offload_cudagraph sleep_preserve_parameter_names
enable_cumem_allocator enable_nccl_comm_suspend io_processor_plugin renderer_num_workers load_format download_dir
safetensors_load_strategy safetensors_prefetch_num_threads safetensors_prefetch_block_size model_loader_extra_config
ignore_patterns use_tqdm_on_load pt_load_map_location reasoning_parser reasoning_parser_plugin
distributed_executor_backend master_addr master_port node_rank r headless
distributed_timeout_seconds cpu_distributed_timeout_seconds numa_bind numa_bind_nodes numa_bind_cpus device_ids
dcp_kv_cache_interleave_size cp_kv_cache_interleave_size data_parallel_rank dpn data_parallel_start_rank dpr
data_parallel_size_local dpl data_parallel_address dpa data_parallel_rpc_port dpp data_parallel_backend dpb
data_parallel_hybrid_lb dph data_parallel_external_lb dpe data_parallel_multi_port_external_lb dpm
enable_batch_sharded_sampling enable_ep_weight_filter enable_shm_tensor_arena elastic_ep_max_dp_size
dbo_decode_token_threshold dp_sync_interval dbo_prefill_token_threshold disable_nccl_for_dp_synchronization
expert_placement_strategy max_parallel_loading_workers ray_workers_use_nsight worker_extension_cls
enable_fault_tolerance fault_tolerance_config block_size gpu_memory_utilization device_memory_utilization
kv_cache_memory_bytes num_gpu_blocks_override prefix_caching_hash_algo prefix_cache_retention_interval
swa_bounded_replay mamba_block_size prefix_match_unit mamba_cache_mode enable_mamba_shared_prefix_checkpoint
replayssm_buffer_len mamba_cache_philox_rounds kv_offloading_size kv_offloading_backend offload_backend cpu_offload_gb
cpu_offload_params offload_group_size offload_num_in_group offload_prefetch_step offload_params swap_space
language_model_only limit_mm_per_prompt enable_mm_embeds media_io_kwargs mm_processor_kwargs mm_processor_cache_gb
mm_processor_cache_type mm_hasher_algorithm mm_shm_cache_max_object_size_mb mm_encoder_only mm_encoder_tp_mode
mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path
mm_encoder_fp8_scale_save_margin interleave_mm_strings skip_mm_profiling video_pruning_rate video_pruning_method
mm_tensor_ipc mm_processor_device mm_ipc_gpu_memory_gb mm_device_do_normalize max_loras max_cpu_loras
specialize_active_lora enable_tower_connector_lora
max_lora_cls_labels logging_config log_level log_config_file show_hidden_metrics_for_version otlp_traces_endpoint
collect_detailed_traces per_request_spec_decode_metrics kv_cache_metrics kv_cache_metrics_sample
custom_histogram_buckets cudagraph_metrics enable_layerwise_nvtx_tracing enable_mfu_metrics
enable_logging_iteration_details jit_monitor_mode jit_monitor_verbose max_num_batched_tokens max_num_scheduled_tokens
max_num_seqs max_num_active_seqs max_num_queued_reqs max_num_queued_tokens long_prefill_token_threshold
long_prefill_token_threshold_adaptive scheduling_policy disable_chunked_mm_input scheduler_cls
scheduler_reserve_full_isl watermark prefill_schedule_interval disable_hybrid_kv_cache_manager async_scheduling
stream_interval max_cudagraph_capture_size enable_flashinfer_autotune watermark_config kv_transfer_config
kv_events_config ec_transfer_config ec_manager_config reasoning_config structured_outputs_config aux_output_config
profiler_config watchdog_config weight_transfer_config disable_log_stats aggregate_engine_logging
fail_on_environ_validation shutdown_timeout enable_log_requests disable_log_requests host port uds
api_key api_server_count allow_credentials allowed_origins allowed_methods allowed_headers chat_template
chat_template_content_format response_role ssl_keyfile ssl_certfile ssl_ca_certs root_path middleware
return_tokens_as_token_ids tool_call_parser enable_auto_tool_choice tool_parser_plugin uvicorn_log_level
disable_uvicorn_access_log enable_prompt_tokens_details enable_server_load_tracking enable_force_include_usage
max_log_len enable_request_id_headers disable_frontend_multiprocessing grpc trust_request_chat_template
trust_request_mm_kwargs default_chat_template_kwargs reasoning_effort_map exclude_tools_when_tool_choice_none
tool_strict_level tool_server enable_per_request_metrics sse_keep_alive_interval enable_tokenizer_info_endpoint
enable_log_outputs enable_log_deltas cohere_is_reasoning_model cohere_format anthropic_disabled_thinking_effort
log_error_stack tokens_only enable_scale_out fingerprint_mode fingerprint_value grpc_port
data_parallel_supervisor_port dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s
dp_supervisor_probe_failure_threshold disable_access_log_for_endpoints enable_ssl_refresh ssl_cert_reqs ssl_ciphers
disable_fastapi_docs h11_max_incomplete_event_size h11_max_header_count enable_offline_docs
enable_flash_late_interaction asc
"""
_VARIABLES = """
CUDA_VISIBLE_DEVICES CUDA_DEVICE_MAX_CONNECTIONS PYTHONUNBUFFERED PYTHONPATH HF_HOME HF_TOKEN HF_HUB_OFFLINE
HF_HUB_ENABLE_HF_TRANSFER HF_ENDPOINT TOKENIZERS_PARALLELISM OMP_NUM_THREADS WANDB_API_KEY WANDB_MODE NCCL_DEBUG
NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME NCCL_IB_DISABLE NCCL_IB_HCA NCCL_IB_GID_INDEX RAY_DEDUP_LOGS MASTER_ADDR
MASTER_PORT CUDA_HOME LD_LIBRARY_PATH PATH NO_PROXY HTTP_PROXY HTTPS_PROXY HYDRA_FULL_ERROR PYTORCH_CUDA_ALLOC_CONF
PYTORCH_ALLOC_CONF VLLM_HOST_IP VLLM_PORT VLLM_USE_MODELSCOPE VLLM_API_KEY VLLM_CACHE_ROOT VLLM_CONFIG_ROOT
VLLM_NO_USAGE_STATS VLLM_DO_NOT_TRACK VLLM_CONFIGURE_LOGGING VLLM_LOGGING_LEVEL VLLM_LOGGING_PREFIX
VLLM_LOGGING_CONFIG_PATH VLLM_LOG_STATS_INTERVAL VLLM_TRACE_FUNCTION VLLM_USE_FLASHINFER_SAMPLER
VLLM_WORKER_MULTIPROC_METHOD VLLM_ENGINE_READY_TIMEOUT_S VLLM_RPC_TIMEOUT VLLM_ALLOW_LONG_MAX_MODEL_LEN VLLM_PLUGINS
VLLM_ALLOW_RUNTIME_LORA_UPDATING VLLM_SKIP_P2P_CHECK VLLM_ENABLE_V1_MULTIPROCESSING VLLM_DISABLE_COMPILE_CACHE
VLLM_SERVER_DEV_MODE VLLM_DP_RANK VLLM_DP_SIZE VLLM_DP_MASTER_IP VLLM_DP_MASTER_PORT VLLM_ALLOW_INSECURE_SERIALIZATION
VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS VLLM_USE_V1 VLLM_MOE_SKIP_PADDING VLLM_HTTP_TIMEOUT_KEEP_ALIVE
VLLM_KEEP_ALIVE_ON_ENGINE_DEATH
"""
VARIABLES = frozenset(_VARIABLES.split())
"""Environment variables that change no log-probability, of both servers."""
IRRELEVANT = VARIABLES.union(_IRRELEVANT.split())
"""Options and variables that change no log-probability, or only which request meets which kernel.

Limits of a batch (max_num_seqs, max_num_batched_tokens) change its shape:
what kernels make of that stands under chunked prefill. The sampler draws, after log-probabilities are made.
"""
