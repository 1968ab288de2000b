"""SkyRL as launched: a trainer and the engine that it samples with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moeparity.profiles.launch import (
    mbridge,
    megatron_rules,
    server_rules,
    servers,
)
from moeparity.profiles.launch.knowledge import listed, unstated
from moeparity.profiles.launch.megatron_config import DISPATCHERS, ROUTER_DTYPES, overrides, precision
from moeparity.profiles.launch.options import (
    Decision,
    Implied,
    LaunchSettings,
    Program,
    count,
    defaults,
    embedded,
    idle_environment,
    number,
    of_environment,
    prefixed,
    switch,
    word,
    words,
)
from moeparity.profiles.launch.shared import (
    COMPILED,
    DTYPES,
    EAGER,
    dtype,
    expert_ranks,
    logprobs_mode,
    stages,
    tensor_ranks,
    vllm_tensor_ranks,
)
from moeparity.profiles.launch.trainers import TRANSFORMERS, temperature, temperatures

_VLLM = Implied(says="vLLM", profile="vllm")
_POLICY, _ENGINE = "trainer.policy.megatron_config.", "generator.inference_engine."
_KWARGS, _INIT = f"{_POLICY}transformer_config_kwargs.", f"{_ENGINE}engine_init_kwargs."
_INIT_SOURCE = "SkyRL a9564572e, skyrl/backends/skyrl_train/inference_servers/utils.py:157"
_SKYRL_SOURCE = "SkyRL a9564572e, skyrl/backends/skyrl_train/workers/megatron/megatron_worker.py:470-494"


def _replicas(value: Any) -> Implied:
    return Implied(says="one replica" if value == 1 else f"{value} replicas of attention")


def _skyrl_on_megatron(settings: LaunchSettings) -> bool:
    return bool(settings["trainer.strategy"] == "megatron")


def _passed_on(settings: LaunchSettings, name: str) -> str:
    """A field that SkyRL has by itself: what transformer_config_kwargs says goes before."""
    return str(settings[f"{_KWARGS}{name}" if f"{_KWARGS}{name}" in settings.stated else f"{_POLICY}{name}"])


def _vllm_of_skyrl(settings: LaunchSettings) -> Mapping[str, Any]:
    if settings[f"{_ENGINE}backend"] != "vllm":
        return {}
    derived = {
        "tensor_parallel_size": settings[f"{_ENGINE}tensor_parallel_size"],
        "pipeline_parallel_size": settings[f"{_ENGINE}pipeline_parallel_size"],
        "data_parallel_size": settings[f"{_ENGINE}data_parallel_size"],
        "enable_expert_parallel": settings.ranks(f"{_ENGINE}expert_parallel_size") > 1,
        "enforce_eager": settings[f"{_ENGINE}enforce_eager"],
        "dtype": settings[f"{_ENGINE}model_dtype"],
    }
    return {name: value for name, value in derived.items() if f"{_INIT}{name}" not in settings.stated}


def _sglang_of_skyrl(settings: LaunchSettings) -> Mapping[str, Any]:
    if settings[f"{_ENGINE}backend"] != "sglang":
        return {}
    ranks = {"tp_size": "tensor", "pp_size": "pipeline", "dp_size": "data", "ep_size": "expert"}
    return {
        **defaults(servers.SGLANG.options),
        **{name: settings[f"{_ENGINE}{axis}_parallel_size"] for name, axis in ranks.items()},
    }


_OVERRIDDEN = {
    **{f"{_ENGINE}{axis}_parallel_size": f"{axis}_parallel_size" for axis in ("tensor", "pipeline", "data")},
    f"{_ENGINE}expert_parallel_size": "enable_expert_parallel",
    f"{_ENGINE}enforce_eager": "enforce_eager",
    f"{_ENGINE}model_dtype": "dtype",
}
"""SkyRL's options, and those of vLLM in whose place they stand unless `engine_init_kwargs` says other."""


def _of_skyrl(settings: LaunchSettings) -> Mapping[str, str]:
    """Fields that the model's bridge decides, variables of an engine that is not started, and options of vLLM that are
    given twice.
    """
    decided = dict.fromkeys(mbridge.fields_unset(_KWARGS, settings), "the model's bridge decides it")
    backend = settings[f"{_ENGINE}backend"]
    for server in (servers.VLLM, servers.SGLANG):
        if backend != server.name:
            decided |= idle_environment(server.options, f"the backend is {backend}")
    return decided | {
        name: f"engine_init_kwargs.{vllms} is applied last ({_INIT_SOURCE})"
        for name, vllms in _OVERRIDDEN.items()
        if f"{_INIT}{vllms}" in settings.stated
    }


def _skyrl_provider(settings: LaunchSettings) -> Iterator[Decision]:
    """What SkyRL sets of Megatron-LM's configuration."""
    if not _skyrl_on_megatron(settings):
        return
    if settings.ranks(f"{_POLICY}tensor_model_parallel_size") > 1:
        scattered = Implied(says="under tensor parallel, sums are scattered by tokens", placement={"sequence": True})
        yield Decision(role="trainer", implied=scattered, source=_SKYRL_SOURCE)
    router = ROUTER_DTYPES.get(_passed_on(settings, "moe_router_dtype"))
    if router is not None:
        yield Decision(role="trainer", implied=router, source=_SKYRL_SOURCE)


SKYRL = Program(
    name="skyrl",
    engine="SkyRL",
    version="a9564572e",
    source="skyrl/train/config/config.py, skyrl/backends/skyrl_train/workers/megatron/megatron_worker.py",
    start={"trainer": "hf-default", "rollout": "vllm"},
    options=(
        word(
            "trainer.strategy",
            default="fsdp",
            implies=words(
                {
                    **dict.fromkeys(("fsdp", "fsdp2"), TRANSFORMERS),
                    "megatron": Implied(says="Megatron-LM", profile="megatron"),
                }
            ),
            choices=("fsdp", "fsdp2", "megatron"),
            role="trainer",
        ),
        switch("trainer.bf16", default=True, on=precision("bf16"), off=precision("fp32"), role="trainer"),
        tensor_ranks(f"{_POLICY}tensor_model_parallel_size", role="trainer"),
        expert_ranks(f"{_POLICY}expert_model_parallel_size", role="trainer"),
        megatron_rules.expert_cut(_POLICY),
        word(f"{_POLICY}moe_token_dispatcher_type", default="alltoall", implies=words(DISPATCHERS), role="trainer"),
        word(
            f"{_POLICY}moe_router_dtype",
            default="fp32",
            implies=lambda value: Implied(
                says=f"router logits in {value}, unless transformer_config_kwargs says other"
            ),
            choices=tuple(ROUTER_DTYPES),
            role="trainer",
        ),
        *overrides(_KWARGS),
        stages(f"{_POLICY}pipeline_model_parallel_size", role="trainer"),
        *unstated("skyrl"),
        stages(f"{_ENGINE}pipeline_parallel_size", division="vllm", role="rollout"),
        count(f"{_ENGINE}data_parallel_size", implies=_replicas, role="rollout", quiet=True),
        # The engine comes before the environment, which makes another profile of it.
        word(
            f"{_ENGINE}backend",
            "generator.backend",
            default="vllm",
            implies=words({"vllm": _VLLM, "sglang": Implied(says="SGLang", profile="sglang")}),
            choices=("vllm", "sglang"),
            role="rollout",
        ),
        *of_environment((*servers.VLLM.options, *servers.SGLANG.options)),
        *unstated("megatron", "environment"),
        *(option for option in prefixed(servers.VLLM.options, _INIT) if not option.name.endswith("logprobs_mode")),
        vllm_tensor_ranks(
            f"{_ENGINE}tensor_parallel_size", "generator.inference_engine_tensor_parallel_size", role="rollout"
        ),
        expert_ranks(
            f"{_ENGINE}expert_parallel_size", "generator.inference_engine_expert_parallel_size", role="rollout"
        ),
        word(
            f"{_ENGINE}model_dtype",
            "generator.model_dtype",
            default="bfloat16",
            implies=dtype,
            choices=DTYPES,
            role="rollout",
        ),
        switch(f"{_ENGINE}enforce_eager", "generator.enforce_eager", on=EAGER, off=COMPILED, role="rollout"),
        number("generator.sampling_params.temperature", implies=temperature, role="rollout"),
        logprobs_mode(
            f"{_INIT}logprobs_mode",
            "generator.engine_init_kwargs.logprobs_mode",
            default="processed_logprobs",
            role="rollout",
        ),
    ),
    model=("trainer.policy.model.path",),
    rules=(
        _skyrl_provider,
        megatron_rules.placement(
            _POLICY,
            _KWARGS,
            _skyrl_on_megatron,
            lambda s: _passed_on(s, "moe_token_dispatcher_type"),
        ),
        mbridge.of_megatron_bridge(_KWARGS, _skyrl_on_megatron),
        temperatures(
            "generator.sampling_params.temperature",
            mode=f"{_INIT}logprobs_mode",
            rollout=f"{_ENGINE}backend",
            fsdp=lambda _: False,
        ),
        *(embedded(rule, _INIT, _vllm_of_skyrl) for rule in server_rules.OF_VLLM),
        *(embedded(rule, _INIT, _sglang_of_skyrl) for rule in server_rules.OF_SGLANG),
        server_rules.stored_quantised("rollout"),
    ),
    inactive=_of_skyrl,
    irrelevant=listed("shared", "variables")
    | {f"{_INIT}{name}" for name in servers.VLLM.irrelevant}
    | {"trainer.policy.model.path", "data.", "environment.", "trainer.run_name"},
)
