"""verl and NeMo-RL as launched, a trainer and a rollout each: read from verl 035682ed7d and NeMo-RL 7ea279abfb."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from moeparity.profiles.launch import (
    mbridge,
    megatron_rules,
    megatron_unstated,
    server_rules,
    servers,
    trainers_unstated,
    vllm_unstated,
)
from moeparity.profiles.launch.options import (
    Decision,
    Implied,
    Option,
    Program,
    Rule,
    Settings,
    count,
    embedded,
    number,
    prefixed,
    switch,
    word,
    words,
)
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


def _megatron_ranks(prefix: str) -> tuple[Option, ...]:
    return (
        tensor_ranks(f"{prefix}tensor_model_parallel_size", role="trainer"),
        count(f"{prefix}expert_model_parallel_size", implies=_sent, role="trainer"),
    )


def _sent(value: Any) -> Implied:
    return Implied(
        says="one rank" if value == 1 else f"experts on {value} ranks: what is added where, the dispatcher says"
    )


def _sequence(prefix: str, *, default: bool) -> Option:
    return switch(
        f"{prefix}sequence_parallel",
        default=default,
        on=Implied(says="under tensor parallel, sums are scattered by tokens"),
        off=Implied(says="sums are whole on every rank"),
        role="trainer",
    )


_ROLLOUT, _ACTOR, _MODEL = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor.", "actor_rollout_ref.model."
_MEGATRON_ACTOR = f"{_ACTOR}megatron."
_FIELDS = f"{_MEGATRON_ACTOR}override_transformer_config."
_VLLM_KWARGS, _SGLANG_KWARGS = f"{_ROLLOUT}engine_kwargs.vllm.", f"{_ROLLOUT}engine_kwargs.sglang."


def _sent_of_data(value: Any) -> Implied:
    return Implied(says="one replica" if value == 1 else f"{value} replicas of attention")


_ENGINES = {
    "none": Implied(says="as the actor's strategy says"),
    "megatron": _MEGATRON,
    "dp": _FSDP,
    "fsdp": _FSDP,
    "fsdp2": _FSDP,
}


def _config_name(value: Any) -> Implied:
    return _MEGATRON if "megatron" in str(value) else Implied(says="the actor's strategy says which trainer")


def _on_megatron(settings: Settings) -> bool:
    """Whether verl's trainer is Megatron-LM: the last that is set of its engine, the configuration and the strategy."""
    if settings["model_engine"] != "none":
        return bool(settings["model_engine"] == "megatron")
    return settings[f"{_ACTOR}strategy"] == "megatron" or "megatron" in str(settings["config_name"])


def _of_verl(settings: Settings) -> Mapping[str, str]:
    """Options of engines that verl does not start."""
    rollout = settings[f"{_ROLLOUT}name"]
    inactive = {} if _on_megatron(settings) else {_MEGATRON_ACTOR: "the trainer is not Megatron-LM"}
    for name, prefix in (("vllm", _VLLM_KWARGS), ("sglang", _SGLANG_KWARGS)):
        inactive |= {} if rollout == name else {prefix: f"the rollout is {rollout}"}
    return inactive


def _vllm_of_verl(settings: Settings) -> Mapping[str, Any]:
    if settings[f"{_ROLLOUT}name"] != "vllm":
        return {}
    return {
        "tensor_parallel_size": settings[f"{_ROLLOUT}tensor_model_parallel_size"],
        "data_parallel_size": settings[f"{_ROLLOUT}data_parallel_size"],
        "enable_expert_parallel": settings.ranks(f"{_ROLLOUT}expert_parallel_size") > 1,
    }


def _sglang_of_verl(settings: Settings) -> Mapping[str, Any]:
    if settings[f"{_ROLLOUT}name"] != "sglang":
        return {}
    return {
        "tp_size": settings[f"{_ROLLOUT}tensor_model_parallel_size"],
        "ep_size": settings[f"{_ROLLOUT}expert_parallel_size"],
        "dp_size": settings[f"{_ROLLOUT}data_parallel_size"],
    }


def _temperatures(sampler: str, *, mode: str, rollout: str, fsdp: Callable[[Settings], bool]) -> Rule:
    """The sampler's temperature on both sides: on the rollout's where its log-probabilities are of what is sampled."""

    def rule(settings: Settings) -> Iterator[Decision]:
        temperature = settings[sampler]
        if not isinstance(temperature, int | float) or temperature in (0, 1):
            return
        trained = _bf16(temperature) if fsdp(settings) else temperature
        sides = {"trainer": trained}
        if settings[rollout] == "sglang" or str(settings[mode]).startswith("processed"):
            sides["rollout"] = temperature
        for role, value in sides.items():
            implied = Implied(says=f"logits over the temperature {value}", sets={"log_softmax:temperature": value})
            yield Decision(role=role, implied=implied, source=f"{sampler}")

    return rule


VERL = Program(
    name="verl",
    engine="verl",
    version="035682ed7d",
    source="verl/trainer/config/rollout/rollout.yaml",
    start={"trainer": "verl-fsdp", "rollout": "vllm"},
    options=(
        _rollout_engine(f"{_ROLLOUT}name", ("vllm", "sglang", "hf", "trtllm")),
        vllm_tensor_ranks(f"{_ROLLOUT}tensor_model_parallel_size", default=2, role="rollout"),
        count(f"{_ROLLOUT}data_parallel_size", implies=_sent_of_data, role="rollout", quiet=True),
        expert_ranks(f"{_ROLLOUT}expert_parallel_size", role="rollout"),
        word(f"{_ROLLOUT}dtype", default="bfloat16", implies=dtype, role="rollout"),
        _enforce_eager(f"{_ROLLOUT}enforce_eager"),
        number(f"{_ROLLOUT}temperature", implies=_verls_temperature, role="rollout"),
        logprobs_mode(f"{_ROLLOUT}logprobs_mode", default="processed_logprobs", role="rollout"),
        word(
            f"{_ACTOR}strategy",
            default="fsdp",
            implies=words(_STRATEGIES, "{}"),
            choices=("fsdp", "fsdp2", "megatron"),
            role="trainer",
        ),
        word("config_name", default="none", implies=_config_name, role="trainer"),
        word("model_engine", default="none", implies=words(_ENGINES), choices=tuple(_ENGINES), role="trainer"),
        *_megatron_ranks(_MEGATRON_ACTOR),
        *mbridge.switches(_MEGATRON_ACTOR),
        _sequence(_MEGATRON_ACTOR, default=True),
        *megatron_rules.modelled(_FIELDS, permute=False, rope=False, swiglu=True, router="none"),
        *megatron_unstated.fields(_FIELDS),
        *trainers_unstated.VERL,
        *prefixed(servers.VLLM.options, _VLLM_KWARGS, "rollout"),
        *prefixed(servers.SGLANG.options, _SGLANG_KWARGS, "rollout"),
    ),
    model=(f"{_MODEL}path",),
    rules=(
        megatron_rules.placement(
            _MEGATRON_ACTOR, _FIELDS, _on_megatron, lambda s: str(s[f"{_FIELDS}moe_token_dispatcher_type"])
        ),
        mbridge.defaults(_MEGATRON_ACTOR, _FIELDS, _on_megatron),
        _temperatures(
            f"{_ROLLOUT}temperature",
            mode=f"{_ROLLOUT}logprobs_mode",
            rollout=f"{_ROLLOUT}name",
            fsdp=lambda s: not _on_megatron(s),
        ),
        *(embedded(rule, _VLLM_KWARGS, "rollout", _vllm_of_verl) for rule in servers.VLLM.rules[:2]),
        *(embedded(rule, _SGLANG_KWARGS, "rollout", _sglang_of_verl) for rule in servers.SGLANG.rules[:2]),
        server_rules.stored_quantised("rollout"),
    ),
    irrelevant=trainers_unstated.OF_VERL
    | megatron_unstated.irrelevant(_FIELDS)
    | vllm_unstated.IRRELEVANT
    | {f"{_VLLM_KWARGS}{name}" for name in servers.VLLM.irrelevant}
    | {f"{_SGLANG_KWARGS}{name}" for name in servers.SGLANG.irrelevant},
    inactive=_of_verl,
)


def _parallel_plan(value: Any) -> Implied:
    if str(value).endswith("plan_stable"):
        return Implied(says="every GEMM column-wise", overlay="nemo-rl-dtensor-stable")
    return Implied(says="o_proj and down_proj row-wise" if value == "none" else f"{value} is not known here")


_VLLM_CFG, _VLLM_KWARGS_OF_NEMO = "policy.generation.vllm_cfg.", "policy.generation.vllm_kwargs."
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
_NEMO_RL_MEGATRON = (
    switch(f"{_MEGATRON_CFG}enabled", on=_MEGATRON, off=Implied(says="off"), role="trainer"),
    *_megatron_ranks(_MEGATRON_CFG),
    _sequence(_MEGATRON_CFG, default=False),
    *megatron_rules.modelled(_MEGATRON_CFG, permute=True, rope=True, swiglu=True, router="fp64"),
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
        *prefixed(servers.VLLM.options, _VLLM_KWARGS_OF_NEMO, "rollout"),
    ),
    model=("policy.model_name",),
    rules=(
        megatron_rules.placement(
            _MEGATRON_CFG,
            _MEGATRON_CFG,
            lambda s: s[f"{_MEGATRON_CFG}enabled"] is True,
            lambda s: str(s[f"{_MEGATRON_CFG}moe_token_dispatcher_type"]),
        ),
        _temperatures(
            "policy.generation.temperature",
            mode=f"{_VLLM_CFG}logprobs_mode",
            rollout="policy.generation.backend",
            fsdp=lambda _: False,
        ),
        *(embedded(rule, _VLLM_KWARGS_OF_NEMO, "rollout", _vllm_of_nemo_rl) for rule in servers.VLLM.rules[:2]),
        server_rules.stored_quantised("rollout"),
    ),
    irrelevant=trainers_unstated.OF_NEMO_RL
    | megatron_unstated.irrelevant(_MEGATRON_CFG)
    | vllm_unstated.IRRELEVANT
    | {f"{_VLLM_KWARGS_OF_NEMO}{name}" for name in servers.VLLM.irrelevant},
    inactive=_of_nemo_rl,
)
