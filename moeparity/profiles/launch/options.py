"""What an option of a launch configuration is: its spellings, its default, and what its values imply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from moeparity.errors import whole_number
from moeparity.profiles.launch.architecture import QUANTISED, Model
from moeparity.profiles.launch.reading.grammar import Grammar

UNKNOWN = "no shipped profile speaks of {}"
_QUANTISES = ("quant", "fp8", "fp4", "torchao", "modelopt", "rl_quant", "hf_overrides", "json_model_override")
"""Beginnings of the names of options that may quantise weights."""
NO_PROFILE = ""
"""In place of a profile, where none speaks of a side."""


Placed = Mapping[str, int | bool | str | tuple[int, ...]]
"""Keys of a recipe's placement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Implied:
    """What an option's value means for one side: another base profile, an overlay, a placement, a dtype, or words only.

    `says` is for people. `warns`: what the value changes that no profile states; empty if a profile states it. Nothing
    is put in the place of what is not stated. `drops` are overlays that the value switches off, `sets` values on top of
    the profile (`gate:output`: fp64). `shows`: whether a quiet option is shown for it; an option without effect is not.
    `selects` are values at addresses, for a recipe's own `set:` (`**.experts:tensor`: 1). `covered_by`: what it
    warns of is in an adapter that a recipe gives, or in recorded steps, where there are any.
    """

    says: str
    profile: str | None = None
    overlay: str | None = None
    placement: Placed = field(default_factory=dict)
    dtype: str | None = None
    warns: str = ""
    drops: tuple[str, ...] = ()
    sets: Mapping[str, str | float] = field(default_factory=dict)
    selects: Mapping[str, str | int] = field(default_factory=dict)
    shows: bool = True
    covered_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. `names` are its spellings with underscores, the engine's own name first; names in nested files have
    dots.

    `default` is the value that counts if it is not set. `environment`: it is an environment variable. `role` is the
    side that it concerns: `server`, or `trainer` and `rollout`. `quiet`: it is shown only if it is set, or warns.
    `concerns` is what a model must have for the option to have any effect (`Model.lacks`). `shorthand` is the key for
    which a whole number stands that is given in place of a mapping. `null` is what `null` means, if that is not the
    default.
    """

    names: tuple[str, ...]
    kind: Literal["count", "number", "flag", "word", "mapping", "any"]
    default: Any
    implies: Callable[[Any], Implied]
    choices: tuple[str, ...] = ()
    environment: bool = False
    role: str = "server"
    quiet: bool = False
    concerns: str = ""
    shorthand: str = ""
    null: str = ""

    @property
    def name(self) -> str:
        """As the engine spells it."""
        return self.names[0]


def count(
    *names: str, implies: Callable[[Any], Implied], default: int = 1, role: str = "server", quiet: bool = False
) -> Option:
    """An option that is a whole number from 1."""
    return Option(names=names, kind="count", default=default, implies=implies, role=role, quiet=quiet)


def number(*names: str, implies: Callable[[Any], Implied], default: float = 1.0, role: str = "server") -> Option:
    """An option that is a number from 0, within fp32."""
    return Option(names=names, kind="number", default=default, implies=implies, role=role)


def switch(
    *names: str,
    on: Implied,
    off: Implied,
    default: bool = False,
    role: str = "server",
    environment: bool = False,
    quiet: bool = False,
) -> Option:
    """An option that is set or not."""
    return Option(
        names=names,
        kind="flag",
        default=default,
        implies=lambda value: on if value else off,
        role=role,
        environment=environment,
        quiet=quiet,
    )


def word(
    *names: str,
    default: str,
    implies: Callable[[Any], Implied],
    choices: tuple[str, ...] = (),
    role: str = "server",
    environment: bool = False,
) -> Option:
    """An option that is one of several words, or any word."""
    return Option(
        names=names,
        kind="word",
        default=default,
        implies=implies,
        choices=choices,
        role=role,
        environment=environment,
    )


def words(meanings: Mapping[str, Implied], otherwise: str = UNKNOWN) -> Callable[[Any], Implied]:
    """What a word implies; for any other, `otherwise` with the word put in, which warns where no profile has it."""

    def implies(value: Any) -> Implied:
        says = otherwise.format(value)
        return meanings.get(str(value), Implied(says=says, warns=says if otherwise == UNKNOWN else ""))

    return implies


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """What a launch configuration sets, or leaves at its default: by the engine's own names, and the model it runs."""

    values: Mapping[str, Any]
    stated: frozenset[str]
    model: Model

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def idle(self, concern: str) -> str:
        """Why what only such a model or format takes has no effect here; empty where it may have one."""
        quantised = any(
            name.rpartition(".")[2].startswith(_QUANTISES) or "fp8" in str(value)
            for name, value in self.values.items()
            if name in self.stated
        )
        return "" if not concern or (concern == QUANTISED and quantised) else self.model.lacks(concern)

    def is_on(self, name: str) -> bool:
        """Whether an option is given, as a bare flag or with another value than one that says no."""
        value = self.values.get(name, False)
        return value is None or str(value).lower() not in ("none", "false", "0", "", "null")

    def ranks(self, name: str) -> int:
        """A number of ranks; 1 where it refers to another value, or is none of the program's options."""
        value = self.values.get(name, 1)
        number = whole_number(value) if isinstance(value, str) else value
        return int(number) if isinstance(number, int) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What an engine decides for one side from several options, or from the model; `source` is the place in its code.

    Its placement replaces what single options say.
    """

    role: str
    implied: Implied
    source: str


class ImpossibleError(ValueError):
    """Options that an engine refuses to start with, in words; `option` is the one to change."""

    def __init__(self, option: str, says: str) -> None:
        super().__init__(says)
        self.option = option


Rule = Callable[[LaunchSettings], Iterable[Decision]]
"""What an engine decides by several options and the model. Raises ImpossibleError for what it refuses to start with."""


def prefixed(options: Iterable[Option], prefix: str) -> tuple[Option, ...]:
    """A server's options as a trainer passes them on to its rollout: under a prefix; shown where set."""
    return tuple(
        replace(
            _of_rollout(option), names=tuple(f"{prefix}{name}" for name in option.names), role="rollout", quiet=True
        )
        for option in options
        if not option.environment
    )


_SAMPLERS = ("generation_config", "sampling_defaults")


def _of_rollout(option: Option) -> Option:
    """A server's option as it counts for a trainer's requests, which say all that a sampler's defaults would."""
    says = "no effect: a trainer's requests say how they are sampled"
    return replace(option, implies=lambda _: Implied(says=says, shows=False)) if option.name in _SAMPLERS else option


def of_environment(options: Iterable[Option]) -> tuple[Option, ...]:
    """A server's environment variables, which reach it from the trainer that starts it; shown where set."""
    return tuple(replace(option, role="rollout", quiet=True) for option in options if option.environment)


def idle_environment(options: Iterable[Option], reason: str) -> dict[str, str]:
    """A server's environment variables where a trainer does not start it, each with why it has no effect."""
    return {option.name: reason for option in options if option.environment}


def defaults(options: Iterable[Option]) -> dict[str, Any]:
    """What a server's options are for a trainer that passes none of them on."""
    return {option.name: option.default for option in options if not option.environment}


def embedded(rule: Rule, prefix: str, options_of: Callable[[LaunchSettings], Mapping[str, Any]]) -> Rule:
    """A server's rule, made one for the rollout that a trainer starts: it goes by the options under `prefix`, and by
    what `options_of` says of others.

    `options_of` maps the server's names to values. An empty mapping says that this server is not started.
    """

    def rule_of_trainer(settings: LaunchSettings) -> Iterator[Decision]:
        server_values = options_of(settings)
        if not server_values:
            return
        variables = {name: value for name, value in settings.values.items() if name.isupper()}
        below = variables | {n.removeprefix(prefix): v for n, v in settings.values.items() if n.startswith(prefix)}
        set_below = {n.removeprefix(prefix) for n in settings.stated if n.startswith(prefix) or n in variables}
        inner = LaunchSettings(values={**below, **server_values}, stated=frozenset(set_below), model=settings.model)
        for decision in rule(inner):
            yield replace(decision, role="rollout")

    return rule_of_trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An engine that is launched: the profile from which each of its sides starts, its options, and what is said of
    them.

    `source` is where options and defaults were read. `model`: the options that name the checkpoint. `rules` are applied
    in turn, after all options. `irrelevant`: options known to change no log-probability; one that ends in a dot stands
    for all below it. `inactive` says why options that begin with certain words have no effect. `grammar` is how its
    parser splits a command line, None if that is not known. `gone` are options of other versions, each with what this
    version has in its place. `packages` are other packages whose release counts. `mirrors` says which side copies
    another one, and with which settings. `variables` are the beginnings of options that set environment variables, and
    the sides that have these variables.
    """

    name: str
    engine: str
    version: str
    source: str
    start: Mapping[str, str]
    options: tuple[Option, ...]
    model: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    irrelevant: frozenset[str] = frozenset()
    inactive: Callable[[LaunchSettings], Mapping[str, str]] = lambda _: {}
    grammar: Grammar | None = None
    packages: tuple[str, ...] = ()
    gone: Mapping[str, str] = field(default_factory=dict)
    mirrors: Callable[[LaunchSettings], Mapping[str, tuple[str, LaunchSettings]]] = lambda _: {}
    variables: Callable[[Mapping[str, Any]], Mapping[str, tuple[str, ...]]] = lambda _: {}
