"""What a recipe expects of its shares and fixes, held against its report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from moeparity.bisection.report import Report
from moeparity.errors import SpecError, Where
from moeparity.output.findings import Outcome
from moeparity.plan.spec.expect import Bounds, Expect


def blame_expectations(expect: Expect) -> Iterator[tuple[str, Callable[[Report], Outcome]]]:
    """Each expectation in words, and how it is held against a report."""
    for name, bounds in (expect.shares or {}).items():
        yield f"share of {name} {bounds}", partial(_share, name, bounds)
    for name in expect.saturated or ():
        yield f"{name} saturated", partial(_saturated, name)
    if expect.smallest_fix is not None:
        yield f"smallest fix {', '.join(expect.smallest_fix)}", partial(_smallest, frozenset(expect.smallest_fix))


def refuse_unshared(expect: Expect, where: Where, *, attribute: bool) -> None:
    """Raise SpecError where something is expected of shares that the recipe does not take."""
    keys = [key for key in ("shares", "saturated", "smallest_fix") if key in expect.model_fields_set]
    if keys and not attribute:
        at = Where(where.path, expect.line_of(keys[0]))
        raise SpecError(f"{at}: expect.{keys[0]} needs shares, and this recipe takes none. Add `attribute: true`.")


def _share(name: str, bounds: Bounds, report: Report) -> Outcome:
    """Met where the whole interval lies inside, not met where it lies beyond a bound, else open."""
    attribution = report.attribution
    row = next((row for row in attribution.shares.rows if row.name == name), None) if attribution else None
    total = attribution.shares.total if attribution else None
    if row is None or not total:
        return "fail", "there are no shares: no divergence, or an op refuses a mixture"
    low, high = row.of_whole_low, row.of_whole_high
    interval = f"{low:.1%} to {high:.1%}" if math.isfinite(low) and math.isfinite(high) else "not bounded"
    text = f"{row.of_whole:.1%} ({interval}), {row.role}"
    below, above = bounds.below, bounds.above
    if (below is not None and low >= below) or (above is not None and high <= above):
        return "fail", text
    inside = (below is None or high < below) and (above is None or low > above)
    return "ok" if inside else "inconclusive", text


def _saturated(name: str, report: Report) -> Outcome:
    attribution = report.attribution
    role = (
        next((row.role for row in attribution.shares.rows if row.name == name), "no share")
        if attribution
        else "no share"
    )
    return "ok" if role == "saturated" else "fail", role


def _smallest(toggles: frozenset[str], report: Report) -> Outcome:
    attribution = report.attribution
    fixes = attribution.fixes if attribution else ()
    if not fixes:
        return "fail", "no fix was found"
    size = len(fixes[0].toggles)
    smallest = [set(fix.toggles) for fix in fixes if len(fix.toggles) == size]
    text = "; or ".join(", ".join(fix.toggles) or "nothing" for fix in fixes if len(fix.toggles) == size)
    return "ok" if toggles in smallest else "fail", text
