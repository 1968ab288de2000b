"""The engines of both parties: named, or as launch files start them, or the defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from moeparity.bisection.init.launched import Launched, as_variant, on_graph
from moeparity.doctor.evidence import Stranger
from moeparity.doctor.report import PARTIES, Party
from moeparity.doctor.scores import MICRO_BATCH
from moeparity.errors import GraphError, MoeparityError, SpecError, Where, display_path
from moeparity.plan.bound import BoundGraph
from moeparity.plan.engine_profile import Profile, load_profile
from moeparity.plan.graph import Graph
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.steps import FORWARD, MicroBatches, Phase, Schedule
from moeparity.plan.schedule.token_grid import TokenGrid
from moeparity.plan.sides import bound_side, cases_of, phases_of, walked
from moeparity.plan.spec.scheduling import Scheduling
from moeparity.plan.spec.variant_schema import Placement, Variant
from moeparity.profiles.launch import read

Bound = TypeVar("Bound")
DEFAULTS: Final[dict[Party, str]] = {"sampler": "vllm", "trainer": "hf-eager"}
BY_DEFAULT: Final = "by default"
HERE: Final = Where(Path("doctor"))
_ROLES: Final[dict[Party, tuple[str, ...]]] = {"sampler": ("server", "rollout"), "trainer": ("trainer",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How a party computes. name: by which reports know it. by: from where that is known. warnings: what its launch
    file says of numerics and no profile covers. file: that which starts it.
    """

    name: str
    variant: Variant
    profile: Profile
    by: str
    warnings: tuple[str, ...] = ()
    file: Path | None = None

    @property
    def alone(self) -> Engine:
        """The same in fp32 on one rank: its settings and none of its rounding."""
        changed = {"dtype": "fp32", "placement": Placement(), "micro_batch": MICRO_BATCH}
        return replace(self, variant=self.variant.model_copy(update=changed))

    def on_steps(
        self, file: Path, graph: Graph, grid: TokenGrid, dtype: str, rules: tuple[Rule, ...]
    ) -> tuple[BoundGraph, Schedule | MicroBatches]:
        """As the engine ran the steps of a file. Raises SpecError if they are not those of these tokens."""
        steps = Scheduling(file=str(file.absolute()))
        variant = self.variant.model_copy(update={"schedule": steps, "micro_batch": None})
        side = bound_side(graph, variant, self.profile, dtype, HERE, over=rules)
        phases = phases_of((side.schedule,), grid, HERE)
        cases = cases_of(graph, dtype, phases, (variant,), (self.profile,), HERE, (rules,))
        side = bound_side(graph, variant, self.profile, dtype, HERE, over=rules, phases=cases)
        return side.plan, walked(side.schedule, grid, HERE)


def bound_alike(
    of: Mapping[str, Engine], graph: Graph, dtype: str, rules: tuple[Rule, ...], phases: tuple[Phase, ...] = (FORWARD,)
) -> dict[str, BoundGraph]:
    """The plans of engines for some phases, which are cut alike in all, so that they can be mixed. Raises SpecError,
    GraphError.
    """
    variants, profiles = [each.variant for each in of.values()], [each.profile for each in of.values()]
    cases = cases_of(graph, dtype, phases, variants, profiles, HERE, (rules,) * len(of))
    return {
        name: bound_side(graph, each.variant, each.profile, dtype, HERE, over=rules, phases=cases).plan
        for name, each in of.items()
    }


def shipped(name: str, by: str) -> Engine:
    """The engine of a profile: a shipped one's name, or a path. Raises SpecError."""
    return Engine(name=name, variant=Variant(profile=name), profile=load_profile(name, HERE), by=by)


def engines(
    profiles: Mapping[Party, str | None],
    launches: Sequence[Path],
    checkpoint: Path,
    graph: Graph,
    dtype: str,
    bind: Callable[[dict[Party, Engine]], Bound],
) -> tuple[Bound, list[Stranger]]:
    """What `bind` makes of the engine of each party: the named profile; else by launch files, what an engine resolved
    before what starts it; else the default. dtype: the checkpoint's. Launch files that are of no use come with the
    reason, so do those whose engine does not fit the model: `bind` is called again without these. Raises SpecError for
    a profile that there is not, and what `bind` raises of others.
    """
    refused: dict[tuple[Path, Party], str] = {}
    while True:
        of_party, aside = _chosen(profiles, launches, checkpoint, graph, refused)
        try:
            return bind(of_party), aside
        except (SpecError, GraphError):
            unfit = _unfit(of_party, graph, dtype)
            if not unfit:
                raise
            refused |= unfit


def _unfit(of_party: Mapping[Party, Engine], graph: Graph, dtype: str) -> dict[tuple[Path, Party], str]:
    """Of the engines that files start, those that can't be bound by themselves, with the reason."""
    reasons: dict[tuple[Path, Party], str] = {}
    for party, engine in of_party.items():
        if engine.file is not None:
            try:
                bound_alike({engine.name: engine}, graph, dtype, ())
                bound_alike({engine.name: engine.alone}, graph, "fp32", ())
            except (SpecError, GraphError) as error:
                reasons[engine.file, party] = _reason(error)
    return reasons


def _reason(error: MoeparityError) -> str:
    """An error begins with a place in a profile that was put together for this."""
    return str(error).partition(": ")[2] or str(error)


def _chosen(
    profiles: Mapping[Party, str | None],
    launches: Sequence[Path],
    checkpoint: Path,
    graph: Graph,
    refused: Mapping[tuple[Path, Party], str],
) -> tuple[dict[Party, Engine], list[Stranger]]:
    sides, aside = _launched(launches, checkpoint)
    every = [launched for launched, _ in sides]
    of_party: dict[Party, Engine] = {}
    for party in PARTIES:
        name = profiles[party]
        candidates = [pair for pair in sides if pair[0].side.role in _ROLES[party]]
        candidates.sort(key=lambda pair: (not pair[0].launch.resolved_by, _ROLES[party].index(pair[0].side.role)))
        if name is not None:
            of_party[party] = shipped(name, "as named")
            candidates = []
        for launched, path in candidates:
            if party in of_party:
                aside += _unlike(of_party[party], launched, path, party)
                continue
            reason = refused.get((path, party), "")
            try:
                if not reason:
                    of_party[party] = _engine(launched, every, path, graph)
            except (SpecError, GraphError) as error:
                reason = _reason(error)
            if reason:
                aside.append(Stranger(path, f"{display_path(path)}: its {party} can't be run here: {reason}"))
        of_party.setdefault(party, shipped(DEFAULTS[party], BY_DEFAULT))
    return _distinct(of_party), aside


def _distinct(of_party: dict[Party, Engine]) -> dict[Party, Engine]:
    """The same with two names for what is not the same."""
    sampler, trainer = of_party["sampler"], of_party["trainer"]
    if sampler.name != trainer.name or sampler.variant == trainer.variant:
        return of_party
    return {party: replace(engine, name=f"{engine.name} ({party})") for party, engine in of_party.items()}


def _launched(launches: Sequence[Path], checkpoint: Path) -> tuple[list[tuple[Launched, Path]], list[Stranger]]:
    sides: list[tuple[Launched, Path]] = []
    aside: list[Stranger] = []
    for path in launches:
        try:
            launch = read(path, checkpoint)
        except MoeparityError as error:
            aside.append(Stranger(path, str(error)))
            continue
        usable = [Launched(launch=launch, side=side) for side in launch.sides if side.profile]
        sides += [(launched, path) for launched in usable]
        if not usable:
            aside.append(Stranger(path, f"{display_path(path)}: {launch.engine}, which no shipped profile speaks of"))
    return sides, aside


def _engine(launched: Launched, every: Sequence[Launched], path: Path, graph: Graph) -> Engine:
    """Raises SpecError, GraphError for a side that can't be put on this model."""
    launched = on_graph(launched, every, graph)
    side = launched.side
    variant, profile = as_variant(launched, path.stem)
    is_plain = not (side.further or side.sets or side.selects or side.placement or side.dtype)
    return Engine(
        name=side.profile if is_plain else f"{side.profile} of {path.name}",
        variant=variant,
        profile=profile,
        by=f"{'as resolved in' if launched.launch.resolved_by else 'by launch file'} {display_path(path)}",
        warnings=launched.warnings,
        file=path,
    )


def _unlike(engine: Engine, launched: Launched, path: Path, party: Party) -> Iterator[Stranger]:
    """A second file of a party, which is left aside unless it says the same; one file may start two servers."""
    if display_path(path) in engine.by:
        return
    if launched.side.profile != engine.variant.profile or launched.side.dtype != engine.variant.dtype:
        reason = (
            f"{display_path(path)}: starts another {party} ({launched.side.variant}); taken: {engine.name}, {engine.by}"
        )
        yield Stranger(path, f"{reason}; name the one that ran with --{party}, or give its file alone")
