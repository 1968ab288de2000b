"""Two launch configurations as sides, and which choices each of their options makes.

An option's choices are found by reading the configuration anew with the other one's value of it: what then differs is
what the option changes. No table says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from moeparity.bisection.init.launched import as_variant, on_graph
from moeparity.bisection.init.launched_side import Launched
from moeparity.errors import SpecError, Where
from moeparity.plan.difference import differences
from moeparity.plan.engine_profile import Profile
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.settings import parts, possible_phases, settings
from moeparity.plan.schedule.steps import PHASES
from moeparity.plan.setting import Place
from moeparity.plan.sides import Side, bound_side, cases_of
from moeparity.plan.spec.scheduling import Scheduling
from moeparity.plan.spec.variant_schema import Variant
from moeparity.profiles.launch.configuration import Configuration
from moeparity.profiles.launch.knowledge import listed
from moeparity.profiles.launch.reader import configurations, launch
from moeparity.profiles.launch.report import Launch, joined
from moeparity.profiles.launch.server_schedule import schedule, scheduling_options

_SERVERS = ("server", "rollout")
_MICRO_BATCH = 8
"""Whole sequences that a trainer takes together, since its launch file says only how many tokens."""

Moved = Place | str
"""A place of the numerics, or a part of the schedule by its name."""


class Bindable(NamedTuple):
    """A side as a recipe would have it."""

    variant: Variant
    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """One program of a launch file: all that the file starts, which of these it is, and the role of its side."""

    path: Path
    every: tuple[Configuration, ...]
    number: int
    role: str

    @property
    def configuration(self) -> Configuration:
        """The program."""
        return self.every[self.number]

    def with_value_of(self, name: str, peer: Configuration) -> Started:
        """The same with one option as another configuration has it."""
        changed = self.configuration.with_value_of(name, peer)
        every = (*self.every[: self.number], changed, *self.every[self.number + 1 :])
        return replace(self, every=every)

    @property
    def launch(self) -> Launch:
        """What the whole file implies. Raises SpecError."""
        return joined([launch(configuration) for configuration in self.every])

    def launched(self) -> Launched:
        """Its side. Raises SpecError for one that no shipped profile speaks of."""
        whole = self.launch
        side = next(side for side in whole.sides if side.role == self.role)
        if not side.profile:
            raise SpecError(f"{Where(self.path)}: no shipped profile speaks of its {self.role} ({whole.engine}).")
        return Launched(launch=whole, side=side, checkpoint=self.configuration.checkpoint)

    def bindable(self, peer: Started, graph: Graph) -> Bindable:
        """Its side on a model. What its file does not say of requests is as the `peer` says. Raises SpecError."""
        mine = self.launched()
        variant, profile = as_variant(on_graph(mine, (peer.launched(), mine), graph), f"{self.path.stem}_{self.role}")
        steps = schedule(self.configuration) if self.role in _SERVERS else None
        if steps is None or variant.placement.groups.count > 1:
            return Bindable(variant.model_copy(update={"micro_batch": _MICRO_BATCH}), profile)
        return Bindable(variant.model_copy(update={"schedule": Scheduling.model_validate(steps)}), profile)


def started(path: Path, checkpoint: Path) -> list[Started]:
    """Every side that a launch file starts. Raises SpecError."""
    every = tuple(configurations(path, checkpoint, scheduling_options))
    return [
        Started(path=path, every=every, number=number, role=side.role)
        for number, configuration in enumerate(every)
        for side in launch(configuration).sides
    ]


def pair(first: Path, second: Path, checkpoint: Path, role: str | None) -> tuple[Started, Started]:
    """The sides that are compared: servers where both files start one, else trainers, else what there is. `role` is
    `server` or `trainer`. Raises SpecError.
    """
    of_files = [started(path, checkpoint) for path in (first, second)]
    wanted = [_SERVERS, ("trainer",)] if role is None else [_SERVERS if role == "server" else (role,)]
    for roles in wanted:
        chosen = [next((side for side in sides if side.role in roles), None) for sides in of_files]
        if chosen[0] is not None and chosen[1] is not None:
            return chosen[0], chosen[1]
    if role is None:
        return of_files[0][0], of_files[1][0]
    without = next(path for path, sides in zip((first, second), of_files, strict=True) if not _has(sides, wanted[0]))
    raise SpecError(
        f"{Where(without)}: --role {role}: it starts no {role}. Leave --role out, or give the file of a {role}."
    )


def _has(sides: Sequence[Started], roles: Sequence[str]) -> bool:
    return any(side.role in roles for side in sides)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options in which two configurations differ, by name, each with why it can't be put (empty if it can); and of
    each place that differs, which options move it, joined by `with`.
    """

    names: tuple[str, ...]
    obstacles: Mapping[str, str]
    owner: Mapping[Moved, str]


def options_of(first: Started, second: Started, graph: Graph, dtype: str) -> Options:
    """Which options differ between two configurations of one program, and what each moves. Raises SpecError."""
    names = tuple(_differing(first.configuration, second.configuration))
    ends = (first.bindable(second, graph), second.bindable(first, graph))
    swapped, obstacles = dict[tuple[str, int], Bindable](), dict[str, str]()
    for name in names:
        for end, (base, peer) in enumerate(((first, second), (second, first))):
            try:
                swapped[name, end] = base.with_value_of(name, peer.configuration).bindable(peer, graph)
            except SpecError as error:
                obstacles[name] = str(error)
    sides = _bound([*ends, *swapped.values()], graph, dtype, Where(second.path))
    bound = dict(zip(swapped, sides[2:], strict=True))
    moves = {key: _between(sides[key[1]], side) for key, side in bound.items()}
    owner = {}
    for moved in _between(sides[0], sides[1]):
        owners = next(filter(None, ([n for n in names if moved in moves.get((n, end), ())] for end in (0, 1))), [])
        owner[moved] = " with ".join(owners)
    stopped = {name: why for name, why in obstacles.items() if not any((name, end) in moves for end in (0, 1))}
    return Options(names=names, obstacles=stopped, owner=owner)


def _differing(first: Configuration, second: Configuration) -> Iterator[str]:
    """Options that both programs have, with other values; none of two engines."""
    if first.program.name != second.program.name:
        return
    theirs = {option.name for option in second.program.options}
    for option in first.program.options:
        if option.name in theirs and first.value(option.name).text != second.value(option.name).text:
            yield option.name


def _between(first: Side, second: Side) -> frozenset[Moved]:
    """Where two sides differ."""
    places = chain.from_iterable(difference.places for difference in differences(first.plan, second.plan))
    return frozenset((*places, *parts(first.schedule, second.schedule)))


def _bound(bindable: Sequence[Bindable], graph: Graph, dtype: str, where: Where) -> list[Side]:
    """Sides bound for the same cases, so that any two can be compared."""
    variants, profiles = [each.variant for each in bindable], [each.profile for each in bindable]
    phases = {phase for v in variants for phase in possible_phases(settings(v.schedule, v.micro_batch, None, where))}
    cases = cases_of(graph, dtype, [phase for phase in PHASES if phase in phases], variants, profiles, where)
    return [bound_side(graph, v, profile, dtype, where, phases=cases) for v, profile in bindable]


def objectives(first: Started, second: Started) -> Mapping[str, tuple[str, str]]:
    """Options of the training objective (clipping, importance weights and the like) that two configurations set
    differently: by name both values, `unset` where a file says nothing. They change the loss, and no log-probability.
    """
    values = [dict(_stated(started)) for started in (first, second)]
    names = dict.fromkeys(chain.from_iterable(values))
    texts = {name: (values[0].get(name, "unset"), values[1].get(name, "unset")) for name in names}
    return {name: pair for name, pair in texts.items() if pair[0] != pair[1]}


def _stated(started: Started) -> Iterator[tuple[str, str]]:
    for configuration in started.every:
        for entry in configuration.source.options:
            if entry.name.rpartition(".")[2] in listed("shared", "objective"):
                yield entry.name, "true" if entry.value is None else str(entry.value)
