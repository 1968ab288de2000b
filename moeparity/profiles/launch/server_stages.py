"""Stages and groups of ranks with which vLLM 0.33.0 and sglang 0.5.23 refuse to start, and what the engines make of
others.
"""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.errors import whole_number
from moeparity.output.words import quantity
from moeparity.profiles.launch.options import Decision, Implied, ImpossibleError, LaunchSettings, Rule
from moeparity.profiles.launch.source import Unresolved

_INDICES = {
    "VLLM_PP_LAYER_PARTITION": "vLLM 0.33.0, vllm/distributed/utils.py get_pp_indices",
    "SGLANG_PP_LAYER_PARTITION": "sglang 0.5.23, srt/distributed/utils.py get_pp_indices",
}


def listed_stages(partition: str, count: str, *, alone: bool) -> Rule:
    """A rule: the environment variable `partition` must list as many stages as `count` says, or both engines refuse to
    start. With `alone` a single stage is an exception, as in SGLang, which then ignores the list.
    """

    def rule(settings: LaunchSettings) -> Iterator[Decision]:
        parts, stages = str(settings[partition] or "").split(","), settings[count]
        if parts == [""] or isinstance(stages, Unresolved) or None in map(whole_number, map(str.strip, parts)):
            return
        if alone and stages == 1:
            says = f"one stage has all layers, whatever {partition} lists"
            yield Decision(
                role="server", implied=Implied(says=says, placement={"stages": ()}), source=_INDICES[partition]
            )
        elif len(parts) != stages:
            raise ImpossibleError(
                partition,
                f"{partition} lists the layers of {quantity(len(parts), 'stage')}, and {count} is {stages}: the engine "
                "refuses to start. Give as many numbers as there are stages.",
            )

    return rule


def sglang_groups(settings: LaunchSettings) -> Iterator[Decision]:
    """That groups of ranks which attend apart divide the ranks (srt/arg_groups/parallel_hook.py:285-326)."""
    tensor, data, apart = (settings[name] for name in ("tp_size", "dp_size", "attn_dp_size"))
    if any(isinstance(each, Unresolved) for each in (tensor, data, apart)):
        return
    name, groups = "attn_dp_size", apart
    if settings["enable_dp_attention"] is True and apart == 1:
        name, groups = "dp_size", data
    elif data > 1 and apart > 1:
        raise ImpossibleError(
            "attn_dp_size",
            f"attn_dp_size is {apart} and dp_size {data}: SGLang refuses replicas of groups that attend apart. Give "
            "one of them.",
        )
    if tensor % groups:
        raise ImpossibleError(
            name,
            f"{name} is {groups}, so many groups of ranks attend apart, and tp_size is {tensor}: SGLang refuses what "
            f"does not divide the ranks. Give a divisor of {tensor}.",
        )
    yield from ()
