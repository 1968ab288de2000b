"""NeMo-RL as launched, a trainer and a rollout: read from NeMo-RL 7ea279abfb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.profiles.launch import (
    megatron_rules,
    megatron_unstated,
    server_rules,
    servers,
    trainers_unstated,
    vllm_unstated,
)
from moeparity.profiles.launch.options import Implied, Program, Settings, embedded, number, prefixed, switch, word
from moeparity.profiles.launch.shared import dtype, expert_ranks, logprobs_mode, stages, tensor_ranks, vllm_tensor_ranks
from moeparity.profiles.launch.trainers import (
    MEGATRON,
    enforce_eager,
    megatron_ranks,
    rollout_engine,
    sequence_parallel,
    temperature,
    temperatures,
)


def _parallel_plan(value: Any) -> Implied:
    if str(value).endswith("plan_stable"):
        return Implied(says="every GEMM column-wise", overlay="nemo-rl-dtensor-stable")
    return Implied(says="o_proj and down_proj row-wise" if value == "none" else f"{value} is not known here")


_VLLM_CFG, _VLLM_KWARGS_OF_NEMO = "policy.generation.vllm_cfg.", "policy.generation.vllm_kwargs."
_DTENSOR_CFG, _MEGATRON_CFG = "policy.dtensor_cfg.", "policy.megatron_cfg."
_NEMO_RL_ROLLOUT = (
    rollout_engine("policy.generation.backend", ("vllm", "sglang", "megatron", "trtllm")),
    number("policy.generation.temperature", implies=temperature, role="rollout"),
    vllm_tensor_ranks(f"{_VLLM_CFG}tensor_parallel_size", role="rollout"),
    stages(f"{_VLLM_CFG}pipeline_parallel_size", division="vllm", role="rollout"),
    expert_ranks(f"{_VLLM_CFG}expert_parallel_size", role="rollout"),
    enforce_eager(f"{_VLLM_CFG}enforce_eager"),
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
_NEMO_RL_MEGATRON = (
    switch(f"{_MEGATRON_CFG}enabled", on=MEGATRON, off=Implied(says="off"), role="trainer"),
    *megatron_ranks(_MEGATRON_CFG, cut=megatron_rules.expert_cut(_MEGATRON_CFG, default=1)),
    sequence_parallel(_MEGATRON_CFG, default=False),
    *megatron_rules.modelled(_MEGATRON_CFG, permute=True, rope=True, router="fp64"),
    *megatron_unstated.fields(_MEGATRON_CFG),
)


def _of_nemo_rl(settings: Settings) -> Mapping[str, str]:
    """Options of the policy and the backend that NeMo-RL does not start; what switches them on is none of these."""
    megatron = settings[f"{_MEGATRON_CFG}enabled"] is True
    unused, policy = (_DTENSOR_CFG, "Megatron-LM") if megatron else (_MEGATRON_CFG, "DTensor")
    names = {name for name in settings.values if name.startswith(unused) and name != f"{unused}enabled"}
    inactive = dict.fromkeys(names, f"the policy is {policy}")
    backend = settings["policy.generation.backend"]
    if backend != "vllm":
        inactive |= dict.fromkeys((_VLLM_CFG, _VLLM_KWARGS_OF_NEMO), f"the backend is {backend}")
    if backend != "megatron":
        inactive |= {"policy.generation.mcore_generation_config.": f"the backend is {backend}"}
    return inactive


def _vllm_of_nemo_rl(settings: Settings) -> Mapping[str, Any]:
    if settings["policy.generation.backend"] != "vllm":
        return {}
    tensor, expert = (settings.ranks(f"{_VLLM_CFG}{axis}_parallel_size") for axis in ("tensor", "expert"))
    return {
        "tensor_parallel_size": tensor,
        "data_parallel_size": max(expert // tensor, 1),
        "enable_expert_parallel": expert > 1,
    }


NEMO_RL = Program(
    name="nemo-rl",
    engine="NeMo-RL",
    version="7ea279abfb",
    source="examples/configs/grpo_math_1B.yaml",
    start={"trainer": "nemo-rl-dtensor", "rollout": "vllm"},
    options=(
        *_NEMO_RL_ROLLOUT,
        *_NEMO_RL_DTENSOR,
        *_NEMO_RL_MEGATRON,
        *trainers_unstated.NEMO_RL,
        *prefixed(servers.VLLM.options, _VLLM_KWARGS_OF_NEMO),
    ),
    model=("policy.model_name",),
    rules=(
        megatron_rules.placement(
            _MEGATRON_CFG,
            _MEGATRON_CFG,
            lambda s: s[f"{_MEGATRON_CFG}enabled"] is True,
            lambda s: str(s[f"{_MEGATRON_CFG}moe_token_dispatcher_type"]),
        ),
        temperatures(
            "policy.generation.temperature",
            mode=f"{_VLLM_CFG}logprobs_mode",
            rollout="policy.generation.backend",
            fsdp=lambda _: False,
        ),
        *(embedded(rule, _VLLM_KWARGS_OF_NEMO, _vllm_of_nemo_rl) for rule in server_rules.OF_VLLM),
        server_rules.stored_quantised("rollout"),
    ),
    irrelevant=trainers_unstated.OF_NEMO_RL
    | megatron_unstated.irrelevant(_MEGATRON_CFG)
    | vllm_unstated.IRRELEVANT
    | {f"{_VLLM_KWARGS_OF_NEMO}{name}" for name in servers.VLLM.irrelevant},
    inactive=_of_nemo_rl,
)
