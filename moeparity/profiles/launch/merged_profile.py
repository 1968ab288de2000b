"""A profile of one's own for a launched side: its base, with what other profiles and the launch file set on top."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from moeparity.documents.checked import shipped
from moeparity.errors import Where
from moeparity.plan.engine_profile import Profile, load_profile
from moeparity.profiles.launch.report import Launch, LaunchSide
from moeparity.profiles.launch.sides import chain

_SECTION = re.compile(r"^(fusions|rules):\n((?:[ #].*\n|\n)*)", re.MULTILINE)


def combined(side: LaunchSide, launch: Launch, name: str) -> str:
    """The text of a profile that extends the side's and holds the rules of those on top, with their evidence."""
    base = chain(side.profile)
    overlays = dict.fromkeys(
        above for overlay in side.further for above in reversed(chain(overlay)) if above not in (*base, _root(overlay))
    )
    sections = {"fusions": "", "rules": ""}
    for overlay in overlays:
        text = shipped("profiles")[overlay].read_text("utf-8")
        for section, body in _SECTION.findall(text + "\n"):
            sections[section] += f"{_credit(overlay, side)}{body.rstrip()}\n"
    sections["rules"] += _own_rules(side, launch)
    on_top = ", ".join((*overlays, *(["values of its own"] if side.sets else [])))
    lines = [
        f"# What {launch.file} makes of {side.profile}: on top of it {on_top}.",
        f"kind: profile\nname: {json.dumps(name)}\nextends: {side.profile}",
        *(f"{section}:\n{body.rstrip()}" for section, body in sections.items() if body),
    ]
    return "\n".join(lines)


def _credit(overlay: str, side: LaunchSide) -> str:
    """Where a profile on top comes from; what another one extends has the origin of that."""
    named_by = (above for above in side.further if overlay in chain(above))
    origin = next((side.origins[name] for name in (overlay, *named_by) if name in side.origins), "")
    return f"  # From {overlay}{f', by {origin}' if origin else ''}.\n"


def load_combined(text: str) -> Profile:
    """Such a profile before it is written where it belongs. Raises SpecError."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "combined.yaml").write_text(text, "utf-8")
        return load_profile("./combined.yaml", Where(Path(folder) / "recipe.yaml"))


def _own_rules(side: LaunchSide, launch: Launch) -> str:
    rules: dict[tuple[str, str], dict[str, str | float]] = {}
    for key, value in side.sets.items():
        op, _, attribute = key.partition(":")
        rules.setdefault((op, side.origins.get(key, launch.file)), {})[attribute] = value
    return "".join(
        f"  - op: {op}\n    set: {{{_flow(values)}}}\n    evidence: {{level: inferred, source: "
        f"{json.dumps(_source(launch, origin))}}}\n"
        for (op, origin), values in rules.items()
    )


def _source(launch: Launch, origin: str) -> str:
    """The origin of a value, behind the engine that it is one of."""
    return origin if origin.startswith(launch.engine) else f"{launch.engine} {launch.version}, by {origin}"


def _flow(values: dict[str, str | float]) -> str:
    return ", ".join(f"{attribute}: {value}" for attribute, value in values.items())


def _root(name: str) -> str:
    return chain(name)[-1]
