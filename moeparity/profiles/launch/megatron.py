"""Megatron-LM's own arguments, as `pretrain_gpt.py` takes them; slime and miles, which add SGLang's to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from moeparity.profiles.launch import megatron_rules, megatron_unstated, server_rules
from moeparity.profiles.launch.megatron_config import (
    ATTENTION,
    DISPATCHERS,
    NO_SEQUENCE,
    PERMUTE_FUSED,
    PERMUTE_UNFUSED,
    ROPE_FUSED,
    ROPE_UNFUSED,
    ROUTER_DTYPES,
    SEQUENCE,
    SWIGLU_FUSED,
    SWIGLU_UNFUSED,
    precision,
)
from moeparity.profiles.launch.options import (
    UNKNOWN,
    Implied,
    Option,
    Program,
    Settings,
    embedded,
    number,
    switch,
    word,
    words,
)
from moeparity.profiles.launch.servers import SGLANG
from moeparity.profiles.launch.shared import expert_ranks, tensor_ranks
from moeparity.profiles.launch.trainers import temperature


def _arguments() -> tuple[Option, ...]:
    return (
        tensor_ranks("tensor_model_parallel_size", role="trainer"),
        expert_ranks("expert_model_parallel_size", role="trainer"),
        switch("sequence_parallel", on=SEQUENCE, off=NO_SEQUENCE, role="trainer"),
        word(
            "moe_router_dtype",
            default="none",
            implies=words(ROUTER_DTYPES),
            choices=tuple(ROUTER_DTYPES),
            role="trainer",
        ),
        switch("moe_permute_fusion", on=PERMUTE_FUSED, off=PERMUTE_UNFUSED, role="trainer"),
        switch("no_rope_fusion", on=ROPE_UNFUSED, off=ROPE_FUSED, role="trainer"),
        switch("no_bias_swiglu_fusion", on=SWIGLU_UNFUSED, off=SWIGLU_FUSED, role="trainer"),
        word("moe_token_dispatcher_type", default="allgather", implies=words(DISPATCHERS), role="trainer"),
        word("attention_backend", default="auto", implies=words(ATTENTION, UNKNOWN), role="trainer"),
        switch(
            "deterministic_mode",
            on=Implied(says="deterministic kernels", profile="megatron-deterministic"),
            off=Implied(says="not deterministic"),
            role="trainer",
        ),
    )


_PLACED = megatron_rules.placement(
    "",
    "",
    lambda s: s.values.get("train_backend", "megatron") == "megatron",
    lambda s: str(s["moe_token_dispatcher_type"]),
)
"""Which of Megatron-LM's dispatchers make partial sums."""


def _fields() -> tuple[Option, ...]:
    """Arguments of no profile, but for those that are read above."""
    names = {name for option in _arguments() for name in option.names} | {"fp16", "bf16"}
    return tuple(option for option in megatron_unstated.fields("") if not names & {*option.names})


def _sglang(settings: Settings) -> Mapping[str, Any]:
    return {"tp_size": settings["rollout_num_gpus_per_engine"]}


MEGATRON = Program(
    name="megatron",
    engine="Megatron-LM",
    version="d98e8a64dd",
    source="megatron/training/arguments.py",
    start={"trainer": "megatron"},
    options=(
        switch("bf16", on=precision("bf16"), off=precision("fp32"), role="trainer"),
        switch("fp16", on=precision("fp16"), off=Implied(says="as --bf16 says"), role="trainer"),
        *_arguments(),
        *_fields(),
    ),
    rules=(_PLACED,),
    irrelevant=megatron_unstated.FIELDS,
)


def _ranks(implies: Callable[[Any], Implied]) -> Callable[[Any], Implied]:
    """SGLang's tensor ranks, of which slime takes as many as an engine has GPUs."""
    return lambda value: replace(implies(value), says=f"SGLang's tp_size: {implies(value).says}")


def _rollout() -> tuple[Option, ...]:
    """SGLang's options under `--sglang-`; its number of tensor ranks is slime's own argument."""
    options = []
    for option in SGLANG.options:
        if option.name == "tp_size":
            options.append(
                replace(option, names=("rollout_num_gpus_per_engine",), implies=_ranks(option.implies), role="rollout")
            )
        elif option.environment:
            options.append(replace(option, role="rollout"))
        else:
            options.append(replace(option, names=tuple(f"sglang_{name}" for name in option.names), role="rollout"))
    return tuple(options)


SLIME = Program(
    name="slime",
    engine="slime or miles",
    version="128cb0e767",
    source="slime/backends/sglang_utils/arguments.py, Megatron-LM's and SGLang's arguments",
    start={"trainer": "megatron", "rollout": "sglang"},
    options=(
        word(
            "train_backend",
            default="megatron",
            implies=words({"megatron": Implied(says="Megatron-LM, in bf16", dtype="bf16")}, UNKNOWN),
            choices=("megatron",),
            role="trainer",
        ),
        switch("fp16", on=precision("fp16"), off=Implied(says="bf16"), role="trainer"),
        *_arguments(),
        number("rollout_temperature", implies=temperature, role="rollout"),
        *_fields(),
        *_rollout(),
    ),
    model=("hf_checkpoint",),
    rules=(
        _PLACED,
        *(embedded(rule, "sglang_", "rollout", _sglang) for rule in SGLANG.rules[:2]),
        server_rules.stored_quantised("rollout"),
    ),
    irrelevant=megatron_unstated.FIELDS | {f"sglang_{name}" for name in SGLANG.irrelevant} | {"hf_checkpoint"},
)
