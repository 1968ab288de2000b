"""A recipe's `expect:` compared with its report: each expectation is met, not met, or open."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from moeparity.bisection.divergence.growth import GrowthStep, largest, steps
from moeparity.bisection.divergence.show import nowhere
from moeparity.bisection.expected import of_parts, of_spikes, of_updates
from moeparity.bisection.record.data import deciding, overall
from moeparity.bisection.report import Report
from moeparity.bisection.shares.data import ShareRow
from moeparity.bisection.toggles.data import ToggleResult, TrialResult
from moeparity.errors import SpecError, Where, did_you_mean, listed
from moeparity.output.findings import Finding, Outcome, Status, agrees, keeps, lies
from moeparity.output.status import with_but
from moeparity.plan.graph import Graph
from moeparity.plan.region import nodes_within
from moeparity.plan.spec.expect import (
    Bounds,
    DistributionBounds,
    Expect,
    FlipBounds,
    GrowthBounds,
    MetricBounds,
    SpikeBounds,
    UpdateBounds,
)
from moeparity.plan.spec.recipe_schema import RecipeFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One expectation, in words and as a function that judges a report.

    of_engine: the expectation is about the engine that made the record, if there is one. Simulations that do not
    reproduce the record can't meet it.
    """

    says: str
    judge: Callable[[Report], Outcome]
    of_engine: bool = True

    def finding(self, report: Report) -> Finding:
        """The outcome in one report. If the record contradicts the simulations, an `of_engine` expectation that they
        meet is open.
        """
        status, text = self.judge(report)
        if status == "ok" and self.of_engine and (record := deciding(report.records)).contradicts:
            status, text = "inconclusive", f"{text}; of two simulations, the record is {record}"
        return Finding(expectation=self.says, status=status, found=text)


def expectations(expect: Expect, graph: Graph, where: Where) -> tuple[Expectation, ...]:
    """What a recipe expects, in the order of the schema; if it expects nothing, that its gate is passed.

    Raises GraphError if `first_divergence` selects no node of the graph, and SpecError for bounds on flips of a model
    without routers.
    """
    of_engine = expect.record != "not reproduced"
    return tuple(replace(item, of_engine=of_engine) for item in _expectations(expect, graph, where))


def refuse_unknown(expect: Expect, toggles: Iterable[str], where: Where) -> None:
    """Raise SpecError if an expectation names something that is not a toggle of the recipe."""
    toggle_names = list(toggles)
    culprits = expect.culprits if isinstance(expect.culprits, list) else []
    mentions = {"culprits": culprits, "no_effect": expect.no_effect, "shares": list(expect.shares or ())}
    mentions |= {"saturated": expect.saturated, "smallest_fix": expect.smallest_fix}
    for key, names in mentions.items():
        for name in names or ():
            if name not in toggle_names:
                inventory = (
                    f"it has {listed(toggle_names)}" if toggle_names else "it has none: both sides are set alike"
                )
                raise SpecError(
                    f"{Where(where.path, expect.line_of(key))}: expect.{key} names {name!r}, which is no toggle of "
                    f"this recipe; {inventory}.{did_you_mean(name, toggle_names)}"
                )


def refuse_unmeasured(recipe: RecipeFile, where: Where) -> None:
    """Raise SpecError if shares are expected of a recipe that takes none (`attribute: false`), replays of one that
    replays nothing (`replay: false`), spikes of one that draws none, or of a block what is not among its `swap`.
    """
    expect = recipe.expect
    for selector in expect.restores or ():
        if selector not in recipe.swap:
            at = Where(where.path, expect.line_of("restores"))
            inventory = f"it swaps {listed(recipe.swap)}" if recipe.swap else "it swaps none"
            raise SpecError(
                f"{at}: expect.restores names {selector!r}, which this recipe does not swap; {inventory}. Add it to "
                f"`swap:`.{did_you_mean(selector, recipe.swap)}"
            )
    if expect.spikes is not None and recipe.spikes is None:
        at = Where(where.path, expect.line_of("spikes"))
        raise SpecError(f"{at}: expect.spikes needs draws to look for spikes in. Add `spikes: {{draws: 16}}`.")
    if expect.replay is not None and not recipe.replay:
        at = Where(where.path, expect.line_of("replay"))
        raise SpecError(f"{at}: expect.replay needs the replay ladder, and this recipe has none. Add `replay: true`.")
    keys = [key for key in ("shares", "saturated", "smallest_fix") if key in expect.model_fields_set]
    if keys and not recipe.attribute:
        at = Where(where.path, expect.line_of(keys[0]))
        raise SpecError(f"{at}: expect.{keys[0]} needs shares, and this recipe takes none. Add `attribute: true`.")


def _expectations(expect: Expect, graph: Graph, where: Where) -> Iterator[Expectation]:
    verdict = expect.verdict or (None if expect.model_fields_set else "pass")
    if verdict is not None:
        yield Expectation(says=f"verdict {verdict}", judge=partial(_verdict, verdict))
    if expect.record is not None:
        says = expect.record if expect.record == "no record" else f"record {expect.record}"
        yield Expectation(says=says, judge=partial(_record, expect.record))
    yield from _metrics(expect.metrics, _metric)
    yield from _metrics(expect.distribution, _distribution)
    yield from _metrics(expect.updates, of_updates)
    yield from _metrics(expect.spikes, of_spikes)
    yield from (Expectation(says=says, judge=judge) for says, judge in of_parts(expect))
    if expect.interval is not None:
        yield Expectation(says=f"interval {expect.interval}", judge=partial(_interval, expect.interval))
    if expect.flips is not None:
        _refuse_flips("flips", expect, graph, where)
        yield from _flips(expect.flips)
    if expect.growth is not None:
        if expect.growth.step_with_flips or expect.growth.step_without_flips:
            _refuse_flips("growth", expect, graph, where)
        yield from _growth(expect.growth)
    if expect.first_divergence is not None:
        at = Where(where.path, expect.line_of("first_divergence"))
        nowhere = expect.first_divergence == "none"
        nodes = frozenset(() if nowhere else nodes_within(expect.first_divergence, graph, at))
        says = "no divergence" if nowhere else f"first divergence {expect.first_divergence}"
        yield Expectation(says=says, judge=partial(_first_divergence, nodes))
    if expect.culprits == "none":
        yield Expectation(says="no culprit", judge=_none_acts)
    elif expect.culprits is not None:
        for name in expect.culprits:
            yield Expectation(says=f"culprit {name}", judge=partial(_toggle, name, True))
    for name in expect.no_effect or ():
        yield Expectation(says=f"no effect of {name}", judge=partial(_toggle, name, False))
    for name, bounds in (expect.replay or {}).items():
        yield Expectation(says=f"replay of {name} {bounds}", judge=partial(_replay, name, bounds))
    yield from _blame(expect)


def _metrics(
    bounds: MetricBounds | DistributionBounds | UpdateBounds | SpikeBounds | None,
    measure: Callable[[str, Report], float],
) -> Iterator[Expectation]:
    for name in type(bounds).model_fields if bounds is not None else ():
        range_: Bounds | None = getattr(bounds, name)
        if range_ is not None:
            value = partial(measure, name)
            of_spikes = "spikes " if isinstance(bounds, SpikeBounds) else ""
            yield Expectation(says=f"{of_spikes}{name} {range_}", judge=partial(_within, range_, value))


def _flips(bounds: FlipBounds) -> Iterator[Expectation]:
    if bounds.tokens is not None:
        says = f"flipped tokens {bounds.tokens}"
        yield Expectation(says=says, judge=partial(_within, bounds.tokens, _flipped_tokens))
    if bounds.token_layers is not None:
        says = f"flipped token-layers {bounds.token_layers}"
        yield Expectation(says=says, judge=partial(_within, bounds.token_layers, _flipped_token_layers))


def _refuse_flips(key: str, expect: Expect, graph: Graph, where: Where) -> None:
    if not any(node.op.role.routes for node in graph.nodes):
        at = Where(where.path, expect.line_of(key))
        raise SpecError(f"{at}: expect.{key}: {graph.model_type} has no router here, so nothing can flip. Drop it.")


def _growth(bounds: GrowthBounds) -> Iterator[Expectation]:
    """The expectations about steps between layers. A layer without a router (`flips` None) counts neither as one with
    flips nor as one without.
    """
    kinds: dict[str, tuple[str, Callable[[GrowthStep], bool]]] = {
        "step": ("", lambda _: True),
        "step_with_flips": (" where tokens flip", lambda step: bool(step.flips)),
        "step_without_flips": (" where no token flips", lambda step: step.flips == 0),
    }
    for name, (condition, predicate) in kinds.items():
        range_: Bounds | None = getattr(bounds, name)
        if range_ is not None:
            says = f"growth over a layer{condition} {range_}"
            yield Expectation(says=says, judge=partial(_within, range_, partial(_largest_step, predicate)))


def _blame(expect: Expect) -> Iterator[Expectation]:
    for name, bounds in (expect.shares or {}).items():
        yield Expectation(says=f"share of {name} {bounds}", judge=partial(_share, name, bounds))
    for name in expect.saturated or ():
        yield Expectation(says=f"{name} saturated", judge=partial(_saturated, name))
    if expect.smallest_fix is not None:
        says = f"smallest fix {', '.join(expect.smallest_fix)}"
        yield Expectation(says=says, judge=partial(_smallest_fix, frozenset(expect.smallest_fix)))


def _verdict(status: str, report: Report) -> Outcome:
    outcome, words = agrees(status, report.verdict)
    return outcome, with_but(words, [f"pass, but {choice}" for choice in report.summary.but])


def _record(status: str, report: Report) -> Outcome:
    records = "; ".join(map(str, report.records))
    return "ok" if overall(report.records) == status else "fail", records


def _metric(name: str, report: Report) -> float:
    return float(getattr(report.metrics, name))


def _distribution(name: str, report: Report) -> float:
    return float(getattr(report.distribution, name, math.nan))


def _flipped_tokens(report: Report) -> float:
    flips = report.flips
    return flips.tokens_any_layer / flips.tokens if flips is not None and flips.tokens else math.nan


def _flipped_token_layers(report: Report) -> float:
    layers = () if report.flips is None else report.flips.layers
    tokens = sum(layer.tokens for layer in layers)
    return sum(layer.set_flips for layer in layers) / tokens if tokens else math.nan


def _replay(name: str, bounds: Bounds, report: Report) -> Outcome:
    """Hold the KL of a replay, of the natural one, to its bounds."""
    replay = report.replay
    if replay is None or not replay.rungs:
        return "fail", "no routes can be forced here"
    of_name = {rung.forced: rung.kl for rung in replay.rungs} | {trap.name: trap.kl for trap in replay.traps}
    if name not in of_name:
        return "fail", f"there is no such replay; there are {listed(of_name)}.{did_you_mean(name, of_name)}"
    natural = replay.rungs[0].kl
    return lies(bounds, of_name[name] / natural if natural else math.nan)


def _largest_step(predicate: Callable[[GrowthStep], bool], report: Report) -> float:
    return largest(filter(predicate, steps(report.growth, report.flips)))


def _within(bounds: Bounds, value: Callable[[Report], float], report: Report) -> Outcome:
    return lies(bounds, value(report))


def _interval(bounds: Bounds, report: Report) -> Outcome:
    return keeps(bounds, report.verdict, report.run.sequences)


def _first_divergence(nodes: frozenset[str], report: Report) -> Outcome:
    if not report.roots:
        return "fail" if nodes else "ok", nowhere(report.subtracted)
    return "ok" if report.roots[0].node in nodes else "fail", report.roots[0].node


def _toggle(name: str, effect: bool, report: Report) -> Outcome:
    toggle = next(toggle for toggle in report.toggles if toggle.name == name)
    return _status(_acts(toggle), expectation=effect), _effect(toggle)


def _none_acts(report: Report) -> Outcome:
    effects = {toggle.name: _acts(toggle) for toggle in report.toggles}
    active_names = [name for name, effect in effects.items() if effect]
    open_names = [name for name, effect in effects.items() if effect is None]
    if active_names:
        return "fail", f"had an effect: {listed(active_names)}"
    if open_names:
        return "inconclusive", f"cannot be told, an op refuses the mixture: {listed(open_names)}"
    return "ok", "no toggle had an effect" if effects else "there is no toggle: both sides are set alike"


def _acts(toggle: ToggleResult) -> bool | None:
    """Whether some trial of this toggle changed a bit at some node; None if none did and one of the trials can't
    run.
    """
    trials = (toggle.alone, toggle.restored)
    if any(trial is not None and trial.changed_nodes > 0 for trial in trials):
        return True
    return None if None in trials else False


def _status(effect: bool | None, *, expectation: bool) -> Status:
    if effect is None:
        return "inconclusive"
    return "ok" if effect == expectation else "fail"


def _effect(toggle: ToggleResult) -> str:
    def words(trial: TrialResult | None) -> str:
        if trial is None:
            return "cannot run"
        return f"KL {trial.kl:.3g}" if trial.changed_nodes else "no bit changed"

    return f"alone {words(toggle.alone)}, restored {words(toggle.restored)}"


def _share(name: str, bounds: Bounds, report: Report) -> Outcome:
    """Hold the share of a choice to its bounds: met if its interval lies within them, not met if it lies outside,
    open if a bound lies in the interval.
    """
    row = _row(name, report)
    if row is None or report.attribution is None or not report.attribution.shares.total:
        return "fail", "there are no shares: no divergence, or an op refuses a mixture"
    low, high = row.of_whole_low, row.of_whole_high
    interval = f"{low:.1%} to {high:.1%}" if math.isfinite(low) and math.isfinite(high) else "not bounded"
    text = f"{row.of_whole:.1%} ({interval}), {row.role}"
    below, above = bounds.below, bounds.above
    if (below is not None and low >= below) or (above is not None and high <= above):
        return "fail", text
    inside = (below is None or high < below) and (above is None or low > above)
    return "ok" if inside else "inconclusive", text


def _row(name: str, report: Report) -> ShareRow | None:
    """The share of a choice; None if it has none."""
    rows = report.attribution.shares.rows if report.attribution else ()
    return next((row for row in rows if row.name == name), None)


def _saturated(name: str, report: Report) -> Outcome:
    row = _row(name, report)
    role = "no share" if row is None else row.role
    return "ok" if role == "saturated" else "fail", role


def _smallest_fix(toggles: frozenset[str], report: Report) -> Outcome:
    fixes = report.attribution.fixes if report.attribution else ()
    if not fixes:
        return "fail", "no fix was found"
    smallest = [fix.toggles for fix in fixes if len(fix.toggles) == len(fixes[0].toggles)]
    text = "; or ".join(", ".join(names) or "nothing" for names in smallest)
    return "ok" if toggles in [set(names) for names in smallest] else "fail", text
