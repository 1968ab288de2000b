"""AReaL as launched: the engine that trains and the one that samples, each with its ranks in one word (`fsdp:d4t2`).

Read from AReaL 4aef98d8d, areal/api/cli_args.py and areal/api/alloc_mode.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from moeparity.errors import did_you_mean
from moeparity.errors import listed as listed_words
from moeparity.profiles.launch import mbridge, megatron_rules, server_rules, servers
from moeparity.profiles.launch.knowledge import listed, unstated
from moeparity.profiles.launch.options import (
    NO_PROFILE,
    Decision,
    Implied,
    LaunchSettings,
    Option,
    Program,
    embedded,
    idle_environment,
    number,
    of_environment,
    prefixed,
    switch,
    word,
    words,
)
from moeparity.profiles.launch.shared import ORIGINAL, dtype, placement, vllm_tensor_ranks
from moeparity.profiles.launch.trainers import MEGATRON, TRANSFORMERS, divided_on, temperature

_ACTOR, _MEGATRON, _SGLANG, _VLLM = "actor.", "actor.megatron.", "sglang.", "vllm."
_TRAINS, _SAMPLES = f"{_ACTOR}backend", "rollout.backend"
_ENGINES = {
    "fsdp": TRANSFORMERS,
    "megatron": MEGATRON,
    "archon": Implied(says="AReaL's own classes: no shipped profile speaks of them", profile=NO_PROFILE),
    "sglang": Implied(says="SGLang", profile="sglang"),
    "vllm": Implied(says="vLLM", profile="vllm"),
}
_SPEC = re.compile(r"(?P<engine>[a-z]+)(\[\w+\])?:\(?(attn:(?P<attention>\w+)\|ffn:(?P<experts>\w+)|(?P<all>\w+))\)?")
_DEFAULTS = {
    _SGLANG: {
        "attention_backend": "fa3",
        "chunked_prefill_size": -1,
        "disable_radix_cache": True,
        "dtype": "bfloat16",
    },
    _VLLM: {"dtype": "bfloat16", "enable_prefix_caching": False},
}
"""What AReaL hands a server where nothing is set, otherwise than its own defaults, of the options that are read."""
_HANDED_TO_NOBODY = {
    "moe_router_dtype": ("null", "None", "none"),
    "moe_permute_fusion": ("False", "false"),
    "moe_token_dispatcher_type": ("alltoall",),
    "moe_enable_deepep": ("False", "false"),
    "moe_shared_expert_overlap": ("False", "false"),
}
"""Fields of MegatronEngineConfig that no line of AReaL reads, since the bridge goes by the model's class, each with the
values that are what runs anyway.
"""
_BRIDGES = {name: Implied(says=f"{name} builds Megatron-LM's configuration") for name in ("mbridge", "megatron-bridge")}
_REGISTRY = "AReaL 4aef98d8d, areal/models/mcore/registry.py, areal/engine/megatron_engine.py _build_hf_mcore_bridge"
_ALLOCATION = "AReaL 4aef98d8d, areal/api/alloc_mode.py"


@dataclass(frozen=True, slots=True)
class _Allocation:
    """An engine and over how many ranks it lies: by `t`, `p`, `c` and `e`, of experts apart from the rest."""

    engine: str
    ranks: Mapping[str, int]
    of_experts: Mapping[str, int]


def _allocation(spec: Any, *engines: str) -> _Allocation | None:
    """What a word such as `megatron:(attn:d4t2|ffn:d2e4)` says; None where it says nothing of one of these engines."""
    match = _SPEC.fullmatch(str(spec).replace(" ", ""))
    if match is None or match["engine"] not in engines:
        return None
    ranks = _dimensions(match["all"] or match["attention"])
    of_experts = _dimensions(match["all"] or match["experts"])
    # Without sections of their own, experts are never cut: expert_tensor_parallel_size is 1 there.
    return _Allocation(match["engine"], ranks, of_experts if match["experts"] else {**of_experts, "t": 1})


def _dimensions(text: str) -> dict[str, int]:
    return {letter: int(digits) for letter, digits in re.findall(r"([a-z])(\d+)", text)}


def _trainer(settings: LaunchSettings) -> _Allocation | None:
    return _allocation(settings[_TRAINS], "fsdp", "megatron", "archon")


def _rollout(settings: LaunchSettings) -> _Allocation | None:
    return _allocation(settings[_SAMPLES], "sglang", "vllm")


def _engine(does: str, *engines: str) -> Callable[[Any], Implied]:
    """What a word implies for the side that does it: which engine that is."""

    def implies(value: Any) -> Implied:
        allocation = _allocation(value, *engines)
        if allocation is None:
            near = did_you_mean(str(value).partition(":")[0], engines)
            warns = f"expected one of {listed_words(engines)}, as in `{engines[0]}:d4t2`.{near}"
            return Implied(says=f"which engine {does}, and over how many ranks", warns=warns)
        return _ENGINES[allocation.engine]

    return implies


def _ranks(settings: LaunchSettings) -> Iterator[Decision]:
    """Over how many ranks each engine lies; of Megatron-LM's, `_on_megatron` says more."""
    trainer, rollout = _trainer(settings), _rollout(settings)
    if trainer is not None and trainer.engine != "archon":
        implied = placement("tensor", trainer.ranks.get("t", 1))
        yield Decision(role="trainer", implied=implied, source=_TRAINS)
    if trainer is not None and trainer.ranks.get("c", 1) > 1:
        warns = "attention is cut along the sequence, and its parts are merged"
        says = f"context parallel over {trainer.ranks['c']} ranks"
        yield Decision(role="trainer", implied=Implied(says=says, warns=warns), source=_ALLOCATION)
    of_ranks = {option.name: option for option in servers.SGLANG.options}
    for letter, option in (("t", of_ranks["tp_size"]), ("p", of_ranks["pp_size"])):
        if rollout is not None and rollout.ranks.get(letter, 1) > 1:
            server_option = vllm_tensor_ranks("t") if (rollout.engine, letter) == ("vllm", "t") else option
            yield Decision(role="rollout", implied=server_option.implies(rollout.ranks[letter]), source=_SAMPLES)


def _on_megatron(settings: LaunchSettings) -> Iterator[Decision]:
    """What Megatron-LM decides by its ranks and by the bridge, under the names that its rules know."""
    trainer = _trainer(settings)
    if trainer is None or trainer.engine != "megatron":
        return
    bridge = str(settings[f"{_MEGATRON}bridge_type"])
    of_megatron = {
        f"{_MEGATRON}tensor_model_parallel_size": trainer.ranks.get("t", 1),
        f"{_MEGATRON}expert_model_parallel_size": trainer.of_experts.get("e", 1),
        f"{_MEGATRON}expert_tensor_parallel_size": trainer.of_experts.get("t", 1),
        f"{_MEGATRON}sequence_parallel": trainer.ranks.get("t", 1) > 1,
        f"{_MEGATRON}use_mbridge": bridge in _BRIDGES,
        f"{_MEGATRON}vanilla_mbridge": bridge == "mbridge",
    }
    heard = frozenset(settings.stated) - {f"{_MEGATRON}{name}" for name in _HANDED_TO_NOBODY}
    derived = LaunchSettings(values={**settings.values, **of_megatron}, stated=heard, model=settings.model)
    for rule in (
        megatron_rules.placement(_MEGATRON, _MEGATRON, lambda _: True, lambda _: "alltoall"),
        mbridge.defaults(_MEGATRON, _MEGATRON, lambda _: True),
    ):
        yield from rule(derived)
    for name, as_it_runs in _HANDED_TO_NOBODY.items():
        value = str(settings[f"{_MEGATRON}{name}"])
        if f"{_MEGATRON}{name}" in settings.stated and value not in as_it_runs:
            warns = f"AReaL hands it to nobody, and {bridge} decides it by the model's class"
            implied = Implied(says=f"{name} {value}", warns=warns)
            yield Decision(role="trainer", implied=implied, source=_REGISTRY)


def _divided(settings: LaunchSettings) -> Iterator[Decision]:
    """The temperatures: the trainer's own, and the sampler's where log-probabilities are of what is sampled from."""
    rollout = _rollout(settings)
    sampled = rollout is not None and rollout.engine == "sglang" and settings.values.get(ORIGINAL) is not True
    yield from divided_on("trainer", settings, f"{_ACTOR}temperature")
    if sampled and settings["gconfig.greedy"] is not True:
        yield from divided_on("rollout", settings, "gconfig.temperature")


def _sglang(settings: LaunchSettings) -> Mapping[str, Any]:
    rollout = _rollout(settings)
    if rollout is None or rollout.engine != "sglang":
        return {}
    return {"tp_size": rollout.ranks.get("t", 1), "pp_size": rollout.ranks.get("p", 1)}


def _vllm(settings: LaunchSettings) -> Mapping[str, Any]:
    rollout = _rollout(settings)
    if rollout is None or rollout.engine != "vllm":
        return {}
    ranks = {"tensor_parallel_size": rollout.ranks.get("t", 1), "pipeline_parallel_size": rollout.ranks.get("p", 1)}
    return {**ranks, "data_parallel_size": 1}


def _of_areal(settings: LaunchSettings) -> Mapping[str, str]:
    """Options of engines that AReaL does not start, and those that it hands to nobody."""
    trainer, rollout = _trainer(settings), _rollout(settings)
    inactive: dict[str, str] = {}
    of_engine = {"megatron": _MEGATRON, "archon": f"{_ACTOR}archon.", "fsdp": f"{_ACTOR}attn_impl"}
    if trainer is not None:
        reason = f"the trainer is {trainer.engine}"
        inactive |= {begins: reason for engine, begins in of_engine.items() if engine != trainer.engine}
    inactive |= {f"{_MEGATRON}{name}": "AReaL hands it to nobody" for name in _HANDED_TO_NOBODY}
    for server, prefix in ((servers.SGLANG, _SGLANG), (servers.VLLM, _VLLM)):
        if rollout is not None and rollout.engine != server.name:
            reason = f"the rollout is {rollout.engine}"
            inactive |= {prefix: reason, **idle_environment(server.options, reason)}
    return inactive


def _of_nobody(name: str) -> Option:
    option = word(f"{_MEGATRON}{name}", default="as the bridge says", implies=words({}, "{}"), role="trainer")
    return replace(option, quiet=True)


_EAGER = Implied(says="eager attention", profile="hf-eager")
_RANKS = frozenset({"tp_size", "pp_size", "tensor_parallel_size", "pipeline_parallel_size"})
"""Options of servers that stand in rollout.backend."""


def _handed_on(server: Program, prefix: str) -> Iterator[Option]:
    """A server's options, with AReaL's defaults."""
    for option in prefixed(server.options, prefix):
        name = option.name.removeprefix(prefix)
        if name not in _RANKS:
            yield replace(option, default=_DEFAULTS[prefix].get(name, option.default))


AREAL = Program(
    name="areal",
    engine="AReaL",
    version="4aef98d8d",
    source="areal/api/cli_args.py, areal/api/alloc_mode.py",
    start={"trainer": NO_PROFILE, "rollout": NO_PROFILE},
    options=(
        word(_TRAINS, default="unset", implies=_engine("trains", "fsdp", "megatron", "archon"), role="trainer"),
        word(_SAMPLES, default="unset", implies=_engine("samples", "sglang", "vllm"), role="rollout"),
        word(f"{_ACTOR}dtype", default="bfloat16", implies=dtype, role="trainer"),
        word(
            f"{_ACTOR}attn_impl",
            default="flash_attention_2",
            implies=words({"eager": _EAGER}, "{}: not stated in a profile"),
            role="trainer",
        ),
        number(f"{_ACTOR}temperature", implies=temperature, role="trainer"),
        word(
            f"{_MEGATRON}bridge_type",
            default="mbridge",
            implies=words(_BRIDGES),
            role="trainer",
        ),
        switch(
            f"{_MEGATRON}use_deterministic_algorithms",
            on=Implied(says="no atomics, NCCL's ring", overlay="megatron-deterministic"),
            off=Implied(says="atomics, NCCL as it chooses"),
            role="trainer",
        ),
        *map(_of_nobody, _HANDED_TO_NOBODY),
        number("gconfig.temperature", implies=temperature, role="rollout"),
        switch(
            "gconfig.greedy", on=Implied(says="the likeliest token is taken"), off=Implied(says="sampled"),
            role="rollout", quiet=True,
        ),
        *unstated("areal"),
        *_handed_on(servers.SGLANG, _SGLANG),
        *_handed_on(servers.VLLM, _VLLM),
        *of_environment((*servers.VLLM.options, *servers.SGLANG.options)),
    ),
    model=(f"{_ACTOR}path",),
    rules=(
        _ranks,
        _on_megatron,
        _divided,
        *(embedded(rule, _VLLM, _vllm) for rule in server_rules.OF_VLLM),
        *(embedded(rule, _SGLANG, _sglang) for rule in server_rules.OF_SGLANG),
        server_rules.stored_quantised("rollout"),
    ),
    irrelevant=listed("areal", "irrelevant")
    | {f"{_SGLANG}{name}" for name in servers.SGLANG.irrelevant}
    | {f"{_VLLM}{name}" for name in servers.VLLM.irrelevant},
    inactive=_of_areal,
)  # fmt: skip
