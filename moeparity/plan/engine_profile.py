"""A profile with all profiles it extends, read and checked against the ops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from moeparity.errors import SpecError, Where, did_you_mean, listed, shown
from moeparity.numerics import orders
from moeparity.numerics.tensor_core.gemm_orders import tensor_core_order
from moeparity.numerics.tensor_core.planned_order import planned_order
from moeparity.ops.attribute import EDGE, STORED, Attribute, Value
from moeparity.ops.declaration import Op
from moeparity.ops.placement import ENDS, STAGE
from moeparity.ops.registry import OPS
from moeparity.plan.address import split
from moeparity.plan.latest import Latest
from moeparity.plan.rule import BY_RECIPE, NO_ENGINE, UNKNOWN, Rule
from moeparity.plan.spec import profile_schema, reader, variant_schema

TRANSFORMERS: Final = "transformers"
MODELS: Final = "hf-eager"
"""The profile that says what each model's own code computes."""
INFERRED: Final = "inferred"
REQUESTED: Final = "requested"
"""Stands for a number that the engine takes from each request, where a flag allows that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The rules of a profile in layers, a later one overriding an earlier: what it extends, its fusions, its rules.

    `name` is the profile's own; `engine` is its own, else that of what it extends, else none, and so is `machine`.
    `files` are the files that the layers were read from, base first; each gives two layers: fusions, then rules.
    `on_gpus` are rules, the profile's own first, each for sides with that GPU. `of_models` lie below all layers: what
    transformers does for single models and rare ops, which is taken of an engine whose profile does not speak of them.
    """

    name: str
    engine: profile_schema.Engine | None
    layers: tuple[tuple[Rule, ...], ...]
    files: tuple[tuple[Path, profile_schema.ProfileFile], ...] = ()
    machine: profile_schema.Machine | None = None
    on_gpus: tuple[tuple[str, Rule], ...] = ()
    of_models: tuple[Rule, ...] = ()

    @property
    def from_below(self) -> tuple[tuple[Rule, ...], ...]:
        """All layers with those that lie below them."""
        return (self.of_models, *self.layers)


def load_profile(name: str, where: Where) -> Profile:
    """A shipped profile by name, or a file relative to the one that names it. Raises SpecError.

    What is taken over from a profile of another engine keeps its value, but its evidence becomes `unknown`.
    """
    paths, specs = zip(*_chain(name, where), strict=True)
    # A file that has not changed is read once.
    return _LATEST.of(specs, paths, lambda: _profile(paths, specs))


# Profiles are loaded for each run, and a sweep, a search or a notebook runs many.
_LATEST: Final[Latest[Profile]] = Latest(64)


def _profile(paths: Sequence[Path], specs: Sequence[profile_schema.ProfileFile]) -> Profile:
    """The profile made of these files: its own first, then what it extends, one after the other."""
    chain = list(zip(paths, specs, strict=True))
    profile = specs[0]
    engine = next((spec.engine for _, spec in chain if spec.engine is not None), None)
    layers: list[tuple[Rule, ...]] = []
    on_gpus: list[tuple[str, Rule]] = []
    for depth, (path, spec) in enumerate(chain):
        theirs = next((s.engine for _, s in chain[depth:] if s.engine is not None), None)
        layers.insert(0, tuple(about(_rule(path, spec.name, rule), theirs, engine) for rule in spec.rules))
        layers.insert(0, tuple(about(_fusion(path, spec.name, fusion), theirs, engine) for fusion in spec.fusions))
        every = ((gpu, _rule(path, spec.name, rule.on(gpu))) for rule in spec.on_gpus for gpu in rule.gpus)
        on_gpus += ((gpu, about(rule, theirs, engine)) for gpu, rule in every)
        for flag in spec.flags:
            layers_of(flag, path, spec.name)
    machine = next((spec.machine for _, spec in chain if spec.machine is not None), None)
    files = tuple(reversed(chain))
    speaks_of_another = engine is not None and engine.name not in (TRANSFORMERS, NO_ENGINE)
    return Profile(
        name=profile.name, engine=engine, layers=tuple(layers), files=files, machine=machine, on_gpus=tuple(on_gpus),
        of_models=_of_models(layers) if speaks_of_another else (),
    )  # fmt: skip


def _of_models(layers: Sequence[Sequence[Rule]]) -> tuple[Rule, ...]:
    """The rules of transformers for single models, and for ops that no rule of an engine speaks of, as rules of nobody:
    a value that nobody states must not be another function, nor a difference that gets blamed.
    """
    ops = {rule.op for layer in layers for rule in layer}
    path = reader.find_profile(MODELS, Where(Path(MODELS)))
    rules = [_rule(path, MODELS, rule) for rule in reader.read_profile(path).rules]
    rules = [rule for rule in rules if rule.model_types is not None or rule.op not in ops]
    evidence = f"{UNKNOWN}: as {TRANSFORMERS} has it, since no rule of the engine says it"
    return tuple(replace(rule, evidence=evidence, set_by=None) for rule in rules)


def layers_of(flag: profile_schema.Flag, path: Path, profile: str) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """The fusions and the rules that a flag adds on top of its profile. Raises SpecError."""
    fusions = tuple(_fusion(path, profile, fusion) for fusion in flag.fusions)
    return fusions, tuple(_rule(path, profile, rule, rule.requested) for rule in flag.rules)


def _chain(name: str, where: Where) -> list[tuple[Path, profile_schema.ProfileFile]]:
    """The files of a profile and of all it extends, its own first."""
    chain: list[tuple[Path, profile_schema.ProfileFile]] = []
    path = reader.find_profile(name, where)
    while True:
        paths = [earlier for earlier, _ in chain]
        if path.resolve() in [earlier.resolve() for earlier in paths]:
            circle = " -> ".join(earlier.name for earlier in (*paths, path))
            raise SpecError(f"{where}: profiles extend each other in a circle: {circle}. Break it.")
        spec = reader.read_profile(path)
        chain.append((path, spec))
        if spec.extends is None:
            return chain
        where = Where(path, spec.line_of("extends"))
        path = reader.find_profile(spec.extends, where)


def about(rule: Rule, theirs: profile_schema.Engine | None, engine: profile_schema.Engine | None) -> Rule:
    """A rule as it counts for `engine`: one from a profile of another engine (`theirs`) loses its evidence and flag;
    what is known of another version of the same engine is inferred of this one.
    """
    if theirs is None or engine is None or engine.name == NO_ENGINE:
        return rule
    if engine.name == theirs.name:
        return rule if engine.version == theirs.version else _of_a_version(rule, theirs, engine)
    return replace(
        rule,
        evidence=f"{UNKNOWN}: taken over from {rule.profile}, which speaks of {theirs.name}",
        set_by=None,
    )


def _of_a_version(rule: Rule, theirs: profile_schema.Engine, engine: profile_schema.Engine) -> Rule:
    """A rule about one version as it counts for another: no surer than inferred, and set by no flag."""
    if rule.level in (INFERRED, "opaque", UNKNOWN):
        return replace(rule, set_by=None)
    evidence = f"{INFERRED}: that {engine.version} is as {theirs.version} in this; {rule.source}"
    return replace(rule, evidence=evidence, set_by=None)


def overrides(settings: Mapping[str, Value], where: Where, *, evidence: str = BY_RECIPE) -> tuple[Rule, ...]:
    """A recipe's own `set:` of `address: value` as rules, one per address, all with this `evidence`."""
    rules = []
    lines = getattr(settings, "key_lines", {})
    for address, value in settings.items():
        at = Where(where.path, lines.get(address, where.line))
        selector, attribute, cases = split(address, at)
        rules.append(Rule(nodes=selector, cases=cases, values=((attribute, value),), where=at, evidence=evidence))
    return tuple(rules)


def placement_rules(placement: variant_schema.Placement, where: Where) -> tuple[Rule, ...]:
    """A variant's placement as rules; a dimension with one rank, or that is not scattered, gives no rule.

    With expert parallelism (`expert`), whole experts lie on ranks and `tensor` does not cut them, as in vLLM and
    SGLang. Under data-parallel attention each group has `tensor` ranks.
    """
    at, groups = Where(where.path, placement.line or where.line), placement.groups
    by_expert = tuple(name for name, op in OPS.items() if any(port.each for port in op.weights))
    cut = partial(Rule, placement="tensor", without=by_expert if placement.expert > 1 else (), groups=groups)
    rules = (
        [partial(cut, values=(("tensor", placement.tensor),), apart=groups.count > 1)] if placement.tensor > 1 else []
    )
    if groups.count > 1:
        # Nodes that get the rows of all groups are cut over the ranks of all groups.
        rules.append(partial(cut, values=(("tensor", placement.tensor * groups.count),)))
    if placement.expert > 1:
        rules.append(partial(Rule, placement="expert", values=(("expert", placement.expert),)))
    if placement.sequence:
        rules.append(partial(Rule, placement="sequence", values=(("sequence", "scattered"),)))
    if placement.pipeline_stages is not None:
        stages = placement.pipeline_stages
        rules.append(partial(Rule, placement="pipeline", pipeline=stages, values=((STAGE, ENDS),)))
    return tuple(rule(where=at, evidence=BY_RECIPE) for rule in rules)


def check_value(op: Op, attribute: str, value: Value, where: Where) -> tuple[Attribute, Value]:
    """The attribute of an op by its name, and the value as plans hold it. Raises SpecError where either is not allowed.

    `attribute` may name a site on an edge, `output->consumer`; its value may also be `stored`: no rounding of its own,
    the consumer reads what the op stores.
    """
    edge = edge_of(attribute)
    if edge is not None:
        return _check_edge(op, edge[0], value, where)
    names = [a.name for a in op.attributes]
    choice = op.attribute(attribute)
    if choice is None:
        has = f"it has {listed(names)}" if names else "it has none"
        raise SpecError(f"{where}: op {op.name} has no attribute {attribute!r}; {has}.{did_you_mean(attribute, names)}")
    if choice.number and not isinstance(value, str) and math.isfinite(value):
        return choice, float(value)
    if choice.least is not None and isinstance(value, int) and value >= choice.least:
        return choice, value
    if value in choice.values:
        return choice, value
    says = f"{where}: {op.name}:{attribute} is {shown(value)}; expected one of {choice.expected}."
    words = [*choice.values, *(orders.FORMS if choice.order else ())]
    if (
        (choice.order or choice.tensor_cores)
        and isinstance(value, str)
        and (value in words or not value.isidentifier())
    ):
        try:
            return choice, _order(choice, value)
        except orders.OrderError as error:
            raise SpecError(f"{says} {error}") from None
    raise SpecError(f"{says}{did_you_mean(str(value), words)}")


def _order(choice: Attribute, text: str) -> str:
    """The canonical spelling of an order. Raises OrderError."""
    core = tensor_core_order(text) if choice.tensor_cores else None
    if core is None and not choice.order:
        raise orders.OrderError(f"{text!r} is none of tensor cores.")
    return str(core or (planned_order(text) if choice.tensor_cores else None) or orders.parse(text))


def edge_of(name: str) -> tuple[str, str] | None:
    """`output->rms_norm` -> its site and its consumer; None for the name of an attribute."""
    site, arrow, consumer = name.partition(EDGE)
    return (site, consumer) if arrow else None


def _check_requested(op: str | None, attribute: str, where: Where) -> None:
    """Refuse an attribute that no request could set: all that are neither numbers nor what it asks for by ids."""
    numbers = [choice.name for choice in OPS[op].attributes if choice.can_be_requested] if op else []
    if attribute not in numbers:
        has = f"op {op} has {listed(numbers)}" if numbers else f"{op or 'a rule without `op`'} has none"
        raise SpecError(f"{where}: requested names {attribute!r}; expected an attribute that a request chooses: {has}.")


def _check_edge(op: Op, site: str, value: Value, where: Where) -> tuple[Attribute, Value]:
    sites = [a.name for a in op.attributes if a.edge]
    if site not in sites:
        has = f"it has {listed(sites)}" if sites else "it has none: what is stored is not the rounding of one value"
        raise SpecError(f"{where}: op {op.name} has no site {site!r} on its edges; {has}.{did_you_mean(site, sites)}")
    choice = op.attribute(site)
    assert choice is not None
    if value not in (STORED, *choice.values):
        raise SpecError(
            f"{where}: {op.name}:{site} on an edge is {shown(value)}; expected one of {STORED}, {choice.expected}."
            f"{did_you_mean(str(value), (STORED, *choice.values))}"
        )
    return choice, value


def _fusion(path: Path, profile: str, fusion: profile_schema.Fusion) -> Rule:
    where = Where(path, fusion.line)
    at = Where(path, fusion.line_of("chain"))
    for op in fusion.chain:
        if op not in OPS:
            raise SpecError(f"{at}: op {op!r} is unknown; expected one of {listed(OPS)}.{did_you_mean(op, OPS)}")
    lines = getattr(fusion.set, "key_lines", {})
    for key, value in fusion.set.items():
        _check_fused(fusion.chain, key, value, Where(path, lines.get(key, fusion.line)))
    evidence = fusion.evidence
    return Rule(
        fusion=fusion.name,
        chain=tuple(fusion.chain),
        model_types=None if fusion.model_type is None else tuple(fusion.model_type),
        sizes=fusion.condition,
        cases=fusion.cases,
        values=tuple(fusion.set.items()),
        where=where,
        evidence=UNKNOWN if evidence is None else f"{evidence.level}: {evidence.source}",
        set_by=fusion.set_by,
        profile=profile,
    )


def _check_fused(chain: list[str], key: str, value: Value, where: Where) -> None:
    """Refuse a key that is not `op:attribute` or `op:site->op` with ops that stand once in the chain."""
    op, colon, name = key.partition(":")
    edge = edge_of(name)
    if not colon:
        raise SpecError(
            f"{where}: {key!r} names no attribute; expected `op:attribute` or `op:site->op`, with ops of the chain."
        )
    for member in (op, edge[1]) if edge else (op,):
        if chain.count(member) != 1:
            has = "twice" if member in chain else "not at all"
            once = [op_name for op_name in chain if chain.count(op_name) == 1]
            raise SpecError(
                f"{where}: {key!r} names op {member!r}, which stands in the chain {has}; expected one of "
                f"{listed(once)}.{did_you_mean(member, once)}"
            )
    if edge and chain.index(edge[1]) != chain.index(op) + 1:
        raise SpecError(f"{where}: {key!r}: {edge[1]} does not follow {op} in the chain. Name an edge of the chain.")
    check_value(OPS[op], name, value, where)


def _rule(path: Path, profile: str, rule: profile_schema.Rule, requested: Sequence[str] = ()) -> Rule:
    where = Where(path, rule.line)
    if rule.op is not None and rule.op not in OPS:
        raise SpecError(
            f"{Where(path, rule.line_of('op'))}: op {rule.op!r} is unknown; expected one of {listed(OPS)}."
            + did_you_mean(rule.op, OPS)
        )
    if rule.op is not None:
        lines = getattr(rule.set, "key_lines", {})
        for attribute, value in rule.set.items():
            check_value(OPS[rule.op], attribute, value, Where(path, lines.get(attribute, rule.line)))
    for attribute in requested:
        _check_requested(rule.op, attribute, Where(path, rule.line_of("requested")))
    evidence = rule.evidence
    return Rule(
        op=rule.op,
        nodes=rule.nodes,
        model_types=None if rule.model_type is None else tuple(rule.model_type),
        sizes=rule.condition,
        cases=rule.cases,
        values=(*rule.set.items(), *((attribute, REQUESTED) for attribute in requested)),
        where=where,
        evidence=UNKNOWN if evidence is None else f"{evidence.level}: {evidence.source}",
        set_by=rule.set_by,
        profile=profile,
    )
