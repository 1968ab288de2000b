"""vLLM and SGLang as they are launched: options read from vLLM 0.33.0 and sglang 0.5.23."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.profiles.launch.options import DTYPES, Implied, Option, Program, count, dtype, ranks, switch, word, words

_MOE = (
    *("auto", "triton", "batched_triton", "deep_gemm", "deep_gemm_mega_moe", "cutlass", "flashinfer_trtllm"),
    *("flashinfer_cutlass", "flashinfer_cutedsl", "marlin", "humming", "triton_unfused", "aiter", "hpc", "emulation"),
)
_ALL_TO_ALL = (
    *("allgather_reducescatter", "naive", "pplx", "deepep_high_throughput", "deepep_low_latency", "deepep_v2"),
    *("mori_high_throughput", "mori_low_latency", "moonep", "nixl_ep", "flashinfer_all2allv", "passthrough"),
    *("flashinfer_nvlink_two_sided", "flashinfer_nvlink_one_sided"),
)
_EAGER = Implied(says="kernels in C in place of Inductor's", overlay="vllm-eager")
_COMPILED = Implied(says="compiled by Inductor where not enforced eager")
LOGPROBS_MODES = {
    "raw_logprobs": Implied(says="log-probabilities of logits before the temperature"),
    "processed_logprobs": Implied(
        says="log-probabilities of what is sampled from: set log_softmax:temperature to the sampler's"
    ),
    "raw_logits": Implied(says="logits in place of log-probabilities: set log_softmax:form unrounded"),
    "processed_logits": Implied(
        says="logits over the temperature in place of log-probabilities: set log_softmax:form unrounded, and "
        "log_softmax:temperature to the sampler's"
    ),
}
"""vLLM's logprobs_mode."""


def vllm_tensor(value: Any) -> Implied:
    """Tensor parallel in vLLM, where -O2 fuses the all-reduce with the norm."""
    if value == 1:
        return ranks("tensor")(value)
    return Implied(
        says=f"placement tensor {value}; vLLM then has all-reduce, add and norm in one kernel, for small messages",
        overlay="vllm-allreduce-norm",
        placement={"tensor": value},
    )


def _optimised(value: Any) -> Implied:
    return _EAGER if str(value) == "0" else _COMPILED


def overrides(value: Any) -> Implied:
    """What vLLM's hf_overrides say of the head."""
    head = value.get("head_dtype") if isinstance(value, Mapping) else None
    if head in ("float32", "float"):
        return Implied(says="logits in fp32", overlay="vllm-fp32-head")
    return Implied(says="logits in the model's dtype; other overrides are not looked at")


VLLM = Program(
    name="vllm",
    engine="vLLM",
    version="0.33.0",
    source="vllm/engine/arg_utils.py, vllm/config, vllm/envs.py",
    start={"server": "vllm"},
    options=(
        count("tensor_parallel_size", "tp", implies=vllm_tensor),
        switch(
            "enable_expert_parallel",
            "ep",
            on=Implied(says="experts lie on the ranks as wholes", placement={"expert": True}),
            off=Implied(says="experts are cut like everything else"),
        ),
        word("dtype", default="auto", implies=dtype, choices=DTYPES),
        switch("enforce_eager", on=_EAGER, off=_COMPILED),
        word("optimization_level", "O", default="2", implies=_optimised, choices=("0", "1", "2", "3")),
        word(
            "moe_backend",
            default="auto",
            implies=words(
                {
                    "auto": Implied(says="Triton's experts on an H100, FlashInfer's first on a B200"),
                    "triton": Implied(says="Triton's experts"),
                    "flashinfer_cutlass": Implied(
                        says="CUTLASS experts, whose finalize may be fused", overlay="vllm-flashinfer-cutlass"
                    ),
                },
                "no shipped profile speaks of {}",
            ),
            choices=_MOE,
        ),
        word(
            "all2all_backend",
            default="allgather_reducescatter",
            implies=words(
                {
                    "allgather_reducescatter": Implied(
                        says="with expert parallel: locally combined rows, reduce-scattered"
                    ),
                    "deepep_high_throughput": Implied(says="DeepEP's normal mode", overlay="deepep-normal"),
                    "deepep_v2": Implied(says="DeepEP v2", overlay="deepep-elastic"),
                    "deepep_low_latency": Implied(says="DeepEP's low-latency mode", overlay="deepep-low-latency"),
                },
                "no shipped profile speaks of {}",
            ),
            choices=_ALL_TO_ALL,
        ),
        word(
            "attention_backend",
            default="auto",
            implies=words(
                {
                    "auto": Implied(says="FlashAttention 3 on an H100"),
                    "FLASH_ATTN": Implied(says="FlashAttention"),
                },
                "no shipped profile speaks of {}",
            ),
        ),
        Option(names=("hf_overrides",), kind="mapping", default={}, implies=overrides),
        switch(
            "disable_custom_all_reduce",
            on=Implied(says="NCCL in place of vLLM's own all-reduce: state all_reduce:collective"),
            off=Implied(says="vLLM's own all-reduce where FlashInfer's does not apply"),
        ),
        word(
            "logprobs_mode",
            default="raw_logprobs",
            implies=words(LOGPROBS_MODES, "{}"),
            choices=tuple(LOGPROBS_MODES),
        ),
        switch(
            "VLLM_BATCH_INVARIANT",
            on=Implied(says="batch-invariant", profile="vllm-batch-invariant"),
            off=Implied(says="not batch-invariant"),
            environment=True,
        ),
        switch(
            "VLLM_USE_V2_MODEL_RUNNER",
            default=True,
            on=Implied(says="the V2 model runner, where it can: a kernel of its own makes log-probabilities"),
            off=Implied(says="the V1 model runner: set log_softmax:form log_softmax"),
            environment=True,
        ),
        switch(
            "VLLM_ALLREDUCE_USE_FLASHINFER",
            default=True,
            on=Implied(says="FlashInfer's all-reduce where it applies"),
            off=Implied(says="set all_reduce:collective vllm.custom"),
            environment=True,
        ),
        word(
            "VLLM_FLASHINFER_ALLREDUCE_BACKEND",
            default="auto",
            implies=words(
                {
                    "auto": Implied(says="FlashInfer's mnnvl with NVSwitch multicast, else vllm-allreduce-norm-trtllm"),
                    "trtllm": Implied(says="vllm-allreduce-norm-trtllm in place of vllm-allreduce-norm"),
                },
                "FlashInfer's {}",
            ),
            choices=("auto", "trtllm", "mnnvl"),
            environment=True,
        ),
    ),
)

_SGLANG_FUSED = Implied(says="all-reduce, add and norm in one kernel, on SM90", overlay="sglang-allreduce-norm")
_DEEPEP = {
    "auto": Implied(says="with DeepEP: low latency in decode, normal in prefill"),
    "normal": Implied(says="with DeepEP: its normal mode"),
    "low_latency": Implied(says="with DeepEP: its low-latency mode", overlay="deepep-low-latency"),
}

SGLANG = Program(
    name="sglang",
    engine="SGLang",
    version="0.5.23",
    source="sglang/srt/arg_groups",
    start={"server": "sglang"},
    options=(
        count("tp_size", "tp", "tensor_parallel_size", implies=ranks("tensor")),
        count("ep_size", "ep", "expert_parallel_size", implies=ranks("expert")),
        word("dtype", default="auto", implies=dtype, choices=DTYPES),
        word(
            "attention_backend",
            default="auto",
            implies=words(
                {"auto": Implied(says="fa3 on an H100"), "fa3": Implied(says="FlashAttention 3")},
                "no shipped profile speaks of {}",
            ),
        ),
        word(
            "moe_runner_backend",
            default="auto",
            implies=words(
                {"auto": Implied(says="Triton's experts on an H100"), "triton": Implied(says="Triton's experts")},
                "no shipped profile speaks of {}",
            ),
        ),
        word(
            "moe_a2a_backend",
            default="none",
            implies=words(
                {
                    "none": Implied(says="no all-to-all"),
                    "deepep": Implied(says="DeepEP, normal in prefill", overlay="deepep-normal"),
                    "deepep_v2": Implied(says="DeepEP v2", overlay="deepep-elastic"),
                },
                "no shipped profile speaks of {}",
            ),
        ),
        word("deepep_mode", default="auto", implies=words(_DEEPEP, "{}"), choices=tuple(_DEEPEP)),
        switch(
            "enable_deterministic_inference",
            on=Implied(says="batch-invariant", profile="sglang-deterministic"),
            off=Implied(says="not batch-invariant"),
        ),
        word(
            "rl_on_policy_target",
            default="none",
            implies=lambda value: (
                Implied(says="off")
                if str(value) in ("none", "None")
                else Implied(says=f"as {value} trains; deterministic too", profile="sglang-rl-on-policy")
            ),
        ),
        switch(
            "enable_fp32_lm_head",
            on=Implied(says="logits in fp32", overlay="sglang-fp32-head"),
            off=Implied(says="logits in the model's dtype"),
        ),
        word(
            "flashinfer_allreduce_fusion_backend",
            default="none",
            implies=words(
                {
                    "none": Implied(
                        says="all-reduce and norm in one kernel for the models that ask for it: sglang-allreduce-norm"
                    ),
                    "auto": _SGLANG_FUSED,
                    "trtllm": _SGLANG_FUSED,
                },
                "all-reduce, add and norm in FlashInfer's {} kernel: set all_reduce:collective and rms_norm:order",
            ),
            choices=("none", "auto", "trtllm", "mnnvl", "cutedsl"),
        ),
        switch(
            "disable_custom_all_reduce",
            on=Implied(says="NCCL in place of SGLang's own all-reduce: state all_reduce:collective"),
            off=Implied(says="SGLang's own all-reduce"),
        ),
        switch(
            "SGLANG_RETURN_ORIGINAL_LOGPROB",
            on=Implied(
                says="log-probabilities of logits before the temperature: set log_softmax:temperature 1 and, where not "
                "deterministic, log_softmax:form log_softmax"
            ),
            off=Implied(says="log-probabilities of what is sampled from: set log_softmax:temperature to the sampler's"),
            environment=True,
        ),
    ),
)
