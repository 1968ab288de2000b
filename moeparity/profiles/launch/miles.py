"""miles as launched: as slime, of which it is a fork, where it is known by an option that slime does not have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from moeparity.profiles.launch import megatron_rules, megatron_stages, server_rules, slime
from moeparity.profiles.launch.knowledge import listed, unstated
from moeparity.profiles.launch.options import Decision, Implied, LaunchSettings, embedded, switch, word, words
from moeparity.profiles.launch.reading.grammar import Grammar
from moeparity.profiles.launch.servers import SGLANG
from moeparity.profiles.launch.trainers import TRANSFORMERS

_SOURCE = "miles 31f1ca961a, miles/backends/sglang_utils/arguments.py validate_args"
ONLY = listed("miles", "switches", "several", "others")
"""Options of miles that slime does not have."""
_UNSTATED = unstated("miles")
_BACKENDS = {"megatron": Implied(says="Megatron-LM, in bf16", dtype="bf16"), "fsdp": TRANSFORMERS}
_OWN = (
    word("train_backend", default="megatron", implies=words(_BACKENDS), choices=tuple(_BACKENDS), role="trainer"),
    word(
        "attn_implementation",
        default="unset",
        implies=words({"eager": Implied(says="eager attention", profile="hf-eager")}, "{}: not stated in a profile"),
        role="trainer",
    ),
    switch(
        "true_on_policy_mode",
        on=Implied(says="both engines' kernels are to be the same", warns="which kernels the trainer takes"),
        off=Implied(says="each engine's own kernels"),
        role="trainer",
    ),
)


def is_miles(names: Collection[str]) -> bool:
    """Whether options of these names, or `name=value`, are miles's, and not slime's."""
    if "hf_checkpoint" in names and not {"attn_implementation", "train_backend=fsdp"}.isdisjoint(names):
        return True
    return "rollout_batch_size" in names and not ONLY.isdisjoint(names)


def _sglang(settings: LaunchSettings) -> Mapping[str, Any]:
    """SGLang's ranks: all GPUs of an engine, whatever else is said."""
    gpus = settings.ranks("rollout_num_gpus_per_engine")
    return {"tp_size": gpus, "nnodes": max(gpus // settings.ranks("num_gpus_per_node"), 1)}


def _deterministic(settings: LaunchSettings) -> Iterator[Decision]:
    """What makes SGLang's inference deterministic without its own switch."""
    (deterministic,) = [option for option in SGLANG.options if option.name == "enable_deterministic_inference"]
    if settings["true_on_policy_mode"] is True or settings["recompute_logprobs_via_prefill"] is True:
        yield Decision(role="rollout", implied=deterministic.implies(True), source=_SOURCE)


def _grammar() -> Grammar:
    """slime's, where nothing is shortened, with servers for evaluation."""
    slime_grammar = slime.SLIME.grammar
    assert slime_grammar is not None
    read = {name for option in (*_OWN, *_UNSTATED) for name in option.names} | {"use_miles_router"}
    return replace(
        slime_grammar,
        switches=slime_grammar.switches | listed("miles", "switches") | _of_evaluation(slime_grammar.switches),
        several=slime_grammar.several | listed("miles", "several") | _of_evaluation(slime_grammar.several),
        spellings={**slime_grammar.spellings, **{f"--{name.replace('_', '-')}": (name, True) for name in sorted(read)}},
        shortened=(),
    )


def _of_evaluation(names: frozenset[str]) -> frozenset[str]:
    """SGLang's options under `--eval-sglang-`."""
    return frozenset(f"eval_{name}" for name in names if name.startswith("sglang_"))


MILES = replace(
    slime.SLIME,
    name="miles",
    engine="miles",
    version="31f1ca961a",
    source="miles/utils/arguments.py, miles/backends/*/arguments.py, Megatron-LM's and SGLang's arguments",
    options=(*(option for option in slime.SLIME.options if option.name != "train_backend"), *_OWN, *_UNSTATED),
    rules=(
        slime.placement(),
        megatron_rules.as_described(""),
        megatron_stages.outer_stages,
        _deterministic,
        slime.over_temperature,
        *(embedded(rule, "sglang_", _sglang) for rule in server_rules.OF_SGLANG),
        server_rules.stored_quantised("rollout"),
    ),
    irrelevant=slime.SLIME.irrelevant | {"use_miles_router", "eval_sglang_"},
    grammar=_grammar(),
)
