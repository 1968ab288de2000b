"""verl and NeMo-RL as launched, a trainer and a rollout each: read from verl 035682ed7d and NeMo-RL 7ea279abfb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moeparity.launch.options import Implied, Option, Program, dtype, flagged, nothing, ranks, words
from moeparity.launch.servers import vllm_tensor

_ROLLOUTS = {
    "vllm": Implied(says="vLLM", profile="vllm"),
    "sglang": Implied(says="SGLang", profile="sglang"),
    "hf": Implied(says="transformers", profile="hf-default"),
    "megatron": Implied(says="Megatron-LM", profile="megatron"),
}
_MODES = ("raw_logits", "raw_logprobs", "processed_logits", "processed_logprobs")
_REPORTED = nothing("which log-probabilities are reported; no choice of the forward pass")
_EAGER = flagged(
    Implied(says="with vLLM: kernels in C in place of Inductor's", overlay="vllm-eager"),
    Implied(says="with vLLM: compiled by Inductor"),
)


def _only(profile: str, says: str) -> Callable[[Any], Implied]:
    return flagged(Implied(says=says, profile=profile), Implied(says="off"))


_ROLLOUT, _ACTOR = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor."
VERL = Program(
    name="verl",
    engine="verl",
    version="035682ed7d",
    source="verl/trainer/config/rollout/rollout.yaml",
    start={"trainer": "hf-default", "rollout": "vllm"},
    options=(
        Option(
            names=(f"{_ROLLOUT}name",),
            kind="word",
            default="vllm",
            choices=("vllm", "sglang", "hf"),
            implies=words(_ROLLOUTS, "{}"),
            role="rollout",
        ),
        Option(
            names=(f"{_ROLLOUT}tensor_model_parallel_size",),
            kind="count",
            default=2,
            implies=vllm_tensor,
            role="rollout",
        ),
        Option(names=(f"{_ROLLOUT}dtype",), kind="word", default="bfloat16", implies=dtype, role="rollout"),
        Option(names=(f"{_ROLLOUT}enforce_eager",), kind="flag", default=False, implies=_EAGER, role="rollout"),
        Option(
            names=(f"{_ACTOR}strategy",),
            kind="word",
            default="fsdp",
            choices=("fsdp", "fsdp2", "megatron"),
            implies=words(
                {
                    "megatron": Implied(says="Megatron-LM", profile="megatron"),
                    "fsdp": Implied(says="transformers' classes; flash_attention_2 and autocast are not stated"),
                    "fsdp2": Implied(says="transformers' classes; flash_attention_2 and autocast are not stated"),
                },
                "{}",
            ),
            role="trainer",
        ),
        Option(
            names=(f"{_ACTOR}megatron.tensor_model_parallel_size",),
            kind="count",
            default=1,
            implies=ranks("tensor"),
            role="trainer",
        ),
        Option(
            names=(f"{_ACTOR}megatron.expert_model_parallel_size",),
            kind="count",
            default=1,
            implies=ranks("expert"),
            role="trainer",
        ),
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
        Option(
            names=(f"{_POLICY}generation.backend",),
            kind="word",
            default="vllm",
            choices=("vllm", "sglang", "megatron", "trtllm"),
            implies=words({**_ROLLOUTS, "trtllm": Implied(says="TensorRT-LLM", profile="trtllm")}, "{}"),
            role="rollout",
        ),
        Option(names=(f"{_VLLM}tensor_parallel_size",), kind="count", default=1, implies=vllm_tensor, role="rollout"),
        Option(
            names=(f"{_VLLM}expert_parallel_size",), kind="count", default=1, implies=ranks("expert"), role="rollout"
        ),
        Option(names=(f"{_VLLM}enforce_eager",), kind="flag", default=False, implies=_EAGER, role="rollout"),
        Option(
            names=(f"{_VLLM}logprobs_mode",),
            kind="word",
            default="processed_logprobs",
            choices=_MODES,
            implies=_REPORTED,
            role="rollout",
        ),
        Option(names=(f"{_POLICY}precision",), kind="word", default="bfloat16", implies=dtype, role="trainer"),
        Option(
            names=(f"{_DTENSOR}enabled",),
            kind="flag",
            default=True,
            implies=_only("nemo-rl-dtensor", "the DTensor policy"),
            role="trainer",
        ),
        Option(
            names=(f"{_DTENSOR}tensor_parallel_size",), kind="count", default=1, implies=ranks("tensor"), role="trainer"
        ),
        Option(
            names=(f"{_DTENSOR}sequence_parallel",),
            kind="flag",
            default=False,
            implies=flagged(
                Implied(says="sums are scattered by tokens", placement={"sequence": True}),
                Implied(says="sums are whole on every rank"),
            ),
            role="trainer",
        ),
        Option(
            names=(f"{_DTENSOR}custom_parallel_plan",),
            kind="word",
            default="none",
            implies=lambda value: (
                Implied(says="every GEMM column-wise", overlay="nemo-rl-dtensor-stable")
                if str(value).endswith("plan_stable")
                else Implied(says="o_proj and down_proj row-wise" if value == "none" else f"{value} is not known here")
            ),
            role="trainer",
        ),
        Option(
            names=(f"{_MEGATRON}enabled",),
            kind="flag",
            default=False,
            implies=_only("megatron", "Megatron-LM"),
            role="trainer",
        ),
        Option(
            names=(f"{_MEGATRON}tensor_model_parallel_size",),
            kind="count",
            default=1,
            implies=ranks("tensor"),
            role="trainer",
        ),
        Option(
            names=(f"{_MEGATRON}expert_model_parallel_size",),
            kind="count",
            default=1,
            implies=ranks("expert"),
            role="trainer",
        ),
        Option(
            names=(f"{_MEGATRON}moe_router_dtype",),
            kind="word",
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
        Option(
            names=(f"{_MEGATRON}moe_permute_fusion",),
            kind="flag",
            default=True,
            implies=flagged(
                Implied(says="with Megatron-LM: rows added in fp32", overlay="megatron-permute-fusion"),
                Implied(says="with Megatron-LM: rows added to a bf16 output as they arrive"),
            ),
            role="trainer",
        ),
        Option(
            names=(f"{_MEGATRON}apply_rope_fusion",),
            kind="flag",
            default=True,
            implies=flagged(
                Implied(says="with Megatron-LM: cos, sin and products in fp32"),
                Implied(says="with Megatron-LM: every product rounded", overlay="megatron-unfused-rope"),
            ),
            role="trainer",
        ),
        Option(
            names=(f"{_MEGATRON}bias_activation_fusion",),
            kind="flag",
            default=True,
            implies=flagged(
                Implied(says="with Megatron-LM: SwiGLU rounded once"),
                Implied(says="with Megatron-LM: silu and products rounded", overlay="megatron-unfused-swiglu"),
            ),
            role="trainer",
        ),
    ),
)
