"""The layers of each stage of a pipeline, as Megatron-LM's arguments give them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from moeparity.profiles.launch.options import Decision, Implied, LaunchSettings, Option
from moeparity.profiles.launch.source import Unresolved

_STAGES = "Megatron-LM d98e8a64dd, megatron/core/transformer/transformer_block.py get_num_layers_to_build"
_LAYOUT_SOURCE = "Megatron-LM d98e8a64dd, megatron/core/transformer/pipeline_parallel_layer_layout.py parse_str_to_list"
_LAYOUT = "pipeline_model_parallel_layout"
_FIRST, _LAST = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"


def layers_of_outer_stages() -> tuple[Option, ...]:
    """How many layers the first and the last stage of a pipeline have, if they have not as many as the others; and a
    layout, which spells out every stage.
    """
    layout = Option(
        names=(_LAYOUT,),
        kind="word",
        default="",
        implies=lambda value: Implied(says=f"stages {value}" if value else "no layout"),
        role="trainer",
        quiet=True,
    )
    return layout, *(
        Option(
            names=(name,),
            kind="count",
            default="even",
            implies=lambda value: Implied(says="as many as the others" if value == "even" else f"{value} layers"),
            role="trainer",
            quiet=True,
        )
        for name in (_FIRST, _LAST)
    )


_NOT_RESOLVED = Implied(
    says="not resolved", warns="how many layers each stage of the pipeline has: the recipe's `stages` says it"
)


def outer_stages(settings: LaunchSettings) -> Iterator[Decision]:
    """The layers of each stage, where the first or the last has others, and the model's number of layers is known."""
    if settings[_LAYOUT]:
        yield _of_layout(settings)
        return
    count, layers = settings.ranks("pipeline_model_parallel_size"), settings.model.sizes.get("num_hidden_layers")
    first, last = settings[_FIRST], settings[_LAST]
    outer = [number for number in (first, last) if isinstance(number, int)]
    if count == 1 or not outer:
        return
    inner = count - len(outer)
    if not isinstance(layers, int) or (layers - sum(outer)) % max(inner, 1):
        yield Decision(role="trainer", implied=_NOT_RESOLVED, source=_STAGES)
        return
    middle = ((layers - sum(outer)) // max(inner, 1),) * inner
    sizes = (*([first] if isinstance(first, int) else []), *middle, *([last] if isinstance(last, int) else []))
    says = f"stages of {', '.join(map(str, sizes))} layers"
    yield Decision(role="trainer", implied=Implied(says=says, placement={"stages": sizes}), source=_STAGES)


def _of_layout(settings: LaunchSettings) -> Decision:
    """The layers of each stage, as a layout spells them: `Et*3|(tt|)*2tL` has stages of 3, 2, 2 and 1 layers. No
    placement can state virtual stages, or a stage without a layer.
    """
    layout, count = settings[_LAYOUT], settings["pipeline_model_parallel_size"]
    sizes = () if isinstance(layout, Unresolved) else _spelled(str(layout))
    if len(sizes) != count or not all(sizes):
        return Decision(role="trainer", implied=_NOT_RESOLVED, source=_LAYOUT_SOURCE)
    says = f"stages of {', '.join(map(str, sizes))} layers"
    return Decision(role="trainer", implied=Implied(says=says, placement={"stages": sizes}), source=_LAYOUT_SOURCE)


def _spelled(layout: str) -> tuple[int, ...]:
    """The layers (`t`) of each stage of a layout; none where it holds anything else than layers and stages."""
    text = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda part: part.group(1) * int(part.group(2)), text)
    return tuple(stage.count("t") for stage in text.split("|")) if {*text} <= {*"EtmL|"} else ()
