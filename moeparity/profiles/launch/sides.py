"""One side of a launch: from what options and the engine's decisions imply to profile, overlays and placement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moeparity.plan.spec import reader
from moeparity.profiles.launch.options import NO_PROFILE, Implied, Placed
from moeparity.profiles.launch.report import LaunchSide

_TOGETHER = {("vllm-batch-invariant", "vllm-eager"): "vllm-batch-invariant-eager"}
"""A profile and an overlay that are one profile together."""
_OFF = {
    ("vllm-batch-invariant", "vllm-allreduce-norm"),
    ("sglang-deterministic", "sglang-allreduce-norm"),
    ("sglang-rl-on-policy", "sglang-allreduce-norm"),
}
"""Overlays that a profile switches off."""
_UNCOMPILED = {"vllm-eager": "vllm-allreduce-norm"}
"""Overlays without which another is not made: vLLM fuses as it compiles."""


def side(role: str, start: str, options: Sequence[Implied], decisions: Sequence[Implied]) -> LaunchSide:
    """One side: its profile, what comes on top, and where it lies. Decisions stand in place of single options."""
    profile, overlays, placement, dtype = start, [], dict[str, int | bool | str | tuple[int, ...]](), None
    for implied in (*options, *decisions):
        profile = profile if implied.profile is None else implied.profile
        overlays += [implied.overlay] if implied.overlay else []
        dtype = implied.dtype or dtype
    for implied in options:
        placement |= _stated(implied.placement)
    for implied in decisions:
        placement |= implied.placement
    dropped = {overlay for implied in (*options, *decisions) for overlay in implied.drops}
    profile, overlays = _together(profile, [overlay for overlay in overlays if overlay not in dropped])
    return LaunchSide(
        role=role,
        profile=profile,
        further=tuple(overlays),
        placement=_stated(placement),
        dtype=dtype,
        sets={key: value for implied in (*options, *decisions) for key, value in implied.sets.items()},
    )


def _stated(placement: Placed) -> dict[str, int | bool | str | tuple[int, ...]]:
    """What of a placement is not one rank."""
    return {axis: ranks for axis, ranks in placement.items() if _apart(ranks)}


def _apart(ranks: int | bool | str | Sequence[int]) -> bool:
    return ranks > 1 if isinstance(ranks, int) and not isinstance(ranks, bool) else bool(ranks)


def _together(profile: str, overlays: Iterable[str]) -> tuple[str, list[str]]:
    """The one profile that says most, and the overlays that it does not hold."""
    if profile == NO_PROFILE:
        return profile, []
    base = _chain(profile)
    apply = []
    overlays = list(dict.fromkeys(overlays))
    overlays = [overlay for overlay in overlays if overlay not in {_UNCOMPILED.get(o) for o in overlays}]
    for overlay in overlays:
        if (profile, overlay) in _TOGETHER:
            profile = _TOGETHER[profile, overlay]
        elif (profile, overlay) not in _OFF and (_chain(overlay)[1] in base or overlay.startswith("deepep")):
            apply.append(overlay)
    if len(base) == 1 and apply and _chain(apply[0])[1] == profile:
        profile = apply.pop(0)
    return profile, apply


def parts(profile: str) -> list[str]:
    """A profile, what it extends, and the two it is made of."""
    made_of = [part for pair, whole in _TOGETHER.items() if whole == profile for part in pair]
    return [*_chain(profile), *made_of]


def _chain(name: str) -> list[str]:
    """A profile and what it extends, itself first."""
    if name == NO_PROFILE:
        return []
    names = [name]
    while (base := reader.read_profile(reader.shipped("profiles")[names[-1]]).extends) is not None:
        names.append(base)
    return names
