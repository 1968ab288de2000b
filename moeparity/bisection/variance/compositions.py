"""Which compositions of a side's sequences are tried: batches of some sizes, its own schedule and others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from moeparity.errors import SpecError, Where
from moeparity.plan.schedule.make import refuse_unfit, schedule
from moeparity.plan.schedule.others import others
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.steps import Step
from moeparity.plan.schedule.token_grid import TokenGrid

OWN = "as in the recipe"
"""The name of a side's own schedule."""

CompositionKind = Literal["forward", "prefill", "decode", "packed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """One schedule of the same sequences, with its name."""

    name: str
    settings: ScheduleSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Compositions of one kind with different steps, all compared with the first. left_out: others, and why.

    is_one_model: whether they are one model in exact arithmetic. Packs without a mask, or with positions that run on
    over sequences, are not: there a sequence's inputs depend on its neighbours.
    """

    kind: CompositionKind
    compositions: tuple[Composition, ...]
    left_out: tuple[str, ...]

    @property
    def is_one_model(self) -> bool:
        """Whether the compositions are one model in exact arithmetic, as said above."""
        return not any(composition.settings.hands_on for composition in self.compositions)


def groups(own_settings: ScheduleSettings, batches: Sequence[int], grid: TokenGrid, where: Where) -> tuple[Group, ...]:
    """The compositions of a side whose schedule is `own_settings`, in groups of at least two.

    They are whole sequences in batches of these sizes: a trainer's forward passes, or a server's prefills. If the side
    decodes, it also decodes in batches of these sizes. Its own schedule and its engine's `others` are added if they
    differ in more than the size of a batch; packs are a group of their own. Raises SpecError for a recorded schedule,
    which can't be changed, and if there are no two compositions.
    """
    if own_settings.recorded is not None:
        raise SpecError(
            f"{where}: the schedule of this side is a recorded list of batches, which has no other sizes. Name the "
            "other side by --side, or give this one a `rule`."
        )
    every = tuple(_group(kind, wanted, grid, where) for kind, wanted in _wanted(own_settings, batches, grid, where))
    several = tuple(group for group in every if len(group.compositions) > 1)
    if not several:
        reasons = "; ".join(reason for group in every for reason in group.left_out)
        raise SpecError(
            f"{where}: there is one composition only, so nothing to compare"
            + (f" ({reasons})" if reasons else "")
            + ". Give other sizes by --batches, or more sequences."
        )
    return several


def _wanted(
    own_settings: ScheduleSettings, batches: Sequence[int], grid: TokenGrid, where: Where
) -> Iterator[tuple[CompositionKind, list[Composition]]]:
    """The groups to try, before their schedules are made."""
    whole = replace(
        own_settings,
        start=None,
        verify=0,
        buckets=(),
        pack=None,
        mask="block",
        positions="reset",
        continuous=False,
        arrivals=(),
    )
    further = [Composition(name=OWN, settings=own_settings)]
    further += [
        Composition(name=name, settings=further_settings)
        for name, further_settings in others(own_settings, grid, where).items()
    ]
    last: CompositionKind = (
        "decode" if own_settings.start is not None else "packed" if own_settings.pack is not None else _kind(whole)
    )
    bases = {_kind(whole): whole}
    if last == "decode":
        bases["decode"] = replace(own_settings, continuous=False, arrivals=())
    for kind in dict.fromkeys((*bases, last)):
        base = bases.get(kind)
        sized = [] if base is None else [_batch(base, size, grid) for size in batches]
        joining = [
            composition
            for composition in further
            if kind == last and (base is None or not _is_batch_of(composition.settings, base))
        ]
        yield kind, sized + joining


def _kind(whole: ScheduleSettings) -> CompositionKind:
    return "forward" if whole.is_plain else "prefill"


def _batch(base: ScheduleSettings, size: int, grid: TokenGrid) -> Composition:
    noun = "micro-batch" if base.is_plain else "batches of"
    more = f", all {grid.sequences}" if size > grid.sequences else ""
    return Composition(name=f"{noun} {size}{more}", settings=replace(base, batch=min(size, grid.sequences)))


def _is_batch_of(of: ScheduleSettings, base: ScheduleSettings) -> bool:
    """Whether two schedules differ in the size of a batch only."""
    return replace(of, batch=base.batch) == base


def _group(kind: CompositionKind, wanted: Sequence[Composition], grid: TokenGrid, where: Where) -> Group:
    by_steps: dict[tuple[Step, ...], Composition] = {}
    left_out = []
    for composition in wanted:
        try:
            refuse_unfit(composition.settings, grid, where)
            steps = schedule(composition.settings, grid, where).steps
        except SpecError as error:
            left_out.append(f"{composition.name}: {error}")
            continue
        same = by_steps.setdefault(steps, composition)
        if same is not composition:
            left_out.append(f"{composition.name} has the steps of {same.name}")
    return Group(kind=kind, compositions=tuple(by_steps.values()), left_out=tuple(left_out))
