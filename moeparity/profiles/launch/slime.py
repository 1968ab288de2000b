"""slime and miles as launched: Megatron-LM's arguments, SGLang's under `--sglang-`, and their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from moeparity.profiles.launch import (
    megatron,
    megatron_rules,
    megatron_stages,
    server_rules,
)
from moeparity.profiles.launch.knowledge import listed, unstated
from moeparity.profiles.launch.megatron_config import DISPATCHERS, precision
from moeparity.profiles.launch.options import (
    UNKNOWN,
    Decision,
    Implied,
    LaunchSettings,
    Option,
    Program,
    Rule,
    count,
    embedded,
    number,
    prefixed,
    switch,
    word,
    words,
)
from moeparity.profiles.launch.reading.grammar import Grammar, of_parser
from moeparity.profiles.launch.servers import SGLANG
from moeparity.profiles.launch.shared import ORIGINAL
from moeparity.profiles.launch.trainers import divided, temperature

_SOURCE = "slime 624b824a89, slime/backends/sglang_utils/arguments.py validate_args"
_TAKEN = listed("slime", "taken")
"""SGLang's options that slime sets itself, and passes over where they are given."""
_DISPATCHERS = {
    **DISPATCHERS,
    "allgather": replace(DISPATCHERS["alltoall"], says=f"slime takes alltoall: {DISPATCHERS['alltoall'].says}"),
}


def _ranks(implies: Callable[[Any], Implied]) -> Callable[[Any], Implied]:
    """SGLang's tensor ranks, of which slime takes as many as an engine has GPUs."""
    return lambda value: replace(implies(value), says=f"SGLang's tp_size: {implies(value).says}")


def _rollout() -> Iterator[Option]:
    """SGLang's options under `--sglang-`; its number of tensor ranks is slime's own argument."""
    for option in SGLANG.options:
        if option.name == "tp_size":
            ranks = _ranks(option.implies)
            yield replace(option, names=("rollout_num_gpus_per_engine",), implies=ranks, role="rollout")
        elif option.environment:
            yield replace(option, role="rollout")
        elif option.name not in _TAKEN:
            (passed,) = prefixed([option], "sglang_")
            yield replace(passed, quiet=option.quiet)
    nodes = Implied(says="how many of an engine's ranks one node holds")
    yield count("num_gpus_per_node", implies=lambda _: nodes, default=8, role="rollout", quiet=True)


def _tensor(settings: LaunchSettings) -> int:
    return max(settings.ranks("rollout_num_gpus_per_engine") // settings.ranks("sglang_pp_size"), 1)


def _sglang(settings: LaunchSettings) -> Mapping[str, Any]:
    nodes = settings.ranks("rollout_num_gpus_per_engine") // settings.ranks("num_gpus_per_node")
    return {"tp_size": _tensor(settings), "nnodes": max(nodes, 1)}


def _staged(settings: LaunchSettings) -> Iterator[Decision]:
    """How many of an engine's ranks are tensor parallel, where it has pipeline stages."""
    stages = settings.ranks("sglang_pp_size")
    if stages > 1:
        says = f"tensor parallel over {_tensor(settings)} ranks: those of an engine over {stages} pipeline stages"
        yield Decision(
            role="rollout", implied=Implied(says=says, placement={"tensor": _tensor(settings)}), source=_SOURCE
        )


def over_temperature(settings: LaunchSettings) -> Iterator[Decision]:
    """The temperature, which the trainer divides by, and SGLang where it does not return the original ones."""
    return divided(settings, "rollout_temperature", rollout=settings[ORIGINAL] is False)


def _sent(settings: LaunchSettings) -> str:
    dispatcher = megatron.dispatcher_of(settings)
    return "alltoall" if dispatcher == "allgather" else dispatcher


def placement() -> Rule:
    """Over how many ranks the trainer's experts lie, and which dispatcher sends to them."""
    return megatron_rules.placement("", "", lambda _: True, _sent)


_OPTIONS = (
    word(
        "train_backend",
        default="megatron",
        implies=words({"megatron": Implied(says="Megatron-LM, in bf16", dtype="bf16")}, UNKNOWN),
        choices=("megatron",),
        role="trainer",
    ),
    switch("fp16", on=precision("fp16"), off=Implied(says="bf16"), role="trainer"),
    *megatron.arguments("alltoall", _DISPATCHERS),
    number("rollout_temperature", implies=temperature, role="rollout"),
    *megatron.of_no_profile(),
    *unstated("slime"),
    *_rollout(),
)
_OF_SGLANG = frozenset(f"sglang_{name}" for name in SGLANG.irrelevant - _TAKEN) - {
    "sglang_pp_size",
    "sglang_pipeline_parallel_size",
}


def _of_sglang(*lists: str) -> frozenset[str]:
    return frozenset(f"sglang_{name}" for name in listed("sglang", *lists) - _TAKEN)


def _grammar() -> Grammar:
    """Its parsers: Megatron-LM's, which takes no option shortened, and SGLang's, which does."""
    shortest = _OF_SGLANG - _of_sglang("elsewhere")
    return of_parser(
        megatron.synonyms(_OPTIONS, megatron.IRRELEVANT | shortest | {"hf_checkpoint"}),
        switches=listed("slime", "switches") | listed("megatron", "switches", "toggles") | _of_sglang("switches"),
        toggles=_of_sglang("toggles"),
        several=listed("slime", "several") | listed("megatron", "several") | _of_sglang("several", "several_gone"),
        shortened=("--sglang-",),
        underscores=False,
    )


def _of_slime(settings: LaunchSettings) -> Mapping[str, str]:
    """Options that Megatron-LM or SGLang passes over, for what else is set."""
    return {**megatron_rules.idle("")(settings), **server_rules.idle_of_sglang("sglang_")(settings)}


SLIME = Program(
    name="slime",
    engine="slime or miles",
    version="624b824a89",
    source="slime/utils/arguments.py, slime/backends/*/arguments.py, Megatron-LM's and SGLang's arguments",
    start={"trainer": "megatron", "rollout": "sglang"},
    options=_OPTIONS,
    model=("hf_checkpoint",),
    rules=(
        placement(),
        megatron_rules.as_described(""),
        megatron_stages.outer_stages,
        _staged,
        over_temperature,
        *(embedded(rule, "sglang_", _sglang) for rule in server_rules.OF_SGLANG),
        server_rules.stored_quantised("rollout"),
    ),
    irrelevant=megatron.IRRELEVANT | _OF_SGLANG | {"hf_checkpoint"},
    inactive=_of_slime,
    grammar=_grammar(),
)
