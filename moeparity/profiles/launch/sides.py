"""One side of a launch: from what options and the engine's decisions imply to profile, overlays and placement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from moeparity.documents.checked import shipped
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
_IN_PLACE: dict[str, dict[str, str | None]] = {
    "vllm-eager": {"vllm-allreduce-norm": None, "vllm-allreduce-norm-trtllm": "vllm-all-reduce-trtllm"},
    "vllm-fp8-blocks": {"deepep-low-latency": "deepep-low-latency-fp8"},
}
"""Overlays with which others are not made, and what is made in their place: vLLM fuses as it compiles; rows travel to
experts in fp8 by blocks in fp8.
"""


Told = tuple[Implied, str]
"""What is implied, and by what: a line of the file, a default of the engine, or a place in its source."""


def side(role: str, start: str, options: Sequence[Told], decisions: Sequence[Told]) -> LaunchSide:
    """One side: its profile, what comes on top, and where it lies. Decisions stand in place of single options."""
    profile, overlays, placement, dtype = start, [], dict[str, int | bool | str | tuple[int, ...]](), None
    origins: dict[str, str] = {}
    for implied, origin in (*options, *decisions):
        profile = profile if implied.profile is None else implied.profile
        overlays += [implied.overlay] if implied.overlay else []
        dtype = implied.dtype or dtype
        origins |= dict.fromkeys(_decided_names(implied), origin)
    for implied, _ in options:
        placement |= _stated(implied.placement)
    for implied, _ in decisions:
        placement |= implied.placement
    every = [implied for implied, _ in (*options, *decisions)]
    dropped = {overlay for implied in every for overlay in implied.drops}
    profile, overlays = _together(profile, [overlay for overlay in overlays if overlay not in dropped])
    if placement.get("tensor", 1) == 1:
        # One rank scatters nothing.
        placement.pop("sequence", None)
    return LaunchSide(
        role=role,
        profile=profile,
        further=tuple(overlays),
        placement=_stated(placement),
        dtype=dtype,
        sets={key: value for implied in every for key, value in implied.sets.items()},
        selects={key: value for implied in every for key, value in implied.selects.items()},
        origins=origins,
    )


def _decided_names(implied: Implied) -> Iterator[str]:
    """What of a side it decides, by the names of `LaunchSide.origins`."""
    yield from filter(None, (implied.profile, implied.overlay, "dtype" if implied.dtype else None))
    yield from (*implied.sets, *implied.selects)


def _stated(placement: Placed) -> dict[str, int | bool | str | tuple[int, ...]]:
    """What of a placement is not one rank."""
    return {axis: ranks for axis, ranks in placement.items() if _apart(ranks)}


def _apart(ranks: int | bool | str | Sequence[int]) -> bool:
    return ranks > 1 if isinstance(ranks, int) and not isinstance(ranks, bool) else bool(ranks)


def _together(profile: str, overlays: Iterable[str]) -> tuple[str, list[str]]:
    """The one profile that says most, and the overlays that it does not hold."""
    if profile == NO_PROFILE:
        return profile, []
    base = chain(profile)
    apply = []
    overlays = list(dict.fromkeys(overlays))
    replaced = {name: stand_in for overlay in overlays for name, stand_in in _IN_PLACE.get(overlay, {}).items()}
    for overlay in filter(None, (replaced.get(overlay, overlay) for overlay in overlays)):
        if (profile, overlay) in _TOGETHER:
            profile = _TOGETHER[profile, overlay]
        elif (profile, overlay) not in _OFF and (_extends(overlay, base) or overlay.startswith("deepep")):
            apply.append(overlay)
    if len(base) == 1 and apply and _extends(apply[0], [profile]):
        profile = apply.pop(0)
    return profile, apply


def _extends(overlay: str, base: Sequence[str]) -> bool:
    """Whether an overlay is written on top of one of these profiles, or on top of what is."""
    return not set(chain(overlay)[1:]).isdisjoint(base)


def parts(profile: str) -> list[str]:
    """A profile, what it extends, and the two it is made of."""
    made_of = [part for pair, whole in _TOGETHER.items() if whole == profile for part in pair]
    return [*chain(profile), *made_of]


def chain(name: str) -> list[str]:
    """A profile and what it extends, itself first."""
    if name == NO_PROFILE:
        return []
    names = [name]
    while (base := reader.read_profile(shipped("profiles")[names[-1]]).extends) is not None:
        names.append(base)
    return names
