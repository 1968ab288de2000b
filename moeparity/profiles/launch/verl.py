"""verl as launched, a trainer and a rollout: read from verl 0.9.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.profiles.launch import (
    mbridge,
    megatron_rules,
    server_rules,
    servers,
)
from moeparity.profiles.launch.knowledge import listed, unstated
from moeparity.profiles.launch.options import (
    Implied,
    LaunchSettings,
    Program,
    count,
    embedded,
    idle_environment,
    number,
    of_environment,
    prefixed,
    word,
    words,
)
from moeparity.profiles.launch.shared import dtype, expert_ranks, logprobs_mode, stages, vllm_tensor_ranks
from moeparity.profiles.launch.trainers import (
    FSDP,
    MEGATRON,
    enforce_eager,
    megatron_ranks,
    nearest_bf16,
    rollout_engine,
    sequence_parallel,
    temperature,
    temperatures,
)


def _verls_temperature(value: Any) -> Implied:
    """As every trainer's, but for FSDP's rounding."""
    implied, nearest = temperature(value), nearest_bf16(value)
    if value in (0, nearest):
        return implied
    return Implied(says=f"{implied.says}, and {nearest} with FSDP, which rounds it to bf16")


_STRATEGIES = {"megatron": MEGATRON, "fsdp": FSDP, "fsdp2": FSDP}
_ROLLOUT, _ACTOR, _MODEL = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor.", "actor_rollout_ref.model."
_MEGATRON_ACTOR = f"{_ACTOR}megatron."
_FIELDS = f"{_MEGATRON_ACTOR}override_transformer_config."
_VLLM_KWARGS, _SGLANG_KWARGS = f"{_ROLLOUT}engine_kwargs.vllm.", f"{_ROLLOUT}engine_kwargs.sglang."


def _sent_of_data(value: Any) -> Implied:
    return Implied(says="one replica" if value == 1 else f"{value} replicas of attention")


_ENGINES = {
    "none": Implied(says="as the actor's strategy says"),
    "megatron": MEGATRON,
    "dp": FSDP,
    "fsdp": FSDP,
    "fsdp2": FSDP,
}


def _config_name(value: Any) -> Implied:
    return MEGATRON if "megatron" in str(value) else Implied(says="the actor's strategy says which trainer")


def _on_megatron(settings: LaunchSettings) -> bool:
    """Whether verl's trainer is Megatron-LM: the last that is set of its engine, the configuration and the strategy."""
    if settings["model_engine"] != "none":
        return bool(settings["model_engine"] == "megatron")
    return settings[f"{_ACTOR}strategy"] == "megatron" or "megatron" in str(settings["config_name"])


def _of_verl(settings: LaunchSettings) -> Mapping[str, str]:
    """Options of engines that verl does not start."""
    rollout = settings[f"{_ROLLOUT}name"]
    inactive = dict.fromkeys(mbridge.unset(_MEGATRON_ACTOR, _FIELDS, settings), "the model's bridge decides it")
    engine = settings["model_engine"] != "none" or settings["config_name"] != "none"
    if engine and f"{_ACTOR}strategy" not in settings.stated:
        inactive[f"{_ACTOR}strategy"] = "model_engine or the configuration's name says which trainer"
    inactive |= megatron_rules.idle(_FIELDS)(settings)
    if not _on_megatron(settings):
        inactive[_MEGATRON_ACTOR] = "the trainer is not Megatron-LM"
    for server, prefix in ((servers.VLLM, _VLLM_KWARGS), (servers.SGLANG, _SGLANG_KWARGS)):
        if rollout != server.name:
            reason = f"the rollout is {rollout}"
            inactive |= {prefix: reason, **idle_environment(server.options, reason)}
    return {**inactive, **(server_rules.idle_of_sglang(_SGLANG_KWARGS)(settings) if rollout == "sglang" else {})}


def _vllm_of_verl(settings: LaunchSettings) -> Mapping[str, Any]:
    if settings[f"{_ROLLOUT}name"] != "vllm":
        return {}
    return {
        "tensor_parallel_size": settings[f"{_ROLLOUT}tensor_model_parallel_size"],
        "pipeline_parallel_size": settings[f"{_ROLLOUT}pipeline_model_parallel_size"],
        "data_parallel_size": settings[f"{_ROLLOUT}data_parallel_size"],
        "enable_expert_parallel": settings.ranks(f"{_ROLLOUT}expert_parallel_size") > 1,
        "enforce_eager": settings[f"{_ROLLOUT}enforce_eager"],
        "dtype": settings[f"{_ROLLOUT}dtype"],
        **_handed_on(settings, "quantization"),
    }


def _handed_on(settings: LaunchSettings, name: str) -> Mapping[str, Any]:
    """An option that verl hands on to its rollout where it is given."""
    return {name: settings[f"{_ROLLOUT}{name}"]} if settings.is_on(f"{_ROLLOUT}{name}") else {}


def _sglang_of_verl(settings: LaunchSettings) -> Mapping[str, Any]:
    if settings[f"{_ROLLOUT}name"] != "sglang":
        return {}
    return {
        "tp_size": settings[f"{_ROLLOUT}tensor_model_parallel_size"],
        "pp_size": settings[f"{_ROLLOUT}pipeline_model_parallel_size"],
        "ep_size": settings[f"{_ROLLOUT}expert_parallel_size"],
        "dp_size": settings[f"{_ROLLOUT}data_parallel_size"],
    }


VERL = Program(
    name="verl",
    engine="verl",
    version="0.9.1",
    source="verl/trainer/config",
    start={"trainer": "verl-fsdp", "rollout": "vllm"},
    options=(
        rollout_engine(f"{_ROLLOUT}name", ("vllm", "sglang", "hf", "trtllm")),
        vllm_tensor_ranks(f"{_ROLLOUT}tensor_model_parallel_size", default=2, role="rollout"),
        stages(f"{_ROLLOUT}pipeline_model_parallel_size", role="rollout"),
        count(f"{_ROLLOUT}data_parallel_size", implies=_sent_of_data, role="rollout", quiet=True),
        expert_ranks(f"{_ROLLOUT}expert_parallel_size", role="rollout"),
        word(f"{_ROLLOUT}dtype", default="bfloat16", implies=dtype, role="rollout"),
        enforce_eager(f"{_ROLLOUT}enforce_eager"),
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
        *megatron_ranks(_MEGATRON_ACTOR, cut=megatron_rules.expert_cut(_MEGATRON_ACTOR)),
        *mbridge.switches(_MEGATRON_ACTOR),
        sequence_parallel(_MEGATRON_ACTOR, default=True),
        *megatron_rules.modelled(_FIELDS, permute=False, rope=False, router="none"),
        *unstated("megatron", "fields", below=_FIELDS),
        *unstated("verl"),
        *prefixed(servers.VLLM.options, _VLLM_KWARGS),
        *prefixed(servers.SGLANG.options, _SGLANG_KWARGS),
        *of_environment((*servers.VLLM.options, *servers.SGLANG.options)),
        *unstated("megatron", "environment"),
    ),
    model=(f"{_MODEL}path",),
    rules=(
        megatron_rules.placement(
            _MEGATRON_ACTOR, _FIELDS, _on_megatron, lambda s: str(s[f"{_FIELDS}moe_token_dispatcher_type"])
        ),
        megatron_rules.as_described(_FIELDS),
        mbridge.defaults(_MEGATRON_ACTOR, _FIELDS, _on_megatron),
        temperatures(
            f"{_ROLLOUT}temperature",
            mode=f"{_ROLLOUT}logprobs_mode",
            rollout=f"{_ROLLOUT}name",
            fsdp=lambda s: not _on_megatron(s),
        ),
        *(embedded(rule, _VLLM_KWARGS, _vllm_of_verl) for rule in server_rules.OF_VLLM),
        *(embedded(rule, _SGLANG_KWARGS, _sglang_of_verl) for rule in server_rules.OF_SGLANG),
        server_rules.stored_quantised("rollout"),
    ),
    irrelevant=listed("verl", "irrelevant")
    | {f"{_FIELDS}{name}" for name in listed("megatron", "fields")}
    | servers.VLLM.irrelevant
    | {f"{_VLLM_KWARGS}{name}" for name in servers.VLLM.irrelevant}
    | {f"{_SGLANG_KWARGS}{name}" for name in servers.SGLANG.irrelevant},
    inactive=_of_verl,
    variables=lambda _: {"ray_kwargs.ray_init.runtime_env.env_vars.": ("trainer", "rollout")},
)
