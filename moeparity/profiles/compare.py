"""What engine profiles state and how two of them differ on an architecture: nothing is computed, no weight is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from moeparity.documents.checked import shipped
from moeparity.errors import SpecError, Where, did_you_mean, listed
from moeparity.ops.measured import Share
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.config import UNDECLARED_DTYPE, Config
from moeparity.plan.cut import cut_by
from moeparity.plan.difference import Difference
from moeparity.plan.engine_profile import Profile, layers_of, load_profile, placement_rules
from moeparity.plan.evidence import levels
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.plan.messages import RowMessage
from moeparity.plan.rule import DEFAULT, EVIDENCE_LEVELS, Rule
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.steps import PHASES
from moeparity.plan.sides import Side, side_of
from moeparity.plan.sizes import described
from moeparity.plan.spec import profile_schema, reader, variant_schema
from moeparity.plan.toggles import Toggle, toggles
from moeparity.profiles.report import EngineDifference, EngineProfile, EngineToggle, FlagEffect, Stand, Statement

NOT_STATED = "Not stated:"
"""What opens the part of a profile's comment that lists what it leaves open."""
UNNAMED = profile_schema.Engine(name="-", version="-", says="")

_KINDS = ("semantics", "rounding", "dtype", "implementation", "several", "form", "order", "placement")
"""Where no table speaks: another model first, then what rounds, then what only reorders or moves."""
NEGLIGIBLE = 0.01
"""A share below this counts less than what nobody has measured."""


def profiles() -> list[EngineProfile]:
    """Every shipped profile."""
    return [_description(path, reader.read_profile(path)) for path in shipped("profiles").values()]


def describe(name: str) -> EngineProfile:
    """A shipped profile by name, or a path to one. Raises SpecError."""
    path = _path(name)
    return _description(path, reader.read_profile(path))


def statements(name: str) -> list[Statement]:
    """What a profile itself states, without what it takes over, in the order of its file. Raises SpecError."""
    profile = load_profile(name, _place())
    fusions, rules = profile.layers[-2:]
    return [*(statement for rule in (*fusions, *rules) for statement in _statements(rule)), *_on_gpus(profile)]


def architectures() -> Mapping[str, Path]:
    """Sizes of a public checkpoint of each shipped graph, with few layers: config.json by model_type."""
    return shipped("configs", "json")


def compare(
    first: str, second: str, architecture: str = "qwen3_moe", placement: variant_schema.Placement | None = None
) -> EngineDifference:
    """What two profiles compute differently on a shipped architecture. Other settings of the model come first, then
    what made most of the divergence where it was measured.

    Raises SpecError for a name that is not known, or where a profile does not run on these sizes.
    """
    configs = architectures()
    if architecture not in configs:
        raise SpecError(
            f"--graph: {architecture!r} is no shipped architecture; expected one of {listed(configs)}."
            f"{did_you_mean(architecture, configs)}"
        )
    config = Config(configs[architecture])
    placement = placement or variant_schema.Placement()
    one_side, other_side = _sides_of(expand(config), config.dtype or UNDECLARED_DTYPE, placement, (first, second))
    plans = (one_side.plan, other_side.plan)
    # What rests in one of them comes of another line, and is nothing that the two do differently.
    in_effect = (t for t in toggles(one_side, other_side) if any(not member.resting for member in t.members))
    differences = [_toggle(toggle, plans[0], plans[1]) for toggle in in_effect]
    alike, first_only, second_only, neither = _agreements(plans[0], plans[1])
    return EngineDifference(
        architecture=f"{architecture} ({config['sizes_of']})",
        placement=str(placement),
        first=describe(first),
        second=describe(second),
        toggles=tuple(sorted(differences, key=_rank)),
        alike=alike,
        known_of_first=first_only,
        known_of_second=second_only,
        known_of_neither=neither,
    )


def _sides_of(graph: Graph, dtype: str, placement: variant_schema.Placement, names: Sequence[str]) -> list[Side]:
    """Two profiles on a graph, cut into the same cases. Raises SpecError."""
    ranks = placement_rules(placement, Where(Path("--tensor")))
    profiles = [load_profile(name, _place()) for name in names]
    message = RowMessage.of(graph, dtype, ranks)
    rules = (rule for profile in profiles for layer in profile.from_below for rule in layer)
    cases = cut_by(graph, PHASES, (row_rule for rule in rules for row_rule in message.in_rows(rule)))

    def bound(of: Profile) -> Plan:
        return bind(graph, of, dtype, placement=ranks, phases=cases)

    return [side_of(profile, bound, ScheduleSettings(batch=1), placement) for profile in profiles]


def _place() -> Where:
    return Where(Path("show engines"))


def _path(name: str) -> Path:
    return reader.find_profile(name, _place())


def _description(path: Path, spec: profile_schema.ProfileFile) -> EngineProfile:
    inherited = load_profile(str(path), _place()).engine or UNNAMED
    # What is taken over is whose engine it is, not in which setup.
    engine = spec.engine or inherited.model_copy(update={"says": ""})
    about, _, open_ = _comment(path).partition(NOT_STATED)
    return EngineProfile(
        name=spec.name,
        engine=engine.name,
        version=engine.version,
        says=engine.says or about.split(". ")[0].strip(),
        extends=spec.extends,
        about=about.strip(),
        not_stated=open_.strip(),
        flags=tuple(_effect(flag, path, spec.name) for flag in spec.flags),
    )


def _effect(flag: profile_schema.Flag, path: Path, profile: str) -> FlagEffect:
    sets = (statement for layer in layers_of(flag, path, profile) for rule in layer for statement in _statements(rule))
    return FlagEffect(
        flag=flag.flag,
        becomes=flag.becomes or "",
        ops=tuple(flag.ops),
        sets=tuple(sets),
        condition="; ".join(_conditions(flag)),
    )


def _conditions(flag: profile_schema.Flag) -> Iterator[str]:
    """What has to hold of the model and its ranks, in words."""
    if flag.model_type:
        yield ", ".join(flag.model_type)
    if flag.condition:
        yield described(flag.condition)
    if flag.placement is not None:
        yield f"{flag.placement} ranks"
    if flag.when is not None:
        yield flag.when


def _comment(path: Path) -> str:
    """The comment at the top of a file, as one line."""
    lines = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def _on_gpus(profile: Profile) -> Iterator[Statement]:
    """What it states itself of GPUs, once for all GPUs of a rule."""
    gpus: dict[Where, list[str]] = {}
    rules = {rule.where: rule for gpu, rule in profile.on_gpus if rule.profile == profile.name}
    for gpu, rule in profile.on_gpus:
        gpus.setdefault(rule.where, []).append(gpu)
    for where, rule in rules.items():
        yield from (replace(each, on=f"{each.on} on {', '.join(gpus[where])}") for each in _statements(rule))


def _statements(rule: Rule) -> Iterator[Statement]:
    for attribute, value in rule.values:
        yield Statement(
            on=rule.op or rule.nodes or f"fusion {rule.fusion} ({', '.join(rule.chain or ())})",
            model_types=rule.model_types or (),
            sizes=described(rule.sizes),
            phases=rule.cases or (),
            attribute=attribute,
            value=str(value),
            evidence=rule.level,
            source=rule.source,
            set_by=rule.set_by or DEFAULT,
        )


def _toggle(toggle: Toggle, first: Plan, second: Plan) -> EngineToggle:
    """A toggle in the words of two engines."""
    return EngineToggle(
        name=toggle.name,
        kind=toggle.kind,
        nodes=len(toggle.nodes),
        share=max((s for m in toggle.members if (s := _share(m, first, second))), key=lambda s: s.least, default=None),
        first=Stand(
            value=toggle.reference,
            evidence=", ".join(levels(toggle.members, first)),
            set_by=toggle.reference_set_by,
            changed_by=toggle.reference_changed_by,
        ),
        second=Stand(
            value=toggle.candidate,
            evidence=", ".join(levels(toggle.members, second)),
            set_by=toggle.candidate_set_by,
            changed_by=toggle.candidate_changed_by,
        ),
    )


def _share(difference: Difference, first: Plan, second: Plan) -> Share | None:
    """What a committed table says of a choice, in the first phase of which it says anything."""
    attribute = difference.node.op.attribute(difference.attribute)
    for part in difference.parts or (difference,):
        plans = (first.at_phase(part.phases[0]), second.at_phase(part.phases[0]))
        for measured in () if attribute is None else attribute.measured:
            settings = ((name, set(words)) for name, words in measured.settings.items())
            met = (words & {plan.settings[part.node.name, name].value for plan in plans} for name, words in settings)
            if measured.value in (None, part.reference, part.candidate) and all(met):
                return measured.share
    return None


def _rank(toggle: EngineToggle) -> tuple[int, float, int]:
    """Another model first, then what a table says, the largest first; then what is not measured, by kind."""
    kind = _KINDS.index(toggle.kind) if toggle.kind in _KINDS else len(_KINDS)
    if toggle.kind == "semantics":
        return 0, 0.0, kind
    if toggle.share is None:
        return 2, 0.0, kind
    return (1 if toggle.share.least >= NEGLIGIBLE else 3), -toggle.share.least, kind


def _agreements(first: Plan, second: Plan) -> tuple[int, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Choices with one value on both sides: how many both state, and those that only one or neither does."""
    statements: dict[str, list[set[bool]]] = {}
    in_phases = ((first.at_phase(phase), second.at_phase(phase)) for phase in first.phases)
    for plans in {
        (id(reference), id(candidate)): (reference, candidate) for reference, candidate in in_phases
    }.values():
        for node in first.graph.nodes:
            active = [plan.active(node) for plan in plans]
            for attribute in node.attributes:
                name = attribute.name
                decides = attribute.kind in ("rounding", "order", "form")
                if decides and all(name in values for values in active) and active[0][name] == active[1][name]:
                    evidence = statements.setdefault(f"{node.op.name}:{name}", [set(), set()])
                    for plan, levels in zip(plans, evidence, strict=True):
                        levels.add(plan.settings[node.name, name].level in EVIDENCE_LEVELS)
    by: dict[tuple[bool, bool], list[str]] = {}
    for name, (of_first, of_second) in statements.items():
        by.setdefault((of_first == {True}, of_second == {True}), []).append(name)
    groups = {key: tuple(names) for key, names in by.items()}
    return (
        len(groups.get((True, True), ())),
        groups.get((True, False), ()),
        groups.get((False, True), ()),
        groups.get((False, False), ()),
    )
