"""Compares the `expect:` of a log with its report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from moeparity.errors import counted, listed
from moeparity.logs.noise_gate import FLIPPED
from moeparity.logs.report import LogReport
from moeparity.output.findings import Finding, Outcome, agrees, keeps, lies
from moeparity.plan.spec.expect import LogExpect, StepBound


def log_findings(expect: LogExpect, report: LogReport, noise: Mapping[str, float]) -> tuple[Finding, ...]:
    """What a log expects, in the order of the schema, compared with its report; if it expects nothing, its gate.

    `report` must have a verdict and every metric that is bounded. noise: the bounds of what legal arithmetic makes.
    """
    assert report.verdict is not None
    outcomes: list[tuple[str, Outcome]] = []
    verdict = expect.verdict or (None if expect.model_fields_set else "pass")
    if verdict is not None:
        outcomes.append((f"verdict {verdict}", agrees(verdict, report.verdict)))
    for name, range_ in (expect.metrics or {}).items():
        metric = report.metric(name)
        outcome = ("fail", metric.missing) if metric.missing else lies(range_, metric.value.estimate)
        outcomes.append((f"{name} {range_}", outcome))  # type: ignore[arg-type]
    if expect.interval is not None:
        expectation = f"interval {expect.interval}"
        outcomes.append((expectation, keeps(expect.interval, report.verdict, report.sequences)))
    causes_named = listed(report.causes) or "none named"
    if expect.causes == "none":
        outcomes.append(("no cause named", ("fail" if report.causes else "ok", causes_named)))
    causes = expect.causes if isinstance(expect.causes, list) else []
    outcomes += [(f"cause {cause}", ("ok" if cause in report.causes else "fail", causes_named)) for cause in causes]
    if expect.steps is not None:
        outcomes.append(_steps(expect.steps, report))
    outcomes += _noise(noise, report)
    return tuple(
        Finding(expectation=expectation, status=status, found=detail) for expectation, (status, detail) in outcomes
    )


def _steps(bound: StepBound, report: LogReport) -> tuple[str, Outcome]:
    """Each step against the bound; the one furthest beyond is told."""
    expectation = f"{bound.metric} below {bound.below:g} at each of {bound.count} steps"
    points = next((each.series.points for each in report.series if each.series.metric == bound.metric), ())
    beyond = [point for point in points if not point.value < bound.below]
    if beyond:
        worst = max(beyond, key=lambda point: point.value if math.isfinite(point.value) else math.inf)
        return expectation, ("fail", f"{worst.value:.3g} at step {worst.step}, {counted(len(beyond), 'step')} beyond")
    if len(points) < bound.count:
        return expectation, ("inconclusive", f"the log has {counted(len(points), 'step')}")
    most = max(point.value for point in points)
    return expectation, ("ok", f"at most {most:.3g} over {counted(len(points), 'step')}")


def _noise(bounds: Mapping[str, float], report: LogReport) -> Iterator[tuple[str, Outcome]]:
    """Each statistic against what legal arithmetic makes."""
    for name, bound in bounds.items():
        yield f"{name} within noise, {bound:.3g}", _below(bound, *_statistic(name, report))


def _statistic(name: str, report: LogReport) -> tuple[float | None, Outcome]:
    """The number of a statistic; None with what is said instead."""
    if name != FLIPPED:
        metric = report.metric(name)
        return (None, ("fail", metric.missing)) if metric.missing else (metric.value.estimate, ("ok", ""))
    grouping = next(each for each in report.groupings if each.by == FLIPPED)
    tokens = {group.name: group.tokens for group in grouping.groups}
    count = tokens.get("flipped", 0) + tokens.get("not flipped", 0)
    if not count:
        return None, ("inconclusive", "the log does not have the routes of both sides")
    return tokens.get("flipped", 0) / count, ("ok", "")


def _below(bound: float, estimate: float | None, otherwise: Outcome) -> Outcome:
    if estimate is None:
        return otherwise
    return "ok" if estimate <= bound else "fail", f"{estimate:.3g}"
