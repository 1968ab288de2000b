"""verl and NeMo-RL as launched, a trainer and a rollout each: read from verl 035682ed7d and NeMo-RL 7ea279abfb."""

from __future__ import annotations

import struct
from typing import Any

from moeparity.profiles.launch.options import Implied, Program, count, dtype, number, ranks, switch, word, words
from moeparity.profiles.launch.servers import LOGPROBS_MODES, vllm_tensor

_ROLLOUTS = {
    "vllm": Implied(says="vLLM", profile="vllm"),
    "sglang": Implied(says="SGLang", profile="sglang"),
    "hf": Implied(says="transformers", profile="hf-default"),
    "megatron": Implied(says="Megatron-LM", profile="megatron"),
}
_EAGER = Implied(says="with vLLM: kernels in C in place of Inductor's", overlay="vllm-eager")
_COMPILED = Implied(says="with vLLM: compiled by Inductor")
_FSDP = Implied(says="transformers' classes; flash_attention_2 and autocast are not stated", profile="verl-fsdp")


def _temperature(value: Any) -> Implied:
    """The sampler's temperature, which trainers divide by too; a greedy sampler divides by none."""
    if value in (0, 1):
        return Implied(says="logits are not divided")
    return Implied(says=f"logits over it on both sides: set log_softmax:temperature {value}")


def _verls_temperature(value: Any) -> Implied:
    """As every trainer's, but for FSDP's rounding."""
    implied, nearest = _temperature(value), _bf16(value)
    if value in (0, nearest):
        return implied
    return Implied(says=f"{implied.says}, and {nearest} with FSDP, which rounds it to bf16")


def _bf16(value: float) -> float:
    """The nearest bf16, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", nearest))[0])


_ROLLOUT, _ACTOR = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor."
VERL = Program(
    name="verl",
    engine="verl",
    version="035682ed7d",
    source="verl/trainer/config/rollout/rollout.yaml",
    start={"trainer": "verl-fsdp", "rollout": "vllm"},
    options=(
        word(
            f"{_ROLLOUT}name",
            default="vllm",
            implies=words(_ROLLOUTS, "{}"),
            choices=("vllm", "sglang", "hf"),
            role="rollout",
        ),
        count(f"{_ROLLOUT}tensor_model_parallel_size", implies=vllm_tensor, default=2, role="rollout"),
        word(f"{_ROLLOUT}dtype", default="bfloat16", implies=dtype, role="rollout"),
        switch(f"{_ROLLOUT}enforce_eager", on=_EAGER, off=_COMPILED, role="rollout"),
        number(f"{_ROLLOUT}temperature", implies=_verls_temperature, role="rollout"),
        word(
            f"{_ACTOR}strategy",
            default="fsdp",
            implies=words(
                {
                    "megatron": Implied(says="Megatron-LM", profile="megatron"),
                    "fsdp": _FSDP,
                    "fsdp2": _FSDP,
                },
                "{}",
            ),
            choices=("fsdp", "fsdp2", "megatron"),
            role="trainer",
        ),
        count(f"{_ACTOR}megatron.tensor_model_parallel_size", implies=ranks("tensor"), role="trainer"),
        count(f"{_ACTOR}megatron.expert_model_parallel_size", implies=ranks("expert"), role="trainer"),
    ),
)

_POLICY, _DTENSOR, _MEGATRON = "policy.", "policy.dtensor_cfg.", "policy.megatron_cfg."
_VLLM = "policy.generation.vllm_cfg."
NEMO_RL = Program(
    name="nemo-rl",
    engine="NeMo-RL",
    version="7ea279abfb",
    source="examples/configs/grpo_math_1B.yaml",
    start={"trainer": "nemo-rl-dtensor", "rollout": "vllm"},
    options=(
        word(
            f"{_POLICY}generation.backend",
            default="vllm",
            implies=words({**_ROLLOUTS, "trtllm": Implied(says="TensorRT-LLM", profile="trtllm")}, "{}"),
            choices=("vllm", "sglang", "megatron", "trtllm"),
            role="rollout",
        ),
        number(f"{_POLICY}generation.temperature", implies=_temperature, role="rollout"),
        count(f"{_VLLM}tensor_parallel_size", implies=vllm_tensor, role="rollout"),
        count(f"{_VLLM}expert_parallel_size", implies=ranks("expert"), role="rollout"),
        switch(f"{_VLLM}enforce_eager", on=_EAGER, off=_COMPILED, role="rollout"),
        word(
            f"{_VLLM}logprobs_mode",
            default="processed_logprobs",
            implies=words(LOGPROBS_MODES, "{}"),
            choices=tuple(LOGPROBS_MODES),
            role="rollout",
        ),
        word(f"{_POLICY}precision", default="bfloat16", implies=dtype, role="trainer"),
        switch(
            f"{_DTENSOR}enabled",
            default=True,
            on=Implied(says="the DTensor policy", profile="nemo-rl-dtensor"),
            off=Implied(says="off"),
            role="trainer",
        ),
        count(f"{_DTENSOR}tensor_parallel_size", implies=ranks("tensor"), role="trainer"),
        switch(
            f"{_DTENSOR}sequence_parallel",
            on=Implied(says="sums are scattered by tokens", placement={"sequence": True}),
            off=Implied(says="sums are whole on every rank"),
            role="trainer",
        ),
        word(
            f"{_DTENSOR}custom_parallel_plan",
            default="none",
            implies=lambda value: (
                Implied(says="every GEMM column-wise", overlay="nemo-rl-dtensor-stable")
                if str(value).endswith("plan_stable")
                else Implied(says="o_proj and down_proj row-wise" if value == "none" else f"{value} is not known here")
            ),
            role="trainer",
        ),
        switch(
            f"{_MEGATRON}enabled",
            on=Implied(says="Megatron-LM", profile="megatron"),
            off=Implied(says="off"),
            role="trainer",
        ),
        count(f"{_MEGATRON}tensor_model_parallel_size", implies=ranks("tensor"), role="trainer"),
        count(f"{_MEGATRON}expert_model_parallel_size", implies=ranks("expert"), role="trainer"),
        word(
            f"{_MEGATRON}moe_router_dtype",
            default="fp64",
            implies=words(
                {
                    "fp32": Implied(says="with Megatron-LM: logits in fp32", overlay="megatron-router-fp32"),
                    "fp64": Implied(says="with Megatron-LM: set gate:inputs and gate:output fp64"),
                },
                "with Megatron-LM: logits in the model's dtype",
            ),
            role="trainer",
        ),
        switch(
            f"{_MEGATRON}moe_permute_fusion",
            default=True,
            on=Implied(says="with Megatron-LM: rows added in fp32", overlay="megatron-permute-fusion"),
            off=Implied(says="with Megatron-LM: rows added to a bf16 output as they arrive"),
            role="trainer",
        ),
        switch(
            f"{_MEGATRON}apply_rope_fusion",
            default=True,
            on=Implied(says="with Megatron-LM: cos, sin and products in fp32"),
            off=Implied(says="with Megatron-LM: every product rounded", overlay="megatron-unfused-rope"),
            role="trainer",
        ),
        switch(
            f"{_MEGATRON}bias_activation_fusion",
            default=True,
            on=Implied(says="with Megatron-LM: SwiGLU rounded once"),
            off=Implied(says="with Megatron-LM: silu and products rounded", overlay="megatron-unfused-swiglu"),
            role="trainer",
        ),
    ),
)
