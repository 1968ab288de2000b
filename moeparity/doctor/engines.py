"""The engines of both parties: named, or as launch files start them, or the defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from moeparity.bisection.init.launched import as_variant, on_graph
from moeparity.bisection.init.launched_side import Launched
from moeparity.doctor.evidence import Stranger
from moeparity.doctor.report import PARTIES, Party
from moeparity.doctor.scores import MICRO_BATCH
from moeparity.errors import GraphError, MoeparityError, SpecError, Where, display_path
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import Profile, load_profile
from moeparity.plan.graph import Graph
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.settings import settings
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
    """How a party computes. name: the one in reports. by: the source of this knowledge. warnings: options of its launch
    file that decide numerics and that no profile covers; warnings_on_steps: those that are left on recorded
    steps. file: the one that starts the engine.
    """

    name: str
    variant: Variant
    profile: Profile
    by: str
    warnings: tuple[str, ...] = ()
    warnings_on_steps: tuple[str, ...] = ()
    file: Path | None = None

    @property
    def alone(self) -> Engine:
        """The engine in fp32 on one rank: its settings and none of its rounding."""
        changed = {"dtype": "fp32", "placement": Placement(), "micro_batch": MICRO_BATCH}
        return replace(self, variant=self.variant.model_copy(update=changed))

    def on_steps(
        self, steps: Scheduling, graph: Graph, grid: TokenGrid, dtype: str, rules: tuple[Rule, ...]
    ) -> tuple[Plan, Schedule | MicroBatches]:
        """As the engine runs these steps. Raises SpecError if they are those of a file and not of these tokens."""
        variant = self.variant.model_copy(update={"schedule": steps, "micro_batch": None})
        phases = phases_of((settings(steps, None, None, HERE, variant.placement.groups),), grid, HERE)
        cases = cases_of(graph, dtype, phases, (variant,), (self.profile,), HERE, (rules,))
        side = bound_side(graph, variant, self.profile, dtype, HERE, over=rules, phases=cases)
        return side.plan, walked(side.schedule, grid, HERE)


def bound_alike(
    of: Mapping[str, Engine], graph: Graph, dtype: str, rules: tuple[Rule, ...], phases: tuple[Phase, ...] = (FORWARD,)
) -> dict[str, Plan]:
    """The plans of engines for some phases. The cases of the phases are the same in all plans, so that the plans can be
    mixed. Raises SpecError, GraphError.
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
    """The result of `bind` for the engines of both parties, and the launch files that are of no use, each with the
    reason. The engine of a party is that of the named profile; else that of a launch file, where arguments that an
    engine resolved come before the file that starts it; else the default. If the engine of a launch file does not fit
    the model, `bind` is called again without this file. dtype: the checkpoint's. Raises SpecError for a profile that
    does not exist, and what `bind` raises for other engines.
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
    """The engines of launch files that can't be bound by themselves, with the reason."""
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
    """The message of an error, without its beginning, which names a place in a profile that was put together here."""
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
    """The engines; two that differ get different names."""
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
        usable = [Launched(launch=launch, side=side, checkpoint=checkpoint) for side in launch.sides if side.profile]
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
        warnings=launched.warnings(graph),
        warnings_on_steps=launched.warnings(graph, on_steps=True),
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
