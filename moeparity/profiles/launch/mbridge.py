"""What mbridge 0.15.1 sets of Megatron-LM's configuration where verl leaves it to mbridge, by the model's class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from moeparity.profiles.launch.options import Decision, Implied, Option, Rule, Settings, switch

_FP32_ROUTER, _FUSED = {"moe_router_dtype": "fp32"}, {"bias_activation_fusion": "true"}
_SETS: Mapping[str, Mapping[str, str]] = {
    "Qwen2MoeForCausalLM": _FUSED,
    "Qwen3MoeForCausalLM": _FUSED,
    "DeepseekV3ForCausalLM": {**_FP32_ROUTER, **_FUSED},
    "Glm4MoeForCausalLM": {**_FP32_ROUTER, **_FUSED},
    "MixtralForCausalLM": {},
    "LlamaForCausalLM": {},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {},
}
"""What `_build_config` of each bridge sets of what profiles speak of. None sets moe_permute_fusion, apply_rope_fusion,
which are then off, as in Megatron-LM's TransformerConfig; so is a bias_activation_fusion that is not set here."""
_SOURCE = "mbridge 0.15.1, mbridge/models/*.py _build_config, mbridge/core/llm_bridge.py _build_base_config"
_CHOICE = "verl b178a3cd5, verl/trainer/config/engine/megatron.yaml use_mbridge, vanilla_mbridge"
_FIELDS = ("moe_router_dtype", "moe_permute_fusion", "apply_rope_fusion", "bias_activation_fusion")


def switches(prefix: str) -> tuple[Option, ...]:
    """verl's options that say who builds the configuration."""
    other = Implied(says="verl's own converter builds Megatron-LM's configuration")
    bridge = Implied(says="with mbridge: Megatron-Bridge builds Megatron-LM's configuration")
    mbridge = Implied(says="mbridge builds Megatron-LM's configuration")
    return (
        switch(f"{prefix}use_mbridge", default=True, on=mbridge, off=other, role="trainer", quiet=True),
        switch(f"{prefix}vanilla_mbridge", default=True, on=mbridge, off=bridge, role="trainer", quiet=True),
    )


def defaults(prefix: str, fields: str, runs: Callable[[Settings], bool]) -> Rule:
    """The rule for what is not set below `fields`, where Megatron-LM `runs`; `prefix` is that of `switches`."""

    def rule(settings: Settings) -> Iterator[Decision]:
        unset = [name for name in _FIELDS if f"{fields}{name}" not in settings.given]
        if unset and runs(settings) and settings[f"{prefix}use_mbridge"] is True:
            if settings[f"{prefix}vanilla_mbridge"] is not True:
                warns = f"{', '.join(unset)}: not set, so Megatron-Bridge decides, which was not read"
                implied = Implied(says="defaults of Megatron-Bridge are not known here", warns=warns)
                yield Decision(role="trainer", implied=implied, source=_CHOICE)
            else:
                yield from _decided(settings, unset)

    return rule


def _decided(settings: Settings, unset: list[str]) -> Iterator[Decision]:
    architecture = settings.model.architecture
    by_class = [name for name in unset if name in ("moe_router_dtype", "bias_activation_fusion")]
    if architecture is not None and architecture in _SETS:
        for name in by_class:
            yield Decision(role="trainer", implied=_implied(architecture, name), source=_SOURCE)
    elif by_class:
        why = settings.model.known_by if architecture is None else f"mbridge 0.15.1 has no bridge for {architecture}"
        warns = f"{', '.join(by_class)}: not set, and mbridge goes by the model's class: {why}"
        implied = Implied(says="what mbridge sets is not known", warns=warns)
        yield Decision(role="trainer", implied=implied, source=_SOURCE)


def _implied(architecture: str, name: str) -> Implied:
    value = _SETS[architecture].get(name)
    says = f"{name} {value or 'off'}: mbridge for {architecture}"
    if name == "moe_router_dtype":
        return Implied(says=says, overlay="megatron-router-fp32" if value else None)
    return Implied(says=says, overlay=None if value else "megatron-unfused-swiglu")
