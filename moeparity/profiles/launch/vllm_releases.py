"""Earlier releases of vLLM as they are launched: what differs from the options, defaults and decisions of 0.33.0.

Read: vLLM 0.8.5 and 0.18.1, vllm/engine/arg_utils.py, config.py and config, envs.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from moeparity.profiles.launch import server_rules, servers
from moeparity.profiles.launch.knowledge import unstated
from moeparity.profiles.launch.options import Decision, Implied, ImpossibleError, LaunchSettings, Option, Program, count
from moeparity.profiles.launch.server_collectives import vllm_all_reduce
from moeparity.profiles.launch.shared import custom_all_reduce, placement
from moeparity.profiles.launch.source import Installed, Note, Source

_TOGETHER: Final = "which requests run together: a launch file does not say when they arrive"
_HEAD: Final = {
    "0.8.5": "0.8.5 knows no head_dtype: logits in the model's dtype",
    "0.18.1": "head_dtype counts for pooling models alone (config/model.py:1528): logits in the model's dtype",
}
_NEWER: Final = frozenset(
    {
        *("optimization_level", "VLLM_USE_BREAKABLE_CUDAGRAPH", "VLLM_USE_V2_MODEL_RUNNER"),
        *("VLLM_ALLREDUCE_USE_FLASHINFER", "VLLM_FLASHINFER_ALLREDUCE_BACKEND", "compilation_config"),
    }
)
"""Options whose effect was read of 0.33.0 alone."""
_AFTER_0_8: Final = _NEWER | {"moe_backend", "attention_backend", "VLLM_BATCH_INVARIANT"}


def _of_0_33(name: str) -> Option:
    return next(option for option in servers.VLLM.options if option.name == name)


def _elsewhere(option: Option, version: str) -> Option:
    """An option whose profiles are of 0.33.0: what it sets in an earlier release no profile states."""

    def implies(value: Any) -> Implied:
        implied = option.implies(value)
        if implied.overlay is None and implied.profile is None:
            return implied
        warns = f"{implied.says}: read of {servers.VLLM.version}, and not of {version}"
        return replace(implied, overlay=None, profile=None, warns=warns)

    return replace(option, implies=implies)


def _engine(value: Any) -> Implied:
    """V1 is taken unless V0 is asked for; what V1 does not support falls back to V0, which is not followed."""
    return Implied(says=f"the engine V{value}")


def _head(version: str) -> Option:
    """The fields of config.json that are replaced, of which the head's dtype has no effect."""

    def implies(value: Any) -> Implied:
        fields = value if isinstance(value, dict) else {}
        others = sorted(str(name) for name in fields if name != "head_dtype")
        warns = f"{', '.join(others)}: fields of config.json are replaced" if others else ""
        says = _HEAD[version] if "head_dtype" in fields else "logits in the model's dtype"
        return Implied(says=says, warns=warns)

    return Option(names=("hf_overrides",), kind="mapping", default={}, implies=implies)


def _tensor(value: Any) -> Implied:
    """0.18.1 fuses over several ranks of SM90 (config/vllm.py enable_allreduce_rms_fusion)."""
    warns = "all-reduce, add and norm in one kernel of FlashInfer 0.6.6: what runs here are vLLM's own, apart"
    return replace(placement("tensor", value), warns=warns * (value > 1))


def _scheduler(*, asynchronous: bool, cascade: bool) -> Iterator[Option]:
    says = Implied(says=_TOGETHER, shows=False)
    yield Option(names=("async_scheduling",), kind="flag", default=asynchronous, implies=lambda _: says, quiet=True)
    (disabled,) = unstated("vllm-earlier")
    yield replace(disabled, default=not cascade)


def _options(version: str, gone: Iterable[str], earlier: Iterable[Option]) -> tuple[Option, ...]:
    """The options of 0.33.0 as an earlier release has them: some are gone, some are its own."""
    without, of_release = frozenset(gone), {option.name: option for option in earlier}
    later = (option for option in servers.VLLM.options if option.name not in without)
    others = [of_release.pop(o.name) if o.name in of_release else _elsewhere(o, version) for o in later]
    return (*others, *of_release.values())


def _by_default(name: str, *, on: bool) -> Option:
    """An option that no profile states, off or on where nothing is set. V0 cuts prompts of models with more than 32,768
    positions by default, too (engine/arg_utils.py _set_default_args_v0), which is not followed.
    """
    return _of_0_33(name) if on else replace(_of_0_33(name), default=False)


def _no_mode(settings: LaunchSettings) -> Iterator[Decision]:
    """0.8.5 has no --logprobs-mode."""
    if "logprobs_mode" in settings.stated:
        raise ImpossibleError(
            "logprobs_mode", "vLLM 0.8.5 has no --logprobs-mode: its V0 returns processed ones, its V1 raw ones."
        )
    yield from ()


def _0_8_5(*, v1: bool) -> Program:
    eager = Implied(says="kernels in C", profile="vllm-0.8.5-v0") if v1 else Implied(says="CUDA graphs off")
    compiled = Implied(says="compiled by Inductor" if v1 else "kernels in C, in CUDA graphs")
    earlier = (
        count("tensor_parallel_size", "tp", implies=lambda ranks: placement("tensor", ranks)),
        replace(_of_0_33("enforce_eager"), implies=lambda value: eager if value else compiled),
        custom_all_reduce("vLLM", ""),
        replace(_of_0_33("all2all_backend"), quiet=True),
        Option(names=("VLLM_USE_V1",), kind="any", default="1", implies=_engine, environment=True, quiet=True),
        replace(_of_0_33("logprobs_mode"), default="raw_logprobs" if v1 else "processed_logprobs"),
        _by_default("enable_prefix_caching", on=v1),
        _by_default("enable_chunked_prefill", on=v1),
        _head("0.8.5"),
        *_scheduler(asynchronous=False, cascade=v1),
    )
    return replace(
        servers.VLLM,
        engine=f"vLLM V{int(v1)}",
        version="0.8.5",
        source="vllm 0.8.5, engine/arg_utils.py, config.py, envs.py",
        start={"server": "vllm-0.8.5-v1" if v1 else "vllm-0.8.5-v0"},
        options=_options("0.8.5", _AFTER_0_8, earlier),
        rules=(server_rules.vllm_experts, vllm_all_reduce, server_rules.stored_quantised("server"), _no_mode),
    )


_0_18_1 = replace(
    servers.VLLM,
    version="0.18.1",
    source="vllm 0.18.1, engine/arg_utils.py, config, envs.py",
    start={"server": "vllm-0.18.1"},
    options=_options(
        "0.18.1",
        _NEWER,
        (
            count("tensor_parallel_size", "tp", implies=_tensor),
            _head("0.18.1"),
            *_scheduler(asynchronous=True, cascade=False),
        ),
    ),
    rules=(server_rules.vllm_experts, vllm_all_reduce, server_rules.stored_quantised("server")),
)

_RELEASES: Final[dict[str, Callable[[Source], Program]]] = {
    "0.8.5": lambda source: _0_8_5(v1=not _is_v0(source)),
    "0.18.1": lambda _: _0_18_1,
}


def _is_v0(source: Source) -> bool:
    return any(entry.name == "VLLM_USE_V1" and str(entry.value) == "0" for entry in source.environment)


def installs(note: Note, program: Program) -> bool:
    """Whether a note is of the release that a program of an earlier release was chosen by."""
    return isinstance(note, Installed) and note.package == program.name and _pinned(note) == program.version


def released(source: Source, program: Program) -> Program:
    """A program in the release that the file installs or whose image it starts, if that one was read."""
    if program is not servers.VLLM:
        return program
    pinned = (_pinned(note) for note in source.notes if isinstance(note, Installed) and note.package == program.name)
    return next((_RELEASES[version](source) for version in pinned if version in _RELEASES), program)


def _pinned(note: Installed) -> str:
    """The release that a note asks for; empty for bounds. A post-release is its release."""
    pinned = re.fullmatch(r"(?:===?|=)?\s*v?(\d+(?:\.\d+)+?)(?:\.post\d+)?(?:\+.*)?", note.version)
    return pinned[1] if pinned else ""
