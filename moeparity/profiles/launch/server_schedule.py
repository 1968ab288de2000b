"""A server's launch options as a recipe's `schedule:`: how prompts are cut, and whether a prefix cache is kept.

Read: vLLM 0.8.5, 0.18.1 and 0.33.0, vllm/engine/arg_utils.py; sglang 0.5.23, srt/server_args.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from moeparity.errors import whole_number
from moeparity.profiles.launch.configuration import Configuration, in_words
from moeparity.profiles.launch.options import Implied, Option
from moeparity.profiles.launch.source import Unresolved

_SAYS: Final = Implied(says="which tokens are computed together", shows=False)
_NUMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": ("max_num_batched_tokens", "max_num_seqs", "block_size"),
    "sglang": ("chunked_prefill_size", "max_running_requests", "page_size"),
}
_RULES: Final = {"vllm": "vllm-v1", "sglang": "sglang"}
_V0_BUDGET: Final = 2048
"""Tokens of a step that prefills in chunks, in vLLM's V0 (config.py SchedulerConfig.__post_init__)."""
_BLOCKS: Final = {"vllm": 16, "sglang": 1}


def scheduling_options(program: str) -> tuple[Option, ...]:
    """The numbers by which a server's scheduler goes, as options: what is known of them elsewhere is that they change
    no log-probability by themselves.
    """
    names = _NUMBERS.get(program, ())
    return tuple(Option(names=(n,), kind="any", default="default", implies=lambda _: _SAYS, quiet=True) for n in names)


def schedule(configuration: Configuration) -> Mapping[str, Any] | None:
    """How a server computes its tokens, as far as its options say: prompts that arrive together, then one token after
    the other. None for a program whose schedule is not followed.
    """
    name, resolved = configuration.program.name, configuration.resolved
    if name not in _RULES or any(isinstance(resolved.get(option), Unresolved) for option in _NUMBERS[name]):
        return None
    tokens, most, block = (whole_number(str(resolved.get(option))) for option in _NUMBERS[name])
    is_whole = _is_whole(name, resolved)
    budget = tokens or (_V0_BUDGET if configuration.program.start["server"] == "vllm-0.8.5-v0" else None)
    prefill = {"prefill": "whole"} if is_whole else {"prefill": {"chunk": budget}} if budget else {}
    settings: dict[str, Any] = {"rule": _RULES[name], "decode": {"from": "prompt"}, **prefill}
    if most:
        settings["sequences"] = most
    if _caches_prefixes(name, resolved):
        settings["prefix"] = {"block": block or _BLOCKS[name]}
    return settings


def _is_whole(name: str, resolved: Mapping[str, Any]) -> bool:
    """Whether prompts are never cut."""
    if name == "vllm":
        return in_words("enable_chunked_prefill", resolved["enable_chunked_prefill"]) in ("false", "0")
    return str(resolved["chunked_prefill_size"]) == "-1"


def _caches_prefixes(name: str, resolved: Mapping[str, Any]) -> bool:
    option = "enable_prefix_caching" if name == "vllm" else "disable_radix_cache"
    return in_words(option, resolved[option]) in (("true", "1") if name == "vllm" else ("false", "0"))
