"""NeMo-RL as launched, a trainer and a rollout: read from NeMo-RL 7ea279abfb."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from moeparity.profiles.launch import (
    megatron_rules,
    server_rules,
    servers,
)
from moeparity.profiles.launch.knowledge import listed, unstated
from moeparity.profiles.launch.options import (
    Decision,
    Implied,
    LaunchSettings,
    Option,
    Program,
    count,
    embedded,
    idle_environment,
    number,
    of_environment,
    prefixed,
    switch,
    word,
)
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


_GENERATION_SOURCE = (
    "NeMo-RL, nemo_rl/models/generation/megatron/megatron_generation.py:44-53, config.py:75-131 "
    "dedicated_inference_megatron_cfg"
)
_SGLANG_SOURCE = "NeMo-RL, nemo_rl/models/generation/sglang/sglang_generation.py: gpus_per_server"
_VLLM_CFG, _VLLM_KWARGS_OF_NEMO = "policy.generation.vllm_cfg.", "policy.generation.vllm_kwargs."
_DTENSOR_CFG, _MEGATRON_CFG = "policy.dtensor_cfg.", "policy.megatron_cfg."
_GENERATED, _STAGES = "policy.generation.mcore_generation_config.", "pipeline_model_parallel_size"
_DEDICATES = tuple(
    f"{_MEGATRON_CFG}{name}"
    for name in (
        *("tensor_model_parallel_size", _STAGES, "expert_model_parallel_size"),
        *("expert_tensor_parallel_size", "context_parallel_size", "transformer_impl"),
    )
)
"""Fields in which generation on the trainer's GPUs must differ from the trainer to have a model of its own."""
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
    *unstated("megatron", "fields", below=_MEGATRON_CFG),
)


_SGLANG_CFG, _TRTLLM_CFG = "policy.generation.sglang_cfg.", "policy.generation.trtllm_cfg."
_GPUS = f"{_SGLANG_CFG}gpus_per_server"


def _rank_count(value: Any) -> Implied:
    return Implied(says=f"{value} ranks of one server: its tensor ranks, over its stages")


def _precision(value: Any) -> Implied:
    """The dtype of TensorRT-LLM's weights; what is none of torch's 16 or 32 bits quantises them."""
    implied = dtype(value)
    quantises = implied.dtype is None and str(value) != "auto"
    return replace(implied, warns=f"weights and activations in {value}" if quantises else "")


_NEMO_RL_OTHERS = (
    count(_GPUS, implies=_rank_count, role="rollout", quiet=True),
    replace(tensor_ranks(f"{_TRTLLM_CFG}tensor_parallel_size", role="rollout"), quiet=True),
    stages(f"{_TRTLLM_CFG}pipeline_parallel_size", role="rollout"),
    replace(expert_ranks(f"{_TRTLLM_CFG}moe_expert_parallel_size", role="rollout"), quiet=True),
    replace(word(f"{_TRTLLM_CFG}precision", default="auto", implies=_precision, role="rollout"), quiet=True),
    *unstated("nemo-rl", "trtllm"),
    *prefixed(servers.SGLANG.options, _SGLANG_CFG),
)


def _sglang_of_nemo_rl(settings: LaunchSettings) -> Mapping[str, Any]:
    if settings["policy.generation.backend"] != "sglang":
        return {}
    return {"tp_size": max(settings.ranks(_GPUS) // settings.ranks(f"{_SGLANG_CFG}pp_size"), 1)}


def _ranks_of_sglang(settings: LaunchSettings) -> Iterator[Decision]:
    ranks = _sglang_of_nemo_rl(settings).get("tp_size", 1)
    if ranks > 1:
        implied = Implied(says=f"SGLang's tp_size is {ranks}", placement={"tensor": ranks})
        yield Decision(role="rollout", implied=implied, source=_SGLANG_SOURCE)


def _generation_options() -> Iterator[Option]:
    """Megatron-LM's options for generation alone: those of the trainer, below a key of their own."""
    for option in (*_NEMO_RL_MEGATRON, replace(stages(f"{_MEGATRON_CFG}{_STAGES}"), role="trainer")):
        if option.name != f"{_MEGATRON_CFG}enabled":
            names = tuple(f"{_GENERATED}{name.removeprefix(_MEGATRON_CFG)}" for name in option.names)
            yield replace(option, names=names, role="rollout", quiet=True)


_OF_ITS_MODEL = frozenset(option.name for option in _generation_options()) - {f"{_GENERATED}cuda_graph_impl"}
"""What generation sets of its model; the rest is for its engine, whosever model it runs."""


def _generation(settings: LaunchSettings) -> Mapping[str, Any]:
    """Settings that generation puts over the trainer's `megatron_cfg`, under the names used there. They count only if
    generation has a model of its own: if it runs on other GPUs than the trainer, or on the same ones with other ranks
    or another implementation.
    """
    over = {
        f"{_MEGATRON_CFG}{name.removeprefix(_GENERATED)}": settings[name]
        for name in sorted(settings.stated & _OF_ITS_MODEL)
    }
    differs = any(over.get(name, settings.values.get(name)) != settings.values.get(name) for name in _DEDICATES)
    cut = settings[f"{_MEGATRON_CFG}context_parallel_size"] not in ("none", 1, "1")
    apart = settings["policy.generation.colocated.enabled"] is not True
    generates = settings["policy.generation.backend"] == "megatron"
    return over if generates and (differs or cut or apart) else {}


def _generates(settings: LaunchSettings) -> Iterator[Decision]:
    if settings["policy.generation.backend"] == "megatron":
        over = ", ".join(name.removeprefix(_MEGATRON_CFG) for name in _generation(settings))
        says = f"Megatron-LM generates with a model of its own: {over} of mcore_generation_config over megatron_cfg"
        shared = "Megatron-LM generates with the trainer's model and settings"
        yield Decision(role="rollout", implied=Implied(says=says if over else shared), source=_GENERATION_SOURCE)


def _generator(settings: LaunchSettings) -> Mapping[str, tuple[str, LaunchSettings]]:
    """Megatron-LM that generates is the trainer's model, or one with settings over the trainer's."""
    if settings["policy.generation.backend"] != "megatron":
        return {}
    over = _generation(settings)
    merged = replace(settings, values={**settings.values, **over}, stated=settings.stated | {*over})
    return {"rollout": ("trainer", merged if over else settings)}


def _of_nemo_rl(settings: LaunchSettings) -> Mapping[str, str]:
    """Options of the policy and the backend that NeMo-RL does not start; what switches them on is none of these."""
    megatron = settings[f"{_MEGATRON_CFG}enabled"] is True
    unused, policy = (_DTENSOR_CFG, "Megatron-LM") if megatron else (_MEGATRON_CFG, "DTensor")
    names = {name for name in settings.values if name.startswith(unused) and name != f"{unused}enabled"}
    inactive = dict.fromkeys(names, f"the policy is {policy}")
    backend = settings["policy.generation.backend"]
    if backend != "vllm":
        inactive |= dict.fromkeys((_VLLM_CFG, _VLLM_KWARGS_OF_NEMO), f"the backend is {backend}")
    for name, prefix in (("sglang", _SGLANG_CFG), ("trtllm", _TRTLLM_CFG), ("megatron", _GENERATED)):
        inactive |= {} if backend == name else {prefix: f"the backend is {backend}"}
    if backend == "megatron" and not _generation(settings):
        inactive |= dict.fromkeys(_OF_ITS_MODEL, "generation shares the trainer's model, whose ranks it has")
    for key, thing in (("fp8_cfg", "fp8"), ("peft", "the adapter")):
        if not settings.is_on(f"{_MEGATRON_CFG}{key}.enabled"):
            inactive[f"{_MEGATRON_CFG}{key}."] = f"{thing} is off"
    if not settings.is_on(f"{_DTENSOR_CFG}lora_cfg.enabled"):
        inactive[f"{_DTENSOR_CFG}lora_cfg."] = "the adapter is off"
    for server in (servers.VLLM, servers.SGLANG):
        if backend != server.name:
            inactive |= idle_environment(server.options, f"the backend is {backend}")
    inactive |= megatron_rules.idle(_MEGATRON_CFG)(settings) if megatron else {}
    inactive |= server_rules.idle_of_sglang(_SGLANG_CFG)(settings) if backend == "sglang" else {}
    if "fp8" not in str(settings[f"{_VLLM_CFG}precision"]):
        inactive |= dict.fromkeys(_OF_FP8, "the precision is not fp8")
    if backend != "megatron":
        inactive |= {"policy.generation.mcore_generation_config.": f"the backend is {backend}"}
    return inactive


def _variables(values: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    """The keys whose variables reach the workers of the policy that runs, and of vLLM."""
    on_megatron = str(values.get(f"{_MEGATRON_CFG}enabled")).lower() in ("true", "1")
    policy = _MEGATRON_CFG if on_megatron else _DTENSOR_CFG
    on_vllm = str(values.get("policy.generation.backend", "vllm")) == "vllm"
    return {f"{policy}env_vars.": ("trainer",), **({f"{_VLLM_CFG}env_vars.": ("rollout",)} if on_vllm else {})}


def _vllm_of_nemo_rl(settings: LaunchSettings) -> Mapping[str, Any]:
    if settings["policy.generation.backend"] != "vllm":
        return {}
    tensor, expert = (settings.ranks(f"{_VLLM_CFG}{axis}_parallel_size") for axis in ("tensor", "expert"))
    precision = str(settings[f"{_VLLM_CFG}precision"])
    return {
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": settings[f"{_VLLM_CFG}pipeline_parallel_size"],
        "data_parallel_size": max(expert // tensor, 1),
        "enable_expert_parallel": expert > 1,
        "enforce_eager": settings[f"{_VLLM_CFG}enforce_eager"],
        **({"quantization": precision} if "fp" in precision and not precision.endswith("16") else {}),
    }


_OF_FP8 = tuple(
    f"{_VLLM_CFG}{name}"
    for name in (
        *("is_mx", "use_deep_gemm", "quantization_ignored_layer_kws", "num_first_layers_in_bf16"),
        *("num_last_layers_in_bf16", "use_activation_pow2_scale", "pow2_weight_scaling_factors"),
    )
)
"""What only a rollout in fp8 takes."""

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
        *unstated("nemo-rl", "generation", "policy", "fp8", "adapters_of_megatron", "adapters"),
        *prefixed(servers.VLLM.options, _VLLM_KWARGS_OF_NEMO),
        *_NEMO_RL_OTHERS,
        *_generation_options(),
        switch(
            "policy.generation.colocated.enabled",
            default=True,
            on=Implied(says="generation on the trainer's GPUs"),
            off=Implied(says="generation on GPUs of its own"),
            role="rollout",
        ),
        *of_environment((*servers.VLLM.options, *servers.SGLANG.options)),
        *unstated("megatron", "environment"),
    ),
    model=("policy.model_name",),
    rules=(
        megatron_rules.placement(
            _MEGATRON_CFG,
            _MEGATRON_CFG,
            lambda s: s[f"{_MEGATRON_CFG}enabled"] is True,
            lambda s: str(s[f"{_MEGATRON_CFG}moe_token_dispatcher_type"]),
        ),
        megatron_rules.as_described(_MEGATRON_CFG),
        temperatures(
            "policy.generation.temperature",
            mode=f"{_VLLM_CFG}logprobs_mode",
            rollout="policy.generation.backend",
            fsdp=lambda _: False,
        ),
        *(embedded(rule, _VLLM_KWARGS_OF_NEMO, _vllm_of_nemo_rl) for rule in server_rules.OF_VLLM),
        _ranks_of_sglang,
        *(embedded(rule, _SGLANG_CFG, _sglang_of_nemo_rl) for rule in server_rules.OF_SGLANG),
        _generates,
        server_rules.stored_quantised("rollout"),
    ),
    irrelevant=listed("nemo-rl", "irrelevant")
    | {f"{_MEGATRON_CFG}{name}" for name in listed("megatron", "fields")}
    | servers.VLLM.irrelevant
    | {f"{_VLLM_KWARGS_OF_NEMO}{name}" for name in servers.VLLM.irrelevant}
    | {f"{_SGLANG_CFG}{name}" for name in servers.SGLANG.irrelevant},
    inactive=_of_nemo_rl,
    mirrors=_generator,
    variables=_variables,
)
