"""Sums in order of arrival (`unordered`): one draw of such an order is no result, so further draws are run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from moeparity.bisection.arrival.data import Arrival, ArrivalDraw
from moeparity.bisection.arrival.show import arrival_reading
from moeparity.bisection.context import Context, Measure
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trial, TrialKey, Trials
from moeparity.errors import SpecError, Where
from moeparity.metrics.gating import gated_name
from moeparity.numerics.orders import NATIVE, Order, parse
from moeparity.plan.bound import Plan
from moeparity.plan.changed import in_phases
from moeparity.plan.setting import Place, Setting
from moeparity.plan.sides import CANDIDATE, REFERENCE, SIDES, Side

DRAWS = 4
"""How many further draws are run of each side that has a sum in order of arrival, unless the recipe says how many."""

UNORDERED = "unordered"


def trials(study: Study, trials: Trials) -> Trials:
    """The first pass's trials for this section: further draws of each side that adds in order of arrival."""
    further = DRAWS if study.recipe.spikes is None else study.recipe.spikes.draws - 1
    return {
        TrialKey("arrival", name, number): Trial(side=draw, base=name)
        for name, side in list(study.sides.items())[: 1 if study.recorded else 2]
        for number, draw in enumerate(arrival_draws(side, further), 1)
    }


def arrival_draws(side: Side, further: int = DRAWS) -> list[Side]:
    """Copies of the side in which every `unordered` sum has a seed 1 to `further` higher; [] if the side has no such
    sum.
    """
    if not adds_on_arrival(side.plan):
        return []
    return [replace(side, plan=_redrawn(side.plan, offset)) for offset in range(1, further + 1)]


def refuse_nothing_drawn(study: Study) -> None:
    """Raises SpecError if the recipe looks for spikes over draws, and no side has anything to draw."""
    if study.recipe.spikes is not None and not any(adds_on_arrival(side.plan) for side in study.sides.values()):
        where = Where(study.path, study.recipe.line_of("spikes"))
        raise SpecError(
            f"{where}: spikes draws sums in order of arrival, and neither side has one that takes effect. Give a side "
            'a profile with one, or set it, as in `set: {"layers[*].moe.combine:order": unordered(0)}`; among ranks '
            '`"**.reduce:collective": none` and `"**.reduce:order": unordered(0)`.'
        )


def adds_on_arrival(plan: Plan) -> bool:
    """Whether some sum that takes effect is added in order of arrival."""
    return any(list(_orders(in_phase)) for in_phase in plan.distinct)


def _redrawn(plan: Plan, offset: int) -> Plan:
    return in_phases(plan, {phase: _redrawn_settings(plan.at_phase(phase), offset) for phase in plan.phases})


def _redrawn_settings(plan: Plan, offset: int) -> dict[Place, Setting]:
    orders = _orders(plan)
    return {place: replace(plan.settings[place], value=str(_shifted(order, offset))) for place, order in orders}


def _orders(plan: Plan) -> Iterator[tuple[Place, Order]]:
    """Every order that takes effect and of which at least one level is added in order of arrival."""
    for node in plan.graph.nodes:
        active = plan.active(node)
        for attribute in node.attributes:
            value = str(active.get(attribute.name, NATIVE)) if attribute.order else NATIVE
            if UNORDERED in value:
                yield (node.name, attribute.name), parse(value)


def _shifted(order: Order, offset: int) -> Order:
    """The order with `offset` added to the seed of each level in order of arrival."""
    levels = (
        replace(level, numbers=(level.numbers[0] + offset,)) if level.name == UNORDERED else level
        for level in order.levels
    )
    return Order(tuple(levels))


def measure(of: Context) -> Arrival | None:
    """All draws of the sides that add in order of arrival; None if neither side does."""
    study, observed = of.study, of.observed
    verdicts = {key: observed.logits.sums(key).verdict(study.gate) for key in observed.keys("arrival")}
    if not verdicts:
        return None
    reference, candidate = ({key.draw: v for key, v in verdicts.items() if key.of == side} for side in SIDES)
    if candidate:
        # The recipe's own draw comes first.
        candidate = {0: observed.logits.sums(CANDIDATE).verdict(study.gate), **candidate}
    ours, theirs = ([verdict.value.estimate for verdict in draws.values()] for draws in (reference, candidate))
    return Arrival(
        draws=tuple(
            ArrivalDraw(side=side, draw=draw, value=verdict.value)
            for side, draws in ((REFERENCE, reference), (CANDIDATE, candidate))
            for draw, verdict in draws.items()
        ),
        disputed=len({verdict.status for verdict in candidate.values()}) > 1,
        reading=tuple(arrival_reading(theirs, ours, gated_name(study.gate.metric))),
    )


MEASURE = Measure(gives=Arrival, measure=measure, trials=trials)
