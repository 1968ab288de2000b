"""A profile and all it extends, read and checked against the ops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from moeparity.errors import SpecError, Where, did_you_mean, listed, shown
from moeparity.graph.address import split
from moeparity.ops.declaration import Attribute, Op, Value
from moeparity.ops.registry import OPS
from moeparity.spec import files, schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Values for attributes of the nodes it selects, by op or by node name, and where it was written.

    `label` is what a report calls it: `op combine`, or the selector.
    """

    op: str | None
    nodes: str | None
    model_types: tuple[str, ...] | None
    values: tuple[tuple[str, Value], ...]
    where: Where
    evidence: str
    flag: str | None

    @property
    def label(self) -> str:
        """What a report calls this rule."""
        return f"op {self.op}" if self.op else str(self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The rules of a profile in layers, the one it extends first; a later layer overrides an earlier one."""

    layers: tuple[tuple[Rule, ...], ...]


def load_profile(name: str, beside: Where) -> Profile:
    """A shipped profile by name, or a file relative to the one that names it. Raises SpecError."""
    layers: list[tuple[Rule, ...]] = []
    seen: list[Path] = []
    path = files.find_profile(name, beside)
    while True:
        if path.resolve() in seen:
            circle = " -> ".join(known.name for known in (*seen, path))
            raise SpecError(f"{beside}: profiles extend each other in a circle: {circle}. Break it.")
        seen.append(path.resolve())
        spec = files.read_profile(path)
        layers.insert(0, tuple(_rule(path, rule) for rule in spec.rules))
        if spec.extends is None:
            return Profile(layers=tuple(layers))
        beside = Where(path, spec.line_of("extends"))
        path = files.find_profile(spec.extends, beside)


def overrides(settings: dict[str, schema.Setting], where: Where) -> tuple[Rule, ...]:
    """A recipe's own `set:` of `address: value` as rules, one per address."""
    rules = []
    lines = getattr(settings, "key_lines", {})
    for address, value in settings.items():
        at = Where(where.path, lines.get(address, where.line))
        selector, attribute = split(address, at)
        rules.append(
            Rule(
                op=None,
                nodes=selector,
                model_types=None,
                values=((attribute, value),),
                where=at,
                evidence="set by the recipe",
                flag=None,
            )
        )
    return tuple(rules)


def checked(op: Op, attribute: str, value: Value, where: Where) -> tuple[Attribute, Value]:
    """The attribute of an op and the value as it is kept; raises SpecError where either is not allowed."""
    known = [a.name for a in op.attributes]
    found = op.attribute(attribute)
    if found is None:
        has = f"it has {listed(known)}" if known else "it has none"
        raise SpecError(f"{where}: op {op.name} has no attribute {attribute!r}; {has}.{did_you_mean(attribute, known)}")
    if found.number and not isinstance(value, str) and math.isfinite(value):
        return found, float(value)
    if value not in found.values:
        near = did_you_mean(str(value), found.values)
        raise SpecError(f"{where}: {op.name}:{attribute} is {shown(value)}; expected one of {found.expected}.{near}")
    return found, value


def _rule(path: Path, rule: schema.Rule) -> Rule:
    where = Where(path, rule.line)
    if rule.op is not None and rule.op not in OPS:
        raise SpecError(
            f"{Where(path, rule.line_of('op'))}: op {rule.op!r} is unknown; expected one of {listed(OPS)}."
            + did_you_mean(rule.op, OPS)
        )
    if rule.op is not None:
        lines = getattr(rule.set, "key_lines", {})
        for attribute, value in rule.set.items():
            checked(OPS[rule.op], attribute, value, Where(path, lines.get(attribute, rule.line)))
    evidence = rule.evidence
    return Rule(
        op=rule.op,
        nodes=rule.nodes,
        model_types=None if rule.model_type is None else tuple(rule.model_type),
        values=tuple(rule.set.items()),
        where=where,
        evidence="no evidence given" if evidence is None else f"{evidence.level}: {evidence.source}",
        flag=rule.flag,
    )
