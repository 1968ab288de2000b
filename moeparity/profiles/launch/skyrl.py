"""SkyRL as launched: a trainer and the engine that it samples with."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.profiles.launch import megatron_rules
from moeparity.profiles.launch.megatron_config import DISPATCHERS, ROUTER_DTYPES, overrides, precision
from moeparity.profiles.launch.options import Decision, Implied, Program, Settings, number, switch, word, words
from moeparity.profiles.launch.shared import (
    COMPILED,
    DTYPES,
    EAGER,
    dtype,
    expert_ranks,
    logprobs_mode,
    tensor_ranks,
    vllm_tensor_ranks,
)
from moeparity.profiles.launch.trainers import TRANSFORMERS, temperature

_VLLM = Implied(says="vLLM", profile="vllm")
_POLICY, _ENGINE = "trainer.policy.megatron_config.", "generator.inference_engine."
_KWARGS = f"{_POLICY}transformer_config_kwargs."
_SKYRL_SOURCE = "SkyRL a9564572e, skyrl/backends/skyrl_train/workers/megatron/megatron_worker.py:470-494"


def _skyrl_on_megatron(settings: Settings) -> bool:
    return bool(settings["trainer.strategy"] == "megatron")


def _passed_on(settings: Settings, name: str) -> str:
    """A field that SkyRL has by itself: what transformer_config_kwargs says goes before."""
    return str(settings[f"{_KWARGS}{name}" if f"{_KWARGS}{name}" in settings.stated else f"{_POLICY}{name}"])


def _skyrl_provider(settings: Settings) -> Iterator[Decision]:
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
        word(
            f"{_ENGINE}backend",
            "generator.backend",
            default="vllm",
            implies=words({"vllm": _VLLM, "sglang": Implied(says="SGLang", profile="sglang")}),
            choices=("vllm", "sglang"),
            role="rollout",
        ),
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
            f"{_ENGINE}engine_init_kwargs.logprobs_mode",
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
            _POLICY,
            _skyrl_on_megatron,
            lambda s: _passed_on(s, "moe_token_dispatcher_type"),
        ),
    ),
)
