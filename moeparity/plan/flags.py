"""The flags whose effect on a profile is known, and the profile that the engine runs with each of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from moeparity.errors import MoeparityError, Where
from moeparity.ops.attribute import EDGE, Value
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import REQUESTED, Profile, about, layers_of, load_profile
from moeparity.plan.latest import Latest
from moeparity.plan.rule import NO_ENGINE, Rule
from moeparity.plan.sizes import meet
from moeparity.plan.spec import profile_schema
from moeparity.plan.vllm_tiles import is_tuned

LEAVING_OUT: Final = "leaving out "
"""Prefix of the text of a `KnownFlag` that takes away a flag the engine is given now."""

Layers = tuple[tuple[Rule, ...], tuple[Rule, ...]]
"""The fusions and the rules of one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What decides which effect a flag has: the model, its dtype, and the ranks.

    `tensor` is the number of ranks of tensor parallel; None under data-parallel attention.
    """

    model_type: str
    sizes: tuple[tuple[str, int], ...]
    dtype: str
    tensor: int | None

    @classmethod
    def of(cls, plan: Plan, tensor: int | None) -> Setup:
        """That of a plan."""
        sizes = tuple(sorted(plan.graph.sizes.items()))
        return cls(model_type=plan.graph.model_type, sizes=sizes, dtype=plan.dtype, tensor=tensor)

    def meets(self, flag: profile_schema.Flag) -> bool | None:
        """Whether the conditions of a flag hold here; None where that is not known."""
        sizes = dict(self.sizes)
        if (flag.model_type is not None and self.model_type not in flag.model_type) or not meet(sizes, flag.condition):
            return False
        ranks = flag.placement
        if ranks is None and flag.when is None:
            return True
        if self.tensor is None:
            return None
        if ranks is not None and not ranks.hold(self.tensor):
            return False
        return True if flag.when is None else self.dtype == "bf16" and is_tuned(sizes, self.tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFlag:
    """A flag that a user would give the engine (or leave out), and the profile that it runs then.

    `sets` are the names of the attributes whose values may differ in that profile; `requested` are those, with their
    op, whose number each request chooses.
    """

    text: str
    profile: Profile
    sets: frozenset[str]
    requested: frozenset[tuple[str, str]]

    def asked_for(self, attribute: str, value: Value) -> Profile:
        """The profile for the case that every request asks for this number, and for nothing else."""
        if not self.requested:
            return self.profile
        layers = tuple(tuple(_asked_for(rule, attribute, value) for rule in layer) for layer in self.profile.layers)
        return replace(self.profile, layers=layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlaggedPlans:
    """The known flags of a side's profile, and the side's plan with each flag, bound on first use."""

    flags: tuple[KnownFlag, ...]
    bind: Callable[[Profile], Plan]
    _plans: dict[tuple[str, tuple[str, Value] | None], Plan | None] = field(default_factory=dict, repr=False)

    def plan(self, flag: KnownFlag, request: tuple[str, Value] | None = None) -> Plan | None:
        """The plan with a flag; `request` is the attribute, with its number, that requests ask for, where the flag
        leaves it to them. None where such a plan cannot be bound.
        """
        key = (flag.text, request)
        if key not in self._plans:
            try:
                self._plans[key] = self.bind(flag.profile if request is None else flag.asked_for(*request))
            except MoeparityError:
                self._plans[key] = None
        return self._plans[key]


def known_flags(profile: Profile, setup: Setup | None = None) -> tuple[KnownFlag, ...]:
    """Every flag with a known effect on a profile, and every given flag that can be left out. Raises SpecError.

    What a profile says of a flag takes precedence over what the profiles it extends say. A flag that is given already
    is not listed, and neither is one whose effect in this `setup` is not known. Without a setup, what is said of some
    models alone is left out.
    """
    return _LATEST.of((profile,), setup, lambda: tuple(_known_flags(profile, setup)))


# Profiles are cached by content (`load_profile`), so an unchanged profile is the same object and can be the key.
_LATEST: Final[Latest[tuple[KnownFlag, ...]]] = Latest(64)


def _known_flags(profile: Profile, setup: Setup | None) -> Iterator[KnownFlag]:
    if profile.engine is None or profile.engine.name == NO_ENGINE:
        return
    flags_given = _engine_flags(profile)
    visited, replaced = set[str](flags_given), set[str]()
    for depth in reversed(range(len(profile.files))):
        _, spec = profile.files[depth]
        for flag in spec.flags if _speaks_of_its_engine(profile, depth) else ():
            met = _is_met(flag, setup)
            # A flag that is not given cannot be left out.
            possible = flag.flag.removeprefix(LEAVING_OUT) in flags_given or not flag.flag.startswith(LEAVING_OUT)
            if flag.flag not in visited and possible and met and flag.is_known:
                yield _flag(flag.flag, profile, _with(flag, profile, depth))
            if met is not False:
                visited.add(flag.flag)
        visited.update(spec.unknown_flags)
        if any(flag.becomes == spec.extends for flag in spec.flags):
            replaced |= _set_by(profile, depth)
    for name in flags_given:
        text = f"{LEAVING_OUT}{name}"
        if text not in visited and name not in replaced:
            yield _flag(text, profile, _without(profile, name))


def _is_met(flag: profile_schema.Flag, setup: Setup | None) -> bool | None:
    """Whether the conditions of a flag hold; without a setup, whether it has none."""
    return not flag.is_conditional if setup is None else setup.meets(flag)


def _speaks_of_its_engine(profile: Profile, depth: int) -> bool:
    """Whether the files that a profile extends, up to the one at `depth`, describe the profile's own engine in its own
    version. The last of them that has `engine:` says which engine they describe.
    """
    engines = [spec.engine for _, spec in profile.files[: depth + 1] if spec.engine is not None]
    if not engines or profile.engine is None:
        return False
    return (engines[-1].name, engines[-1].version) == (profile.engine.name, profile.engine.version)


def _engine_flags(profile: Profile) -> list[str]:
    """The flags that the engine is given, base first. A flag that a later file lists under `flags:` is not given."""
    flags_given = dict[str, None]()
    for depth, (_, spec) in enumerate(profile.files):
        flags_given |= dict.fromkeys(sorted(_set_by(profile, depth)))
        for flag in spec.flags:
            flags_given.pop(flag.flag, None)
    return list(flags_given)


def _set_by(profile: Profile, depth: int) -> set[str]:
    """The flags named in `set_by` by the rules of one of a profile's files."""
    return {rule.set_by for layer in _files_layers(profile)[depth] for rule in layer if rule.set_by}


def _flag(text: str, before: Profile, after: Profile) -> KnownFlag:
    rules = [{id(rule): rule for layer in of.layers for rule in layer} for of in (before, after)]
    # Rules of both profiles that the other lacks. Too many may be listed; binding shows which values really change.
    changed = [rule for of, others in (rules, rules[::-1]) for key, rule in of.items() if key not in others]
    return KnownFlag(
        text=text,
        profile=after,
        sets=frozenset(site_of(key.rpartition(":")[2]) for rule in changed for key, _ in rule.values),
        requested=frozenset((rule.op, key) for rule in changed if rule.op for key, v in rule.values if v == REQUESTED),
    )


def site_of(name: str) -> str:
    """The attribute in the name of a place or key: `output` of `output->rms_norm`, else the name itself."""
    return name.partition(EDGE)[0]


def _with(flag: profile_schema.Flag, profile: Profile, depth: int) -> Profile:
    """The profile with a flag of its file at `depth`: up to that file it is replaced by the profile it `becomes`; the
    flag's own rules come on top, then the later files.
    """
    path, spec = profile.files[depth]
    layers, its_rules = _files_layers(profile), layers_of(flag, path, spec.name)
    on_top = [its_rules] if any(its_rules) else []
    if flag.becomes is None:
        return _of_files(profile, [*layers[: depth + 1], *on_top, *layers[depth + 1 :]])
    target = load_profile(flag.becomes, Where(path, flag.line_of("becomes")))
    theirs = dict(zip(_paths(target), _files_layers(target), strict=True))
    ours = dict(zip(_paths(profile)[: depth + 1], layers, strict=False))
    ops = flag.ops or None
    below = [layer for file, layer in ours.items() if file in theirs]
    above = [layer for file, layer in ours.items() if file not in theirs]
    untouched = [_of_ops(layer, ops, those=False) for layer in above] if ops else []
    new = [_of_ops(layer, ops, those=True) for file, layer in theirs.items() if file not in ours]
    engines = (target.engine, profile.engine)
    spoken = [tuple(tuple(about(rule, *engines) for rule in layer) for layer in file_layers) for file_layers in new]
    became = _of_files(profile, [*below, *untouched, *spoken, *on_top, *layers[depth + 1 :]])
    names = {rule.profile for _, rule in profile.on_gpus}
    on_gpus = [
        (gpu, about(rule, *engines))
        for gpu, rule in target.on_gpus
        if rule.profile not in names and (ops is None or rule.op in ops)
    ]
    return replace(became, on_gpus=(*on_gpus, *profile.on_gpus))


def _of_ops(layers: Layers, ops: Collection[str] | None, *, those: bool) -> Layers:
    """The rules of a file for some ops (`those`), or for all other ops; fusions count as the latter. None: all."""
    fusions, rules = layers
    if ops is None:
        return layers
    return () if those else fusions, tuple(rule for rule in rules if (rule.op in ops) == those)


def _without(profile: Profile, flag: str) -> Profile:
    """A profile without the rules whose `set_by` is this flag."""
    return replace(
        profile, layers=tuple(tuple(rule for rule in layer if rule.set_by != flag) for layer in profile.layers)
    )


def _of_files(profile: Profile, files: Sequence[Sequence[tuple[Rule, ...]]]) -> Profile:
    return replace(profile, layers=tuple(layer for layers in files for layer in layers))


def _files_layers(profile: Profile) -> list[Layers]:
    return list(zip(profile.layers[::2], profile.layers[1::2], strict=True))


def _paths(profile: Profile) -> list[Path]:
    return [path.resolve() for path, _ in profile.files]


def _asked_for(rule: Rule, attribute: str, value: Value) -> Rule:
    if all(stated != REQUESTED for _, stated in rule.values):
        return rule
    stated_values = (pair for pair in rule.values if pair[1] != REQUESTED or pair[0] == attribute)
    return replace(rule, values=tuple((key, value if stated == REQUESTED else stated) for key, stated in stated_values))
