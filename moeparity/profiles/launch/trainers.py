"""verl and NeMo-RL as launched, a trainer and a rollout each: read from verl 035682ed7d and NeMo-RL 7ea279abfb."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from moeparity.profiles.launch.megatron_config import overrides
from moeparity.profiles.launch.options import Implied, Option, Program, number, switch, word, words
from moeparity.profiles.launch.shared import dtype, expert_ranks, logprobs_mode, tensor_ranks, vllm_tensor_ranks

_MEGATRON = Implied(says="Megatron-LM", profile="megatron")
_FSDP = Implied(says="transformers' classes; flash_attention_2 and autocast are not stated", profile="verl-fsdp")
_STRATEGIES = {"megatron": _MEGATRON, "fsdp": _FSDP, "fsdp2": _FSDP}
_ROLLOUTS = {
    "vllm": Implied(says="vLLM", profile="vllm"),
    "sglang": Implied(says="SGLang", profile="sglang"),
    "hf": Implied(says="transformers", profile="hf-default"),
    "megatron": _MEGATRON,
    "trtllm": Implied(says="TensorRT-LLM", profile="trtllm"),
}


def temperature(value: Any) -> Implied:
    """The sampler's temperature, which trainers divide by too; a greedy sampler divides by none."""
    if value in (0, 1):
        return Implied(says="logits are not divided")
    return Implied(says=f"logits over it on both sides: set log_softmax:temperature {value}")


def _verls_temperature(value: Any) -> Implied:
    """As every trainer's, but for FSDP's rounding."""
    implied, nearest = temperature(value), _bf16(value)
    if value in (0, nearest):
        return implied
    return Implied(says=f"{implied.says}, and {nearest} with FSDP, which rounds it to bf16")


def _bf16(value: float) -> float:
    """The nearest bf16, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", nearest))[0])


def _rollout_engine(name: str, engines: tuple[str, ...]) -> Option:
    return word(name, default="vllm", implies=words(_ROLLOUTS, "{}"), choices=engines, role="rollout")


def _enforce_eager(name: str) -> Option:
    return switch(
        name,
        on=Implied(says="with vLLM: kernels in C in place of Inductor's", overlay="vllm-eager"),
        off=Implied(says="with vLLM: compiled by Inductor"),
        role="rollout",
    )


def _megatron_ranks(prefix: str) -> tuple[Option, Option]:
    return (
        tensor_ranks(f"{prefix}tensor_model_parallel_size", role="trainer"),
        expert_ranks(f"{prefix}expert_model_parallel_size", role="trainer"),
    )


def _composed(value: Any) -> Implied:
    """verl's own configurations, of which one was the trainer's engine before there was `model_engine`."""
    if "megatron" in str(value):
        return _MEGATRON
    return Implied(says="as actor.strategy and model_engine say")


_ROLLOUT, _ACTOR = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor."
VERL = Program(
    name="verl",
    engine="verl",
    version="035682ed7d",
    source="verl/trainer/config/rollout/rollout.yaml",
    start={"trainer": "verl-fsdp", "rollout": "vllm"},
    options=(
        _rollout_engine(f"{_ROLLOUT}name", ("vllm", "sglang", "hf")),
        vllm_tensor_ranks(f"{_ROLLOUT}tensor_model_parallel_size", default=2, role="rollout"),
        word(f"{_ROLLOUT}dtype", default="bfloat16", implies=dtype, role="rollout"),
        _enforce_eager(f"{_ROLLOUT}enforce_eager"),
        number(f"{_ROLLOUT}temperature", implies=_verls_temperature, role="rollout"),
        word(
            f"{_ACTOR}strategy",
            default="fsdp",
            implies=words(_STRATEGIES, "{}"),
            choices=("fsdp", "fsdp2", "megatron"),
            role="trainer",
        ),
        word(
            "model_engine",
            default="dp",
            implies=words({"dp": Implied(says="as actor.strategy says"), "megatron": _MEGATRON}),
            choices=("dp", "megatron"),
            role="trainer",
        ),
        word("config_name", default="ppo_trainer", implies=_composed, role="trainer"),
        *_megatron_ranks(f"{_ACTOR}megatron."),
        *overrides(f"{_ACTOR}megatron.override_transformer_config."),
    ),
)


def _parallel_plan(value: Any) -> Implied:
    if str(value).endswith("plan_stable"):
        return Implied(says="every GEMM column-wise", overlay="nemo-rl-dtensor-stable")
    return Implied(says="o_proj and down_proj row-wise" if value == "none" else f"{value} is not known here")


def _fusion(name: str, *, fused: Implied, unfused: Implied) -> Option:
    """A fusion of Megatron-LM, on where nothing is set."""
    return switch(f"{_MEGATRON_CFG}{name}", default=True, on=fused, off=unfused, role="trainer")


_VLLM_CFG = "policy.generation.vllm_cfg."
_DTENSOR_CFG, _MEGATRON_CFG = "policy.dtensor_cfg.", "policy.megatron_cfg."
_NEMO_RL_ROLLOUT = (
    _rollout_engine("policy.generation.backend", ("vllm", "sglang", "megatron", "trtllm")),
    number("policy.generation.temperature", implies=temperature, role="rollout"),
    vllm_tensor_ranks(f"{_VLLM_CFG}tensor_parallel_size", role="rollout"),
    expert_ranks(f"{_VLLM_CFG}expert_parallel_size", role="rollout"),
    _enforce_eager(f"{_VLLM_CFG}enforce_eager"),
    logprobs_mode(f"{_VLLM_CFG}logprobs_mode", default="processed_logprobs", role="rollout"),
)
_NEMO_RL_DTENSOR = (
    word("policy.precision", default="bfloat16", implies=dtype, role="trainer"),
    switch(
        f"{_DTENSOR_CFG}enabled",
        default=True,
        on=Implied(says="the DTensor policy", profile="nemo-rl-dtensor"),
        off=Implied(says="off"),
        role="trainer",
    ),
    tensor_ranks(f"{_DTENSOR_CFG}tensor_parallel_size", role="trainer"),
    switch(
        f"{_DTENSOR_CFG}sequence_parallel",
        on=Implied(says="sums are scattered by tokens", placement={"sequence": True}),
        off=Implied(says="sums are whole on every rank"),
        role="trainer",
    ),
    word(f"{_DTENSOR_CFG}custom_parallel_plan", default="none", implies=_parallel_plan, role="trainer"),
)
_ROUTER_DTYPES: Mapping[str, Implied] = {
    "fp32": Implied(says="with Megatron-LM: logits in fp32", overlay="megatron-router-fp32"),
    "fp64": Implied(says="with Megatron-LM: set gate:inputs and gate:output fp64"),
}
_NEMO_RL_MEGATRON = (
    switch(f"{_MEGATRON_CFG}enabled", on=_MEGATRON, off=Implied(says="off"), role="trainer"),
    *_megatron_ranks(_MEGATRON_CFG),
    word(
        f"{_MEGATRON_CFG}moe_router_dtype",
        default="fp64",
        implies=words(_ROUTER_DTYPES, "with Megatron-LM: logits in the model's dtype"),
        role="trainer",
    ),
    _fusion(
        "moe_permute_fusion",
        fused=Implied(says="with Megatron-LM: rows added in fp32", overlay="megatron-permute-fusion"),
        unfused=Implied(says="with Megatron-LM: rows added to a bf16 output as they arrive"),
    ),
    _fusion(
        "apply_rope_fusion",
        fused=Implied(says="with Megatron-LM: cos, sin and products in fp32"),
        unfused=Implied(says="with Megatron-LM: every product rounded", overlay="megatron-unfused-rope"),
    ),
    _fusion(
        "bias_activation_fusion",
        fused=Implied(says="with Megatron-LM: SwiGLU rounded once"),
        unfused=Implied(says="with Megatron-LM: silu and products rounded", overlay="megatron-unfused-swiglu"),
    ),
)
NEMO_RL = Program(
    name="nemo-rl",
    engine="NeMo-RL",
    version="7ea279abfb",
    source="examples/configs/grpo_math_1B.yaml",
    start={"trainer": "nemo-rl-dtensor", "rollout": "vllm"},
    options=(*_NEMO_RL_ROLLOUT, *_NEMO_RL_DTENSOR, *_NEMO_RL_MEGATRON),
)
