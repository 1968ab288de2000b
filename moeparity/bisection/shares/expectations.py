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
    asked = [key for key in ("shares", "saturated", "smallest_fix") if key in expect.model_fields_set]
    if asked and not attribute:
        at = Where(where.path, expect.line_of(asked[0]))
        raise SpecError(f"{at}: expect.{asked[0]} needs shares, and this recipe takes none. Add `attribute: true`.")


def _share(name: str, bounds: Bounds, report: Report) -> Outcome:
    """Met where the whole interval lies inside, not met where it lies beyond a bound, else open."""
    found = report.attribution
    row = next((row for row in found.shares.rows if row.name == name), None) if found else None
    total = found.shares.total if found else None
    if row is None or not total:
        return "fail", "there are no shares: no divergence, or an op refuses a mixture"
    low, high = row.of_whole_low, row.of_whole_high
    interval = f"{low:.1%} to {high:.1%}" if math.isfinite(low) and math.isfinite(high) else "not bounded"
    said = f"{row.of_whole:.1%} ({interval}), {row.role}"
    below, above = bounds.below, bounds.above
    if (below is not None and low >= below) or (above is not None and high <= above):
        return "fail", said
    inside = (below is None or high < below) and (above is None or low > above)
    return "ok" if inside else "inconclusive", said


def _saturated(name: str, report: Report) -> Outcome:
    found = report.attribution
    role = next((row.role for row in found.shares.rows if row.name == name), "no share") if found else "no share"
    return "ok" if role == "saturated" else "fail", role


def _smallest(toggles: frozenset[str], report: Report) -> Outcome:
    found = report.attribution
    fixes = found.fixes if found else ()
    if not fixes:
        return "fail", "no fix was found"
    least = len(fixes[0].toggles)
    smallest = [set(one.toggles) for one in fixes if len(one.toggles) == least]
    said = "; or ".join(", ".join(one.toggles) or "nothing" for one in fixes if len(one.toggles) == least)
    return "ok" if toggles in smallest else "fail", said
