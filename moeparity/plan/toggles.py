"""Toggles: the differences between two sides as switches, each of which can be set to either side's value.

A toggle is a bundle of differences. The recipe says how they are bundled (`by:`), and a bundle can be split: into
attributes, then into phases of the schedule, then into kinds of nodes, then into halves of the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from moeparity.ops.attribute import EDGE
from moeparity.plan.address import PHASE, pattern, role
from moeparity.plan.changed import with_settings_in
from moeparity.plan.difference import Class, Difference, TwoSided, differences, each_once
from moeparity.plan.engine_profile import edge_of
from moeparity.plan.graph import Node
from moeparity.plan.offers import offers
from moeparity.plan.resting import going_along
from moeparity.plan.schedule.cases import Case
from moeparity.plan.schedule.settings import GROUPS, is_semantic, part_in_words
from moeparity.plan.schedule.settings import mixed as mixed_schedule
from moeparity.plan.schedule.settings import parts as schedule_parts
from moeparity.plan.setting import Place
from moeparity.plan.sides import Side
from moeparity.plan.spec.base import By

K = TypeVar("K", bound=Hashable)
Named = Callable[[Difference], str]
"""The toggle that a difference belongs to; empty for one that is bundled by its attribute."""

SEMANTICS: Final = "semantics"
"""The class of choices that change which function is computed, not only how it is rounded."""
MANY_ROLES = 8
"""A bundle over more kinds of nodes than this is split by block first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toggle(TwoSided):
    """Differences between the reference and the candidate that are moved together.

    `kind` is the class of the choice, `several` where its members have different ones. A toggle for a part of the
    schedule has no members; its kind is `schedule`, or `placement` for groups of ranks that attend apart, or
    `semantics` where it changes what is computed. `parent` is the toggle it was split from.

    `reference_changed_by` are the flags that give the reference the candidate's values, `candidate_changed_by` those
    that give the candidate the reference's values; empty where no such flag is known.
    """

    name: str
    kind: Class | Literal["schedule", "several"]
    members: tuple[Difference, ...] = ()
    parent: str | None = None
    reference_changed_by: str = ""
    candidate_changed_by: str = ""

    @property
    def has_flag(self) -> bool:
        """Whether, for at least one side, a flag is known that gives it the other side's values."""
        return bool(self.reference_changed_by or self.candidate_changed_by)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes whose numerics it changes, in execution order; empty for the schedule, which affects all."""
        return tuple(dict.fromkeys(member.node.name for member in self.members))

    def resting(self, side: str) -> int:
        """At how many of its nodes the value rests on this side: has no effect because of another choice there."""
        awake = {member.node.name for member in self.members if side not in member.resting}
        return len(set(self.nodes) - awake)


def toggles(reference: Side, candidate: Side, by: By | Named = "attribute") -> list[Toggle]:
    """Every difference between two sides, bundled `by` a key of a recipe, or by names that a function gives to some of
    them; each part of the schedule is a toggle of its own.
    """
    key = _KEYS[by] if isinstance(by, str) else _by_name(by)
    bundles = _bundles(differences(reference.plan, candidate.plan), key)
    for part in schedule_parts(reference.schedule, candidate.schedule):
        bundles.append(
            Toggle(
                name=part,
                kind=_kind_of_part(reference, candidate, part),
                reference=part_in_words(reference.schedule, part),
                candidate=part_in_words(candidate.schedule, part),
                reference_origin="the recipe's reference",
                candidate_origin="the recipe's candidate",
            )
        )
    return [with_flags(toggle, reference, candidate) for toggle in _with_unique_names(bundles)]


def with_flags(toggle: Toggle, reference: Side, candidate: Side) -> Toggle:
    """The toggle, with the flags that would give either side the other side's values filled in."""
    leading = [member for member in toggle.members if member.follows is None]
    of_reference, of_candidate = (
        " or ".join(map(str, offers(side, wanted.plan, leading)))
        for side, wanted in ((reference, candidate), (candidate, reference))
    )
    return replace(toggle, reference_changed_by=of_reference, candidate_changed_by=of_candidate)


def _kind_of_part(reference: Side, candidate: Side, part: str) -> Literal["semantics", "placement", "schedule"]:
    """The kind of a toggle for a part of the schedule; which group of ranks attends to a sequence is placement."""
    if is_semantic(reference.schedule, candidate.schedule, part):
        return SEMANTICS
    return "placement" if part == GROUPS else "schedule"


def swap(selector: str, nodes: Iterable[str], reference: Side, candidate: Side) -> Toggle | None:
    """All that differs at some nodes as one toggle named after the selector; None where nothing does."""
    names = set(nodes)
    members = [d for d in differences(reference.plan, candidate.plan) if names.intersection(p[0] for p in d.places)]
    return with_flags(_toggle(selector, members), reference, candidate) if members else None


def mixed(base: Side, members: Sequence[Toggle], source: Side) -> Side:
    """`base` with the choices of `members` taken from `source`."""
    exchanged = [toggle.name for toggle in members if not toggle.members]
    if exchanged:
        base = replace(base, schedule=mixed_schedule(base.schedule, source.schedule, exchanged))
    # All places in one change: intermediate mixtures might be refused by an op.
    places: dict[Case, list[Place]] = {}
    for member in (member for toggle in members for member in toggle.members):
        for phase in member.phases:
            places.setdefault(phase, []).extend(member.places)
    if not places:
        return base
    for phase, along in going_along(base.plan, source.plan).items():
        places.setdefault(phase, []).extend(along)
    return replace(base, plan=with_settings_in(base.plan, places, source.plan))


def split(toggle: Toggle) -> list[Toggle]:
    """A toggle split by attribute, else by phase, else by kind of node, else into halves of its layers; [] where it
    cannot be split. A difference that follows from another (`Difference.follows`) stays with it.
    """
    following = [member for member in toggle.members if member.follows is not None]
    parts = _split(replace(toggle, members=tuple(m for m in toggle.members if m.follows is None)))
    return [_with_following(part, following, toggle.nodes) for part in parts]


def _with_following(part: Toggle, following: Iterable[Difference], nodes: Sequence[str]) -> Toggle:
    places = {place for member in part.members for place in member.places}
    members = [*part.members, *(member for member in following if places.intersection(member.places))]
    return replace(part, members=tuple(sorted(members, key=lambda member: nodes.index(member.node.name))))


def _split(toggle: Toggle) -> list[Toggle]:
    if len({_attribute(d) for d in toggle.members}) > 1:
        parts = _groups(toggle.members, _attribute)
        by_name = [(f"{toggle.name} / {op}:{attribute}", members) for (op, attribute), members in parts.items()]
        return [replace(_toggle(name, members), parent=toggle.name) for name, members in by_name]
    by_phase = _by_phase(toggle)
    if by_phase:
        return by_phase
    roles = {role(d.node.name) for d in toggle.members}
    if len(roles) > MANY_ROLES:
        by_family = _groups(toggle.members, lambda d: family(d.node))
        if len(by_family) > 1:
            by_name = [(f"{toggle.name} / {name}", members) for name, members in by_family.items()]
            return [replace(_toggle(name, members), parent=toggle.name) for name, members in by_name]
    groups = list(_groups(toggle.members, lambda d: role(d.node.name)).values())
    if len(groups) == 1 and len(set(toggle.nodes)) < len(toggle.members):
        # One kind of node with sites on several edges: split by the kind of reader.
        groups = list(_groups(toggle.members, lambda d: role(_reader(d))).values())
    if len(groups) == 1:
        half = (len(toggle.members) + 1) // 2
        groups = [list(toggle.members[:half]), list(toggle.members[half:])] if half < len(toggle.members) else []
    by_name = [(_place_name(members), members) for members in groups]
    return [replace(_toggle(name, members), parent=toggle.name) for name, members in by_name]


def _reader(difference: Difference) -> str:
    """The consumer of a site on an edge; empty for an attribute."""
    edge = edge_of(difference.places[0][1])
    return "" if edge is None else edge[1]


def _place_name(members: Sequence[Difference]) -> str:
    """The name of a toggle by its nodes and attribute. For sites on edges it names the readers too, since other nodes
    of the same op may read the same values: `layers[0:4].attention.norm:output->layers[0:4].attention.q_proj`.
    """
    nodes, attribute = pattern(dict.fromkeys(member.node.name for member in members)), members[0].attribute
    readers = dict.fromkeys(filter(None, map(_reader, members)))
    if not readers:
        return f"{nodes}:{attribute}"
    name, at, phase = attribute.partition(PHASE)
    return f"{nodes}:{name.partition(EDGE)[0]}{EDGE}{pattern(readers)}{at}{phase}"


def _by_phase(toggle: Toggle) -> list[Toggle]:
    """A toggle split by phase; [] where it differs in one phase only, or where a member has no parts by phase."""
    parts = _groups(
        (part for member in toggle.members for part in member.parts), lambda part: part.attribute.partition(PHASE)[2]
    )
    if len(parts) < 2 or not all(member.parts for member in toggle.members):
        return []
    by_name = [(f"{toggle.name}{PHASE}{case}", members) for case, members in parts.items()]
    return [replace(_toggle(name, members), parent=toggle.name) for name, members in by_name]


def family(node: Node) -> str:
    """The block that a node belongs to: norms, router, experts, combine, head, embedding, else its block in the
    graph.
    """
    return node.op.role.family or (node.name.split(".")[1] if node.layer is not None else node.name)


def _attribute(difference: Difference) -> tuple[str, str]:
    # A user's function and a dtype are one choice whatever the op.
    per_op = difference.kind not in ("dtype", "implementation")
    return (difference.node.op.name if per_op else "", difference.attribute)


def _label(difference: Difference) -> str:
    return "dtype" if difference.rule is None else difference.rule.label


def _by_attribute(difference: Difference) -> tuple[str, ...]:
    label, values = _label(difference), (difference.reference, difference.candidate)
    is_one_choice = difference.rule is None or difference.rule.is_overlay
    return (label,) if is_one_choice else (f"{label}:{_stated_choice(difference)}", *values)


def _by_name(name: Named) -> Callable[[Difference], tuple[str, ...]]:
    return lambda difference: (name(difference),) if name(difference) else _by_attribute(difference)


def _stated_choice(difference: Difference) -> str:
    """The choice's name as its rule spells it: for a site on edges the rule may name single readers instead of an
    op.
    """
    edge, rule = edge_of(difference.attribute), difference.rule
    if edge is None or rule is None:
        return difference.attribute
    names = [name for name, _ in rule.values if (site_edge := edge_of(name)) is not None and site_edge[0] == edge[0]]
    return names[0] if len(names) == 1 else difference.attribute


def _layer(difference: Difference) -> str:
    name = difference.node.name
    return name.split(".")[0] if difference.node.layer is not None else name


_KEYS: dict[By, Callable[[Difference], tuple[str, ...]]] = {
    "rule": lambda d: (_label(d),),
    "attribute": _by_attribute,
    "node": lambda d: (d.node.name,),
    "layer": lambda d: (_layer(d),),
    "block": lambda d: (family(d.node),),
}


def _bundles(choices: Sequence[Difference], key: Callable[[Difference], tuple[str, ...]]) -> list[Toggle]:
    """Toggles in execution order; the one for the variants' dtypes comes last."""
    # A difference that follows from another one is in the same toggle.
    groups = _groups(choices, lambda choice: key(choice.follows or choice))
    in_order = sorted(groups.items(), key=lambda item: item[0] == ("dtype",))
    return [_toggle(name[0], members) for name, members in in_order]


def _groups(members: Iterable[Difference], key: Callable[[Difference], K]) -> dict[K, list[Difference]]:
    groups: dict[K, list[Difference]] = {}
    for difference in members:
        groups.setdefault(key(difference), []).append(difference)
    return groups


def _toggle(name: str, members: Sequence[Difference]) -> Toggle:
    leading = [member for member in members if member.follows is None]
    kinds = {member.kind for member in leading}
    return Toggle(
        name=name,
        kind=kinds.pop() if len(kinds) == 1 else "several",
        reference=_values(leading, lambda m: m.reference),
        candidate=_values(leading, lambda m: m.candidate),
        reference_origin=each_once(m.reference_origin for m in leading),
        candidate_origin=each_once(m.candidate_origin for m in leading),
        reference_set_by=each_once(m.reference_set_by for m in leading),
        candidate_set_by=each_once(m.candidate_set_by for m in leading),
        members=tuple(members),
    )


def _values(members: Sequence[Difference], side: Callable[[Difference], str]) -> str:
    """The value that all members have; else the value of each attribute, with its op where there are several ops."""
    one_value = len({m.attribute for m in members}) == 1 and len({side(m) for m in members}) == 1
    if one_value or len({_attribute(m) for m in members}) == 1:
        return ", ".join(dict.fromkeys(side(m) for m in members))
    several_ops = len({m.node.op.name for m in members}) > 1
    labels = [f"{m.node.op.name}:{m.attribute}" if several_ops else m.attribute for m in members]
    return ", ".join(dict.fromkeys(f"{name} {side(m)}" for name, m in zip(labels, members, strict=True)))


def _with_unique_names(bundles: list[Toggle]) -> list[Toggle]:
    """Toggles with unique names: where several have the same name, their values are added to it."""
    names = [toggle.name for toggle in bundles]
    return [
        replace(t, name=f"{t.name} {t.reference} -> {t.candidate}") if names.count(t.name) > 1 else t for t in bundles
    ]
