"""Engine profiles for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from moeparity.output.tables import Stacked, Words, word_table
from moeparity.plan.rule import DEFAULT
from moeparity.plan.schedule.cases import described
from moeparity.profiles.report import EngineDifference, EngineProfile, EngineToggle, Stand, Statement

_SHARES = (
    "other bits: of an op's bf16 outputs, how many change where this choice alone differs (docs/roundings.md); "
    "-: not measured. Order: another model first, then by these; then what is not measured, roundings before forms, "
    "orders and placement; then those below 1%. What a toggle costs in log-probabilities is another question: "
    "`moeparity bisect` answers it. (unknown): the profile is silent there or takes the value over from another engine."
)


def print_profiles(profiles: Sequence[EngineProfile], out: Console) -> None:
    """All profiles, a line each."""
    table = word_table("profile", "engine", "version", "what it states")
    for profile in profiles:
        table.add_row(profile.name, profile.engine, profile.version, profile.says)
    out.print(table)


def print_profile(profile: EngineProfile, statements: Sequence[Statement], out: Console) -> None:
    """One profile in full."""
    out.print(Text(f"{profile.name}: {profile.engine} {profile.version}", style="bold"))
    out.print(profile.about or profile.says)
    if profile.extends:
        out.print(f"\nThe rest is that of {profile.extends}.")
    for _, rule in groupby(statements, key=lambda s: (s.on, s.model_types, s.phases, s.source, s.set_by, s.changed_by)):
        _print_rule(list(rule), out)
    if profile.not_stated:
        out.print(f"\nNot stated: {profile.not_stated}")


def _print_rule(statements: Sequence[Statement], out: Console) -> None:
    """The values that one rule sets, what they rest on, what sets them and what would change them."""
    first = statements[0]
    models = f"  for {', '.join(first.model_types)}" if first.model_types else ""
    phases = f"  in {described(first.phases)}" if first.phases else ""
    out.print(Text.assemble("\n", (first.on, "bold"), models, phases))
    values = ", ".join(f"{statement.attribute} {statement.value}" for statement in statements)
    flags = f"set by: {first.set_by}; to change: {first.changed_by}"
    for line in (values, f"{first.evidence}: {first.source}", flags):
        out.print(Padding(Words(line), (0, 0, 0, 2), expand=False))


def print_difference(difference: EngineDifference, out: Console) -> None:
    """The difference of two profiles, dearest first."""
    for profile in (difference.first, difference.second):
        out.print(Text.assemble((profile.name, "bold"), f"  {profile.engine} {profile.version}, {profile.says}"))
    out.print(f"on {difference.architecture}, {difference.placement or 'one rank'}\n")
    if not difference.toggles:
        out.print("They differ in nothing that takes effect here.")
    else:
        _print_toggles(difference, out)
    _print_silence(difference, out)


def _print_toggles(difference: EngineDifference, out: Console) -> None:
    out.print(Text(f"{len(difference.toggles)} toggle{'s' * (len(difference.toggles) != 1)}", style="bold"))
    table = Stacked("toggle", "class", "other bits")
    profiles = (difference.first.name, difference.second.name)
    width = max(map(len, profiles))
    for toggle in difference.toggles:
        stands = (_stand(stand, name) for stand, name in zip((toggle.first, toggle.second), profiles, strict=True))
        below = [f"{name:<{width}}  {stand}" for name, stand in zip(profiles, stands, strict=True)]
        table.add_row(toggle.name, toggle.kind, _share(toggle), below=below)
    out.print(table)
    out.print(Words(f"\n{_SHARES}", style="dim"))


def _print_silence(difference: EngineDifference, out: Console) -> None:
    out.print(f"\n{difference.alike} choices are stated by both, with the same value.")
    for profile, silent, choices in (
        (difference.first, difference.second, difference.known_of_first),
        (difference.second, difference.first, difference.known_of_second),
    ):
        if choices:
            out.print(
                f"Stated by {profile.name} only; {silent.name} is silent, so that they may differ: "
                f"{', '.join(choices)}."
            )
    if difference.known_of_neither:
        out.print(f"Stated by neither: {', '.join(difference.known_of_neither)}.")
    for profile in dict.fromkeys((difference.first, difference.second)):
        if profile.not_stated:
            out.print(f"{profile.name} leaves open: {profile.not_stated}")
    if not difference.placement:
        out.print("All-reduces and cuts take effect on several ranks: --tensor 4, --expert 4.")


def _share(toggle: EngineToggle) -> str:
    return "-" if toggle.share is None else toggle.share.shown


def _stand(stand: Stand, profile: str) -> str:
    """Its value, how sure that is, what sets it, with the profile where that does not head the column, and what would
    change it; a default that nothing changes is not mentioned.
    """
    by = stand.set_by.removesuffix(f" ({profile})") if "(" in stand.set_by else ""
    flags = f"; set by: {by}" * (by not in {"", DEFAULT}) + f"; to change: {stand.changed_by}" * bool(stand.changed_by)
    return f"{stand.value} ({stand.evidence}){flags}"
