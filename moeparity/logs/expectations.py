"""Compares the `expect:` of a log with its report."""

from __future__ import annotations

from moeparity.errors import listed
from moeparity.logs.report import LogReport
from moeparity.output.findings import Finding, Outcome, agrees, keeps, lies
from moeparity.plan.spec.expect import LogExpect


def log_findings(expect: LogExpect, report: LogReport) -> tuple[Finding, ...]:
    """What a log expects, in the order of the schema, compared with its report; if it expects nothing, its gate.

    `report` must have a verdict and every metric that is bounded.
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
    return tuple(
        Finding(expectation=expectation, status=status, found=detail) for expectation, (status, detail) in outcomes
    )
