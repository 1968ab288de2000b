"""What mbridge 0.15.1 and Megatron-Bridge 067f987df set for verl of Megatron-LM's, by the model's class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from moeparity.profiles.launch.options import Decision, Implied, LaunchSettings, Option, Rule, switch

_FP32_ROUTER, _FUSED = {"moe_router_dtype": "fp32"}, {"bias_activation_fusion": "true"}
_MBRIDGE: Mapping[str, Mapping[str, str]] = {
    "Qwen2MoeForCausalLM": _FUSED,
    "Qwen3MoeForCausalLM": _FUSED,
    "DeepseekV3ForCausalLM": {**_FP32_ROUTER, **_FUSED},
    "Glm4MoeForCausalLM": {**_FP32_ROUTER, **_FUSED},
    "MixtralForCausalLM": {},
    "LlamaForCausalLM": {},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {},
}
"""What `_build_config` of each of mbridge's bridges sets of what profiles speak of; what none sets is off."""
_PERMUTED, _OVERLAPPED = {"moe_permute_fusion": "true"}, {"moe_shared_expert_overlap": "true"}
_MEGATRON_BRIDGE: Mapping[str, Mapping[str, str]] = {
    "Qwen3MoeForCausalLM": _PERMUTED,
    "DeepseekV3ForCausalLM": {**_FP32_ROUTER, **_FUSED, **_PERMUTED, **_OVERLAPPED},
    "Glm4MoeForCausalLM": {**_FP32_ROUTER, **_FUSED, **_PERMUTED, **_OVERLAPPED},
    "OlmoeForCausalLM": {**_FP32_ROUTER, **_PERMUTED},
}
"""What `provider_bridge` of each of Megatron-Bridge's sets; what none sets is off, as in Megatron-LM."""
_BRIDGES = {
    True: ("mbridge", _MBRIDGE, "mbridge 0.15.1, mbridge/models/*.py _build_config"),
    False: ("Megatron-Bridge", _MEGATRON_BRIDGE, "Megatron-Bridge 067f987df, models/*/*_bridge.py provider_bridge"),
}
"""By verl's vanilla_mbridge."""
_FIELDS = ("moe_router_dtype", "moe_permute_fusion", "apply_rope_fusion", "bias_activation_fusion")
_UNFUSED = {
    "apply_rope_fusion": "megatron-unfused-rope",
    "bias_activation_fusion": "megatron-unfused-swiglu",
}


def switches(prefix: str) -> tuple[Option, ...]:
    """verl's options that say who builds the configuration."""
    converter = Implied(says="verl's own converter builds Megatron-LM's configuration")
    bridge = Implied(says="with mbridge: Megatron-Bridge builds Megatron-LM's configuration")
    mbridge = Implied(says="mbridge builds Megatron-LM's configuration")
    return (
        switch(f"{prefix}use_mbridge", default=True, on=mbridge, off=converter, role="trainer", quiet=True),
        switch(f"{prefix}vanilla_mbridge", default=False, on=mbridge, off=bridge, role="trainer", quiet=True),
    )


def unset(prefix: str, fields: str, settings: LaunchSettings) -> tuple[str, ...]:
    """The fields of profiles that nothing sets below `fields`, where a bridge decides them."""
    if settings[f"{prefix}use_mbridge"] is not True:
        return ()
    return tuple(f"{fields}{name}" for name in _FIELDS if f"{fields}{name}" not in settings.stated)


def fields_unset(fields: str, settings: LaunchSettings) -> tuple[str, ...]:
    """The fields but for the router's dtype that nothing sets below `fields`."""
    names = (f"{fields}{name}" for name in _FIELDS if name != "moe_router_dtype")
    return tuple(name for name in names if name not in settings.stated)


def of_megatron_bridge(fields: str, runs: Callable[[LaunchSettings], bool]) -> Rule:
    """The rule for what is not set below `fields` by a framework that has Megatron-Bridge, where Megatron-LM `runs`."""

    def rule(settings: LaunchSettings) -> Iterator[Decision]:
        names = fields_unset(fields, settings)
        if names and runs(settings):
            overlaps = f"{fields}moe_shared_expert_overlap" not in settings.stated
            yield from _decided(settings, [name.removeprefix(fields) for name in names], overlaps, vanilla=False)

    return rule


def defaults(prefix: str, fields: str, runs: Callable[[LaunchSettings], bool]) -> Rule:
    """The rule for what is not set below `fields`, where Megatron-LM `runs`; `prefix` is that of `switches`."""

    def rule(settings: LaunchSettings) -> Iterator[Decision]:
        names = unset(prefix, fields, settings)
        if names and runs(settings):
            vanilla = settings[f"{prefix}vanilla_mbridge"] is True
            overlaps = f"{fields}moe_shared_expert_overlap" not in settings.stated
            yield from _decided(settings, [name.removeprefix(fields) for name in names], overlaps, vanilla=vanilla)

    return rule


def _decided(settings: LaunchSettings, names: list[str], overlaps: bool, *, vanilla: bool) -> Iterator[Decision]:
    bridge, sets, source = _BRIDGES[vanilla]
    architecture = settings.model.architecture
    if architecture is None or architecture not in sets:
        why = settings.model.known_by if architecture is None else f"nobody read what it sets for {architecture}"
        warns = f"{', '.join(names)}: not set, and {bridge} goes by the model's class: {why}"
        implied = Implied(says=f"what {bridge} sets is not known", warns=warns)
        yield Decision(role="trainer", implied=implied, source=source)
        return
    for name in names:
        value = sets[architecture].get(name)
        says = f"{name} {value or 'off'}: {bridge} for {architecture}"
        yield Decision(role="trainer", implied=Implied(says=says, overlay=_overlay(name, value)), source=source)
    if overlaps and "moe_shared_expert_overlap" in sets[architecture]:
        warns = "the shared expert's sum is added elsewhere"
        says = f"moe_shared_expert_overlap true: {bridge} for {architecture}"
        yield Decision(role="trainer", implied=Implied(says=says, warns=warns), source=source)


def _overlay(name: str, value: str | None) -> str | None:
    """The profile that a field's value stands for, on top of Megatron-LM's."""
    if name == "moe_router_dtype":
        return "megatron-router-fp32" if value else None
    if name == "moe_permute_fusion":
        return "megatron-permute-fusion" if value else None
    return None if value else _UNFUSED[name]
