"""Megatron-LM's own arguments, as `pretrain_gpt.py` takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from moeparity.profiles.launch import megatron_rules, megatron_stages
from moeparity.profiles.launch.knowledge import listed, unstated
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
from moeparity.profiles.launch.options import UNKNOWN, Implied, LaunchSettings, Option, Program, switch, word, words
from moeparity.profiles.launch.reading.grammar import of_parser
from moeparity.profiles.launch.shared import expert_ranks, stages, tensor_ranks


def arguments(dispatcher: str, dispatchers: Mapping[str, Implied]) -> tuple[Option, ...]:
    """What profiles speak of; `dispatcher` is the one where nothing is set."""
    return (
        tensor_ranks("tensor_model_parallel_size", role="trainer"),
        stages("pipeline_model_parallel_size", role="trainer"),
        *megatron_stages.layers_of_outer_stages(),
        expert_ranks("expert_model_parallel_size", role="trainer"),
        megatron_rules.expert_cut(""),
        megatron_rules.score_function(""),
        megatron_rules.described(""),
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
        word(
            "moe_token_dispatcher_type",
            default=dispatcher,
            implies=words(dispatchers),
            choices=tuple(DISPATCHERS),
            role="trainer",
        ),
        replace(megatron_rules.flex_backend(""), quiet=True),
        word("attention_backend", default="auto", implies=words(ATTENTION, UNKNOWN), role="trainer"),
        switch(
            "deterministic_mode",
            on=Implied(says="deterministic kernels", profile="megatron-deterministic"),
            off=Implied(says="not deterministic"),
            role="trainer",
        ),
    )


def of_no_profile() -> tuple[Option, ...]:
    """Arguments of no profile, but for those that are read above."""
    names = {name for option in arguments("", {}) for name in option.names} | {"fp16", "bf16"}
    return tuple(option for option in unstated("megatron") if not names & {*option.names})


def dispatcher_of(settings: LaunchSettings) -> str:
    """Which dispatcher sends the rows."""
    return str(settings["moe_token_dispatcher_type"])


_OWN = (
    switch("bf16", on=precision("bf16"), off=precision("fp32"), role="trainer"),
    switch("fp16", on=precision("fp16"), off=Implied(says="as --bf16 says"), role="trainer"),
    *arguments("allgather", DISPATCHERS),
    *of_no_profile(),
)
IRRELEVANT = listed("megatron", "fields", "training") - {
    "pipeline_model_parallel_size",
    "pipeline_model_parallel_layout",
}
"""Arguments that change no log-probability."""


def synonyms(options: Iterable[Option], irrelevant: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """What a command line may hold: names of one option together."""
    return (*(option.names for option in options if not option.environment), *((name,) for name in sorted(irrelevant)))


MEGATRON = Program(
    name="megatron",
    engine="Megatron-LM",
    version="d98e8a64dd",
    source="megatron/training/arguments.py",
    start={"trainer": "megatron"},
    options=_OWN,
    rules=(
        megatron_rules.placement("", "", lambda _: True, dispatcher_of),
        megatron_rules.as_described(""),
        megatron_stages.outer_stages,
    ),
    irrelevant=IRRELEVANT,
    inactive=megatron_rules.idle(""),
    grammar=of_parser(
        synonyms(_OWN, IRRELEVANT),
        switches=listed("megatron", "switches", "toggles"),
        toggles=frozenset(),
        several=listed("megatron", "several"),
        shortened=(),
        underscores=False,
    ),
)
