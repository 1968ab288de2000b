"""Shipped profiles as sides on the sizes of a public checkpoint, and which flags give a side what another has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from moeparity.documents.checked import shipped
from moeparity.errors import MoeparityError, Where
from moeparity.ops.attribute import Value
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.config import UNDECLARED_DTYPE, Config
from moeparity.plan.cut import cut_by
from moeparity.plan.difference import Difference
from moeparity.plan.engine_profile import Profile, load_profile, placement_rules
from moeparity.plan.expand import expand
from moeparity.plan.flags import KnownFlag
from moeparity.plan.messages import RowMessage
from moeparity.plan.rule import EVIDENCE_LEVELS
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.steps import FORWARD
from moeparity.plan.sides import Side, side_of
from moeparity.plan.spec.variant_schema import Placement

HERE = Where(Path(__file__))


def shipped_sides(family: str, tensor: int = 1) -> dict[str, Side]:
    """Every shipped profile that runs on two layers of a family's public widths, cut into the same cases."""
    fields = json.loads(shipped("configs", "json")[family].read_text("utf-8"))
    few = {"num_hidden_layers": 2, **({"first_k_dense_replace": 1} if "first_k_dense_replace" in fields else {})}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(fields | few), "utf-8")
        config = Config(path)
    graph, dtype = expand(config), config.dtype or UNDECLARED_DTYPE
    ranks = placement_rules(Placement(tensor=tensor), HERE)
    message = RowMessage.of(graph, dtype, ranks)
    profiles = {name: load_profile(name, HERE) for name in shipped("profiles")}
    rules = (rule for profile in profiles.values() for layer in profile.layers for rule in layer)
    cases = cut_by(graph, (FORWARD,), (row_rule for rule in rules for row_rule in message.in_rows(rule)))

    def bound(of: Profile) -> Plan:
        return bind(graph, of, dtype, placement=ranks, phases=cases)

    sides = {}
    for name, profile in profiles.items():
        try:
            sides[name] = side_of(profile, bound, ScheduleSettings(batch=1), Placement(tensor=tensor))
        except MoeparityError:
            continue
    return sides


class Truth:
    """Which flags give a side what is wanted, by binding its profile with each that is known, and by nothing else."""

    def __init__(self) -> None:
        self._plans: dict[tuple[int, str, object], Plan | None] = {}

    def flags(self, side: Side, wanted: Plan, members: Sequence[Difference]) -> set[str]:
        """Those that give it at every place of some differences, stated for the side's engine."""
        assert side.flagged is not None
        place, phase = members[0].places[0], members[0].phases[0]
        value = wanted.at_phase(phase).written[place].value
        plans = {flag.text: self._plan(side, flag, place[1], value) for flag in side.flagged.flags}
        return {text for text, plan in plans.items() if plan and all(_holds(plan, wanted, m) for m in members)}

    def _plan(self, side: Side, flag: KnownFlag, attribute: str, value: Value) -> Plan | None:
        assert side.flagged is not None
        if flag.requested and not isinstance(value, float | int):
            return None
        key = (id(side), flag.text, (attribute, value) if flag.requested else None)
        if key not in self._plans:
            try:
                self._plans[key] = side.flagged.bind(flag.asked_for(attribute, value))
            except MoeparityError:
                self._plans[key] = None
        return self._plans[key]


def _holds(plan: Plan, wanted: Plan, member: Difference) -> bool:
    for phase in member.phases:
        ours, theirs = plan.at_phase(phase), wanted.at_phase(phase)
        for place in member.places:
            setting, wanted_setting = ours.written[place], theirs.written[place]
            if setting.level not in EVIDENCE_LEVELS:
                return False
            if ours.resolved(place[0], setting.value) != theirs.resolved(place[0], wanted_setting.value):
                return False
    return True
