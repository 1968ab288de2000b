"""Which toggles a setting moves, and the tier that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moeparity.bisection.ablation.configurations import Options
from moeparity.bisection.ablation.report import Tier
from moeparity.plan.difference import Difference
from moeparity.plan.toggles import SEMANTICS, Toggle
from moeparity.search.memo import Mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A setting before it is measured: the toggles that it moves."""

    name: str
    toggles: tuple[Toggle, ...]
    option: bool

    @property
    def mixture(self) -> Mixture:
        """The mixture of the second configuration's values of this setting alone."""
        return frozenset(toggle.name for toggle in self.toggles)


def rows_of(bundled: Sequence[Toggle], options: Options) -> Iterator[Row]:
    """The toggles of each option together, and every other one by itself."""
    of_options: dict[str, list[Toggle]] = {}
    others = []
    owners = {*options.owner.values()} - {""}
    for toggle in bundled:
        owner = toggle.name if toggle.name in owners else options.owner.get(toggle.name, "")
        if owner:
            of_options.setdefault(owner, []).append(toggle)
        else:
            others.append(toggle)
    yield from (Row(name=name, toggles=tuple(moved), option=True) for name, moved in of_options.items())
    yield from (Row(name=toggle.name, toggles=(toggle,), option=False) for toggle in others)


def choice_of(toggle: Toggle) -> str:
    """What a toggle moves, in words."""
    if not toggle.members:
        return f"{toggle.name} {toggle.reference} -> {toggle.candidate}"
    names = dict.fromkeys(f"{member.node.op.name}:{member.attribute}" for member in toggle.members)
    return ", ".join(names)


def tier_of(row: Row) -> Tier:
    """Semantics is what the reported numbers are of; a router's rule for ties computes another function on ties alone,
    and is no meaning of a log-probability.
    """
    semantic = any(
        toggle.kind == SEMANTICS if not toggle.members else any(map(_reported, toggle.members))
        for toggle in row.toggles
    )
    return "semantics" if semantic else "inference path"


def _reported(difference: Difference) -> bool:
    """Whether it decides what is reported, and not only how it is rounded."""
    return difference.kind == SEMANTICS and difference.node.op.role.reports
