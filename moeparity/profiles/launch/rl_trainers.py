"""OpenRLHF and TRL as launched: a trainer and the engine that it samples with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from moeparity.profiles.launch import server_rules, servers
from moeparity.profiles.launch.knowledge import listed, unstated
from moeparity.profiles.launch.megatron_config import precision
from moeparity.profiles.launch.options import (
    Decision,
    Implied,
    LaunchSettings,
    Option,
    Program,
    defaults,
    embedded,
    idle_environment,
    number,
    of_environment,
    switch,
    word,
    words,
)
from moeparity.profiles.launch.shared import (
    COMPILED,
    DTYPES,
    EAGER,
    dtype,
    tensor_ranks,
    vllm_tensor_ranks,
)
from moeparity.profiles.launch.trainers import divided, temperature

_NOT_STATED = "{}: not stated in a profile"


def _vllm_of_openrlhf(settings: LaunchSettings) -> Mapping[str, Any]:
    """What OpenRLHF 0.11.2 starts vLLM with: openrlhf/trainer/ray/vllm_engine.py create_vllm_engines."""
    return {
        **defaults(servers.VLLM.options),
        "tensor_parallel_size": settings["vllm.tensor_parallel_size"],
        "enforce_eager": settings["vllm.enforce_eager"],
        "dtype": "bfloat16",
    }


OPENRLHF = Program(
    name="openrlhf",
    engine="OpenRLHF",
    version="0.11.2",
    source="openrlhf/cli/train_ppo_ray.py",
    start={"trainer": "hf-default", "rollout": "vllm"},
    options=(
        switch("bf16", on=precision("bf16"), off=Implied(says="as param_dtype says"), role="trainer", quiet=True),
        word(
            "ds.param_dtype",
            "param_dtype",
            default="bf16",
            implies=words({name: precision(name) for name in ("bf16", "fp16", "fp32")}),
            choices=("bf16", "fp16", "fp32"),
            role="trainer",
        ),
        word(
            "ds.attn_implementation",
            "attn_implementation",
            default="flash_attention_2",
            implies=words({"eager": Implied(says="eager attention", profile="hf-eager")}, _NOT_STATED),
            role="trainer",
        ),
        tensor_ranks("ds.tensor_parallel_size", "ds_tensor_parallel_size", role="trainer"),
        vllm_tensor_ranks("vllm.tensor_parallel_size", "vllm_tensor_parallel_size", role="rollout"),
        switch("vllm.enforce_eager", "enforce_eager", on=EAGER, off=COMPILED, role="rollout"),
        *of_environment(servers.VLLM.options),
        number("rollout.temperature", "temperature", implies=temperature, role="rollout"),
        *unstated("openrlhf"),
    ),
    model=("actor.model_name_or_path", "pretrain"),
    rules=tuple(embedded(rule, "vllm.", _vllm_of_openrlhf) for rule in server_rules.OF_VLLM),
    irrelevant=listed("shared", "variables"),
)


def _weights(value: Any) -> Implied:
    """The dtype that TRL loads weights in: fp32 unless it is told."""
    return replace(dtype(value), says=f"weights are loaded in {'their own dtype' if value == 'auto' else value}")


_LOADED = "model_init_kwargs"
_READ = ("dtype", "torch_dtype", "attn_implementation")
"""What the model is loaded with that is an option, too."""


def _loaded(value: Any) -> Implied:
    """What the model is loaded with beside its dtype and attention."""
    mapping = value if isinstance(value, Mapping) else {}
    others = sorted(str(key) for key in mapping if key not in _READ)
    if not mapping and str(value) not in ("none", "None", "{}"):
        others = ["what it holds"]
    if others:
        return Implied(says="no shipped profile states it", warns=f"the model is loaded with {', '.join(others)}")
    return Implied(says="its dtype and attention", shows=False)


def _over_temperature(settings: LaunchSettings) -> Iterator[Decision]:
    """The temperature, which TRL divides by on both sides: vLLM's log-probabilities are of what is sampled from."""
    return divided(settings, "temperature", rollout=settings["use_vllm"] is True)


def _autocast(settings: LaunchSettings) -> Iterator[Decision]:
    """What TRL's trainers run in: weights in fp32 under autocast, where neither is set."""
    if settings["bf16"] is True and settings["dtype"] in ("float32", "float"):
        warns = "torch.autocast chooses each op's dtype, and trl-autocast-bf16 has its lists for CPU"
        implied = Implied(says="fp32 weights under autocast to bf16", profile="trl-autocast-bf16", warns=warns)
        yield Decision(
            role="trainer", implied=implied, source="TRL 1.16.0, trl/trainer/base_config.py:108, utils.py:1332"
        )


def _in_process(settings: LaunchSettings) -> bool:
    """Whether vLLM runs in the trainer's process: it then has the trainer's variables."""
    return settings["use_vllm"] is True and settings["vllm_mode"] == "colocate"


def _vllm_of_trl(settings: LaunchSettings) -> Mapping[str, Any]:
    """What TRL 1.16.0 starts vLLM with in its own process: trl/generation/vllm_generation.py:347."""
    if not _in_process(settings):
        return {}
    return {**defaults(servers.VLLM.options), "tensor_parallel_size": settings["vllm_tensor_parallel_size"]}


def _of_trl(settings: LaunchSettings) -> Mapping[str, str]:
    """vLLM's variables where it has a process of its own, or is not started."""
    if _in_process(settings):
        return {}
    reason = "vLLM is a server of its own, with variables of its own" if settings["use_vllm"] is True else "no vLLM"
    return idle_environment(servers.VLLM.options, reason)


_EAGER = {"attention:implementation": "eager", "mla:implementation": "eager"}
_SAMPLED_BY_VLLM = Implied(says="completions by vLLM", profile="vllm")
TRL = Program(
    name="trl",
    engine="TRL",
    version="1.16.0",
    source="trl/trainer/grpo_config.py, model_config.py, base_config.py",
    start={"trainer": "trl", "rollout": "hf-default"},
    options=(
        switch(
            "bf16",
            default=True,
            on=Implied(says="torch.autocast to bf16"),
            off=Implied(says="no autocast to bf16"),
            role="trainer",
        ),
        word(
            *("dtype", "torch_dtype", f"{_LOADED}.dtype", f"{_LOADED}.torch_dtype"),
            default="float32",
            implies=_weights,
            choices=DTYPES,
            role="trainer",
        ),
        word(
            *("attn_implementation", f"{_LOADED}.attn_implementation"),
            default="unset",
            implies=words({"eager": Implied(says="eager attention", sets=_EAGER)}, _NOT_STATED),
            role="trainer",
        ),
        switch(
            "cast_lm_head_to_fp32",
            on=Implied(says="the head in fp32: set lm_head's dtype"),
            off=Implied(says="logits in the model's dtype"),
            role="trainer",
        ),
        switch("use_vllm", on=_SAMPLED_BY_VLLM, off=Implied(says="completions by transformers"), role="rollout"),
        word(
            "vllm_mode",
            default="colocate",
            implies=words(
                {
                    "server": Implied(
                        says="with vLLM: a server of its own (`trl vllm-serve`), whose command line decides"
                    ),
                    "colocate": Implied(says="with vLLM: in the trainer's process"),
                }
            ),
            choices=("server", "colocate"),
            role="rollout",
        ),
        vllm_tensor_ranks("vllm_tensor_parallel_size", role="rollout"),
        *of_environment(servers.VLLM.options),
        number("temperature", implies=temperature, role="rollout"),
        Option(names=(_LOADED,), kind="any", default="none", implies=_loaded, role="trainer", quiet=True),
        *unstated("trl"),
    ),
    model=("model_name_or_path",),
    rules=(
        _autocast,
        _over_temperature,
        *(embedded(rule, "vllm_", _vllm_of_trl) for rule in server_rules.OF_VLLM),
    ),
    inactive=_of_trl,
    irrelevant=listed("shared", "variables"),
)
