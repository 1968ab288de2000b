"""Engine profiles: all of them, one in full, how two differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from moeparity.output.blocks import (
    Block,
    Column,
    Group,
    Row,
    Styled,
    columns,
    group,
    lines,
    notes,
    stacked,
    table,
)
from moeparity.plan.rule import DEFAULT
from moeparity.plan.schedule.cases import described
from moeparity.profiles.report import (
    EngineDifference,
    EngineProfile,
    EngineToggle,
    FlagEffect,
    Stand,
    Statement,
)

_SHARES = (
    "other bits: of an op's bf16 outputs, how many change where this choice alone differs (docs/roundings.md); "
    "-: not measured. Order: another model first, then by these; then what is not measured, roundings before forms, "
    "orders and placement; then those below 1%. What a toggle costs in log-probabilities is another question: "
    "`moeparity bisect` answers it. (unknown): the profile is silent there or takes the value over from another engine."
)


def profile_list(profiles: Sequence[EngineProfile]) -> Iterator[Block]:
    """All profiles, a line each."""
    titles = ("profile", "engine", "version", "what it states")
    rows = [(profile.name, profile.engine, profile.version, profile.says) for profile in profiles]
    yield table([Column(title, "name") for title in titles], rows)


def in_full(profile: EngineProfile, statements: Sequence[Statement]) -> Iterator[Block]:
    """One profile in full."""
    yield lines(
        Styled(f"{profile.name}: {profile.engine} {profile.version}", "bold"),
        *(profile.about or profile.says).split("\n"),
    )
    if profile.extends:
        yield lines("", f"The rest is that of {profile.extends}.")
    for _, rule in groupby(statements, key=lambda statement: statement.of_rule):
        yield _rule(list(rule))
    if profile.flags:
        yield group("flags", lines(*(f"{flag.flag}: {effect_in_words(flag)}" for flag in profile.flags)))
    if profile.not_stated:
        yield lines("", f"Not stated: {profile.not_stated}")


def effect_in_words(flag: FlagEffect) -> str:
    """`as vllm-eager (2, 4, 8 ranks)`; the values that the flag sets itself; `not known` where nobody read it."""
    becomes = [f"as {flag.becomes}" + (f", for {', '.join(flag.ops)}" if flag.ops else "")] if flag.becomes else []
    sets = [f"{s.on}:{s.attribute} {s.value} ({s.evidence})" for s in flag.sets]
    effect = ", ".join([*becomes, *sets]) or "not known"
    return f"{effect} ({flag.condition})" if flag.condition else effect


def _rule(statements: Sequence[Statement]) -> Group:
    """The values that one rule sets, what they rest on, and what sets them."""
    first = statements[0]
    models = f"  for {', '.join(first.model_types)}" if first.model_types else ""
    phases = f"  in {described(first.phases)}" if first.phases else ""
    sizes = f"  of {first.sizes}" if first.sizes else ""
    values = ", ".join(f"{statement.attribute} {statement.value}" for statement in statements)
    says = (values, f"{first.evidence}: {first.source}", f"set by: {first.set_by}")
    return group(f"{first.on}{models}{sizes}{phases}", lines(*says))


def difference_of(difference: EngineDifference) -> Iterator[Block]:
    """The difference of two profiles, dearest first."""
    sides = (difference.first, difference.second)
    yield lines(*((Styled(of.name, "bold"), f"  {of.engine} {of.version}, {of.says}") for of in sides))
    yield lines(f"on {difference.architecture}, {difference.placement or 'one rank'}", "")
    if difference.toggles:
        yield from _toggles(difference)
    else:
        yield lines("They differ in nothing that takes effect here.")
    yield lines("", *_silence(difference))


def _toggles(difference: EngineDifference) -> Iterator[Block]:
    profiles = (difference.first.name, difference.second.name)
    width = max(map(len, profiles))
    rows = []
    for toggle in difference.toggles:
        stands = (_stand(stand, name) for stand, name in zip((toggle.first, toggle.second), profiles, strict=True))
        below = tuple(f"{name:<{width}}  {stand}" for name, stand in zip(profiles, stands, strict=True))
        rows.append(Row((toggle.name, toggle.kind, _share(toggle)), below))
    title = f"{len(difference.toggles)} toggle{'s' * (len(difference.toggles) != 1)}"
    yield group(title, stacked(columns("class", "other bits", first="toggle", words=("class",)), rows), notes(_SHARES))


def _silence(difference: EngineDifference) -> Iterator[str]:
    yield f"{difference.alike} choices are stated by both, with the same value."
    for profile, silent, choices in (
        (difference.first, difference.second, difference.known_of_first),
        (difference.second, difference.first, difference.known_of_second),
    ):
        if choices:
            yield (f"Stated by {profile.name} only; {silent.name} is silent, so they may differ: {', '.join(choices)}.")
    if difference.known_of_neither:
        yield f"Stated by neither: {', '.join(difference.known_of_neither)}."
    for profile in dict.fromkeys((difference.first, difference.second)):
        if profile.not_stated:
            yield f"{profile.name} leaves open: {profile.not_stated}"
    if not difference.placement:
        yield "All-reduces and cuts take effect on several ranks: --tensor 4, --expert 4."


def _share(toggle: EngineToggle) -> str:
    return "-" if toggle.share is None else toggle.share.shown


def _stand(stand: Stand, profile: str) -> str:
    """Its value, how sure that is, what sets it, with the profile where that does not head the column, and the
    flags that give the other's; a default is not mentioned.
    """
    by = stand.set_by.removesuffix(f" ({profile})") if "(" in stand.set_by else ""
    set_by = f"; set by: {by}" if by not in {"", DEFAULT} else ""
    changed_by = f"; to have the other's: {stand.changed_by}" if stand.changed_by else ""
    return f"{stand.value} ({stand.evidence}){set_by}{changed_by}"
