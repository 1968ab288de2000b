"""vLLM and SGLang as they are launched: options read from vLLM 0.33.0 and sglang 0.5.23."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from moeparity.profiles.launch import (
    server_options,
    server_rules,
    server_stages,
)
from moeparity.profiles.launch.knowledge import listed, options_file, unstated
from moeparity.profiles.launch.options import Implied, Option, Program, count, switch, word, words
from moeparity.profiles.launch.reading.grammar import of_parser
from moeparity.profiles.launch.shared import (
    COMPILED,
    DTYPES,
    EAGER,
    ORIGINAL,
    batch_invariant,
    custom_all_reduce,
    dtype,
    expert_ranks,
    fp32_head,
    layers_of_stages,
    logprobs_mode,
    stages,
    tensor_ranks,
    vllm_tensor_ranks,
)

_MOE = (
    *("aiter_mega_moe", "aiter_triton_mxfp4_bf16", "aiter_triton_mxfp4_mxfp4", "b12x", "flashinfer_b12x", "flydsl"),
    *("flashinfer_moe_ep_cutedsl", "flashinfer_moe_ep_mega_deep_gemm", "rdna3"),
    *("auto", "triton", "batched_triton", "deep_gemm", "deep_gemm_mega_moe", "cutlass", "flashinfer_trtllm"),
    *("flashinfer_cutlass", "flashinfer_cutedsl", "marlin", "humming", "triton_unfused", "aiter", "hpc", "emulation"),
)
_ALL_TO_ALL = (
    *("allgather_reducescatter", "naive", "pplx", "deepep_high_throughput", "deepep_low_latency", "deepep_v2"),
    *("mori_high_throughput", "mori_low_latency", "moonep", "nixl_ep", "flashinfer_all2allv", "passthrough"),
    *("flashinfer_nvlink_two_sided", "flashinfer_nvlink_one_sided"),
)
_TRITON = Implied(says="Triton's experts")
_DEEPEP_V2 = Implied(says="DeepEP v2", overlay="deepep-elastic")


_VLLM_EXPERTS = {
    "auto": Implied(says="Triton's experts on an H100, FlashInfer's first on a B200"),
    "triton": _TRITON,
    "flashinfer_cutlass": Implied(
        says="CUTLASS experts, whose finalize may be fused", overlay="vllm-flashinfer-cutlass"
    ),
}
_VLLM_ALL_TO_ALL = {
    "allgather_reducescatter": Implied(says="with expert parallel: locally combined rows, reduce-scattered"),
    "deepep_high_throughput": Implied(says="DeepEP's normal mode", overlay="deepep-normal"),
    "deepep_v2": _DEEPEP_V2,
    "deepep_low_latency": Implied(says="DeepEP's low-latency mode", overlay="deepep-low-latency"),
}
_VLLM_ATTENTION = {
    "auto": Implied(says="FlashAttention 3 on an H100"),
    "FLASH_ATTN": Implied(says="FlashAttention"),
    "TRITON_ATTN": Implied(says="Triton's attention", overlay="vllm-triton-attention"),
}
_VLLM_FLASHINFER_ALL_REDUCE = {
    "auto": Implied(says="FlashInfer's mnnvl with NVSwitch multicast, else vllm-allreduce-norm-trtllm"),
    "trtllm": Implied(says="vllm-allreduce-norm-trtllm in place of vllm-allreduce-norm"),
}
_VLLM_ARGUMENTS = (
    vllm_tensor_ranks("tensor_parallel_size", "tp"),
    stages("pipeline_parallel_size", "pp", division="vllm"),
    count("data_parallel_size", "dp", implies=server_options.replicas),
    switch(
        "enable_expert_parallel",
        "ep",
        on=Implied(says="experts lie on the ranks as wholes"),
        off=Implied(says="experts are cut like everything else"),
    ),
    word("dtype", default="auto", implies=dtype, choices=DTYPES),
    switch("enforce_eager", on=EAGER, off=COMPILED),
    word("optimization_level", "O", default="2", implies=server_options.optimised, choices=("0", "1", "2", "3")),
    word("moe_backend", default="auto", implies=words(_VLLM_EXPERTS), choices=_MOE),
    word("all2all_backend", default="allgather_reducescatter", implies=words(_VLLM_ALL_TO_ALL), choices=_ALL_TO_ALL),
    word("attention_backend", default="auto", implies=words(_VLLM_ATTENTION)),
    server_options.cache_dtype("vllm-fp8-kv", ("fp8", "fp8_e4m3")),
    server_options.quantization({"fp8_per_block": "vllm-fp8-blocks", "fp8_per_channel": "vllm-fp8-channels"}),
    Option(names=("hf_overrides",), kind="mapping", default={}, implies=server_options.overrides),
    Option(
        names=("compilation_config", "cc"),
        kind="mapping",
        default={},
        implies=lambda _: Implied(says="as its optimization level has it, but for what is set"),
        quiet=True,
        shorthand="mode",
    ),
    count("nnodes", "n", implies=server_options.nodes, quiet=True),
    custom_all_reduce("vLLM", " where FlashInfer's does not apply"),
    logprobs_mode("logprobs_mode", default="raw_logprobs"),
    Option(names=("device",), kind="any", default="auto", implies=server_options.device, quiet=True),
)
_VLLM_ENVIRONMENT = (
    Option(
        names=("VLLM_USE_BREAKABLE_CUDAGRAPH",),
        kind="any",
        default="auto",
        implies=server_options.breakable,
        environment=True,
        quiet=True,
    ),
    layers_of_stages("VLLM_PP_LAYER_PARTITION"),
    batch_invariant("VLLM_BATCH_INVARIANT", "vllm-batch-invariant", environment=True),
    switch(
        "VLLM_USE_V2_MODEL_RUNNER",
        default=True,
        on=Implied(says="the V2 model runner, where it can: a kernel of its own makes log-probabilities"),
        off=Implied(says="the V1 model runner: torch's log-softmax", sets={"log_probs:form": "log_softmax"}),
        environment=True,
    ),
    switch(
        "VLLM_ALLREDUCE_USE_FLASHINFER",
        default=True,
        on=Implied(says="FlashInfer's all-reduce where it applies"),
        off=Implied(says="vLLM's own all-reduce, by the bytes of a call"),
        environment=True,
    ),
    word(
        "VLLM_FLASHINFER_ALLREDUCE_BACKEND",
        default="auto",
        implies=words(_VLLM_FLASHINFER_ALL_REDUCE, "FlashInfer's {}"),
        choices=("auto", "trtllm", "mnnvl"),
        environment=True,
    ),
)


def _arguments(
    options: Iterable[Option], irrelevant: Iterable[str], elsewhere: frozenset[str]
) -> Iterator[tuple[str, ...]]:
    """What a command line may hold: names of one option together, but for those that stand `elsewhere`."""
    for names in (*(o.names for o in options if not o.environment), *((name,) for name in sorted(irrelevant))):
        first_name, *others = names
        if first_name == first_name.lower() and first_name not in elsewhere:
            yield first_name, *(name for name in others if name not in elsewhere)


VLLM = Program(
    name="vllm",
    engine="vLLM",
    version="0.33.0",
    source="vllm/engine/arg_utils.py, vllm/config, vllm/envs.py",
    start={"server": "vllm"},
    options=(*_VLLM_ARGUMENTS, *_VLLM_ENVIRONMENT, *unstated("vllm")),
    model=("model", "model_tag"),
    rules=(
        *server_rules.OF_VLLM,
        server_rules.stored_quantised("server"),
    ),
    irrelevant=listed("vllm", "irrelevant") | listed("shared", "variables"),
    inactive=lambda settings: server_rules.unsampled(
        settings, "generation_config", str(settings["logprobs_mode"]).startswith("raw")
    ),
    grammar=of_parser(
        _arguments(
            (*_VLLM_ARGUMENTS, *unstated("vllm", "arguments")),
            listed("vllm", "irrelevant"),
            listed("vllm", "elsewhere"),
        ),
        switches=listed("vllm", "switches"),
        toggles=listed("vllm", "toggles"),
        several=listed("vllm", "several"),
        short=listed("vllm", "short"),
        inverse=True,
        dotted=True,
        positional="model",
        over=True,
    ),
)


VLLM_OF_TRL = replace(
    VLLM,
    engine="vLLM, by trl vllm-serve",
    packages=("trl",),
    inactive=lambda settings: server_rules.unsampled(settings, "generation_config", raw=True),
    source=f"{VLLM.source}; TRL 1.16.0, trl/scripts/vllm_serve.py build_command",
    options=tuple(
        replace(option, default="processed_logprobs") if option.name == "logprobs_mode" else option
        for option in VLLM.options
    ),
    grammar=None,
)
"""TRL hands its options on to `vllm serve`, with log-probabilities of what is sampled from."""


_SGLANG_ATTENTION = {
    "auto": Implied(says="fa3 on an H100"),
    "fa3": Implied(says="FlashAttention 3"),
    "triton": Implied(says="Triton's attention", overlay="sglang-triton-attention"),
}
_SGLANG_EXPERTS = {"auto": Implied(says="Triton's experts on an H100"), "triton": _TRITON}
_SGLANG_ALL_TO_ALL = {
    "none": Implied(says="no all-to-all"),
    "deepep": Implied(says="DeepEP, normal in prefill", overlay="deepep-normal"),
    "deepep_v2": _DEEPEP_V2,
}
_SGLANG_DEEPEP = {
    "auto": Implied(says="with DeepEP: low latency in decode, normal in prefill"),
    "normal": Implied(says="with DeepEP: its normal mode"),
    "low_latency": Implied(says="with DeepEP: its low-latency mode", overlay="deepep-low-latency"),
}
_SGLANG_FUSED = Implied(says="all-reduce, add and norm in one kernel, on SM90", overlay="sglang-allreduce-norm")
_SGLANG_FUSED_ALL_REDUCE = {
    "none": Implied(says="as the model has it"),
    "auto": _SGLANG_FUSED,
    "trtllm": _SGLANG_FUSED,
}


_SGLANG_KERNELS = (
    tensor_ranks("tp_size", "tp", "tensor_parallel_size"),
    stages("pp_size", "pipeline_parallel_size", division="sglang"),
    layers_of_stages("SGLANG_PP_LAYER_PARTITION"),
    expert_ranks("ep_size", "ep", "expert_parallel_size"),
    count("dp_size", "dp", "data_parallel_size", implies=server_options.groups, quiet=True),
    count("attn_dp_size", "attention_data_parallel_size", implies=server_options.groups, quiet=True),
    count("nnodes", implies=server_options.nodes, quiet=True),
    switch(
        "enable_dp_attention",
        on=Implied(says="attention is cut over tp / dp ranks"),
        off=Implied(says="attention is cut over all ranks"),
        quiet=True,
    ),
    word("dtype", default="auto", implies=dtype, choices=DTYPES),
    word("attention_backend", default="auto", implies=words(_SGLANG_ATTENTION)),
    server_options.cache_dtype("sglang-fp8-kv", ("fp8_e4m3",)),
    word("moe_runner_backend", default="auto", implies=words(_SGLANG_EXPERTS)),
    word("moe_a2a_backend", default="none", implies=words(_SGLANG_ALL_TO_ALL)),
    word("deepep_mode", default="auto", implies=words(_SGLANG_DEEPEP, "{}"), choices=tuple(_SGLANG_DEEPEP)),
)
_SGLANG_MODES = (
    batch_invariant("enable_deterministic_inference", "sglang-deterministic"),
    word("rl_on_policy_target", default="none", implies=server_options.on_policy),
    switch(
        "disable_shared_experts_fusion",
        on=Implied(says="shared experts are added apart, as the profile has it"),
        off=Implied(says="as the model has it"),
        quiet=True,
    ),
    switch(
        "enable_fp32_lm_head",
        on=fp32_head("sglang-fp32-head"),
        off=Implied(says="logits in the model's dtype"),
    ),
    word(
        "flashinfer_allreduce_fusion_backend",
        default="none",
        implies=words(
            _SGLANG_FUSED_ALL_REDUCE,
            "all-reduce, add and norm in FlashInfer's {} kernel: set all_reduce:collective and rms_norm:order",
        ),
        choices=("none", "auto", "trtllm", "mnnvl", "cutedsl"),
    ),
    switch("enable_flashinfer_allreduce_fusion", on=_SGLANG_FUSED, off=Implied(says="as the model has it"), quiet=True),
    switch(
        "enforce_disable_flashinfer_allreduce_fusion",
        on=Implied(says="all-reduce and norm are separate kernels"),
        off=Implied(says="as the model has it"),
        quiet=True,
    ),
    custom_all_reduce("SGLang", ""),
    switch(
        ORIGINAL,
        on=Implied(says="log-probabilities of logits before the temperature"),
        off=Implied(says="log-probabilities of what is sampled from: set log_probs:temperature to the sampler's"),
        environment=True,
    ),
)
SGLANG = Program(
    name="sglang",
    engine="SGLang",
    version="0.5.23",
    source="sglang/srt/arg_groups",
    start={"server": "sglang"},
    options=(*_SGLANG_KERNELS, *_SGLANG_MODES, *unstated("sglang")),
    model=("model_path", "model"),
    rules=(
        *server_rules.OF_SGLANG,
        server_rules.stored_quantised("server"),
        server_stages.sglang_groups,
    ),
    irrelevant=listed("sglang", "irrelevant") | listed("shared", "variables"),
    inactive=lambda settings: {
        **server_rules.idle_of_sglang("")(settings),
        **server_rules.unsampled(settings, "sampling_defaults", settings[ORIGINAL] is True),
    },
    gone=options_file("sglang").gone,
    grammar=of_parser(
        (
            ("model_path", "model"),
            *_arguments(
                (*_SGLANG_KERNELS, *_SGLANG_MODES, *unstated("sglang", "arguments")),
                listed("sglang", "irrelevant") - {"model_path", "model"},
                listed("sglang", "elsewhere"),
            ),
        ),
        switches=listed("sglang", "switches"),
        toggles=listed("sglang", "toggles"),
        several=listed("sglang", "several", "several_gone"),
        underscores=False,
        positional="model_path",
    ),
)
