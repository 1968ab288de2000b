"""Turns the results of the searches into the report's data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from moeparity.bisection.context import Context, Measure, filled
from moeparity.bisection.shares.data import (
    ApartRow,
    Attribution,
    FixSetRow,
    InteractionRow,
    KeptRow,
    PlacesRow,
    RestoredRow,
    ShareRow,
    Shares,
)
from moeparity.bisection.shares.places import Places
from moeparity.bisection.shares.search import SHARES, Searched, parts_of
from moeparity.bisection.study import Study
from moeparity.plan import evidence as levels
from moeparity.plan.toggles import Toggle
from moeparity.search.by_size import Restored
from moeparity.search.fixes import FixSet, MayStay
from moeparity.search.interactions import Interaction
from moeparity.search.judged_apart import Apart
from moeparity.search.memo import Outcome
from moeparity.search.waterfall import Share, Waterfall

Evidence = Mapping[str, str]
"""By toggle, the lowest level of the values that it switches."""


def measure(of: Context) -> Attribution | None:
    """What the searches found; None if the recipe asks for none, or without toggles."""
    blame = of.observed.of_search(SHARES)
    return None if blame is None else _attribution(blame, of.study)


def _evidence(study: Study, toggles: Iterable[Toggle]) -> Evidence:
    """By name, the lowest level of the values that a toggle switches."""
    sides = study.reference.plan, study.candidate.plan
    return {toggle.name: levels.in_words(levels.evidence(toggle.members, *sides)) for toggle in toggles}


def _attribution(blame: Searched, study: Study) -> Attribution:
    """The searches' results in plain numbers."""
    whole = [member for toggle in study.whole_toggles for member in (toggle, *parts_of(toggle))]
    evidence = _evidence(study, whole)
    return filled(
        Attribution,
        blame,
        shares=_shares(blame.shares, evidence),
        forced=None if blame.forced is None else _shares(blame.forced, evidence),
        apart=None if blame.apart is None else _apart(blame.apart),
        inside=None if blame.inside is None else _shares(blame.inside, evidence),
        interactions=tuple(_interaction(pair) for pair in blame.interactions),
        fixes=tuple(_fix_set(fix, evidence) for fix in blame.fixes.sets),
        complete=blame.fixes.complete,
        exhaustive=blame.fixes.exhaustive,
        refused=blame.fixes.refused,
        kept=None if blame.may_stay is None else _kept_row(blame.may_stay, evidence),
        places=tuple(_places(places, study) for places in blame.places),
    )


def _shares(waterfall: Waterfall, evidence: Evidence) -> Shares:
    return filled(
        Shares,
        waterfall,
        total=None if waterfall.total is None else float(waterfall.total),
        rows=tuple(_row(share, waterfall.total, evidence) for share in waterfall.shares),
    )


def _row(share: Share, total: Fraction | None, evidence: Evidence) -> ShareRow:
    return filled(
        ShareRow,
        share,
        evidence=evidence[share.name],
        share=float(share.share),
        of_whole=float(share.share / total) if total else 0.0,
        of_whole_low=share.part[0],
        of_whole_high=share.part[1],
        low=share.interval[0],
        high=share.interval[1],
        k3=None if share.k3 is None else float(share.k3),
        alone=_kl(share.alone),
        restored=_kl(share.restored),
        change_low=share.change[0],
        change_high=share.change[1],
        role=share.role.value,
    )


def _kl(outcome: Outcome | None) -> float | None:
    return None if outcome is None else outcome.value


def _apart(apart: Apart) -> ApartRow:
    return filled(
        ApartRow,
        apart,
        without=_kl(apart.without),
        change_low=apart.change[0],
        change_high=apart.change[1],
        forced=_kl(apart.forced),
        forced_without=_kl(apart.forced_without),
        forced_change_low=apart.forced_change[0],
        forced_change_high=apart.forced_change[1],
    )


def _interaction(pair: Interaction) -> InteractionRow:
    return filled(
        InteractionRow,
        pair,
        in_reference=None if pair.in_reference is None else float(pair.in_reference),
        in_reference_low=pair.in_reference_interval[0],
        in_reference_high=pair.in_reference_interval[1],
        in_candidate=None if pair.in_candidate is None else float(pair.in_candidate),
        in_candidate_low=pair.in_candidate_interval[0],
        in_candidate_high=pair.in_candidate_interval[1],
    )


def _fix_set(fix: FixSet, evidence: Evidence) -> FixSetRow:
    of_toggles = tuple(evidence[name] for name in fix.toggles)
    outcome = fix.outcome
    return filled(FixSetRow, fix, evidence=of_toggles, kl=outcome.value, upper=outcome.upper, exact=outcome.exact)


def _places(places: Places, study: Study) -> PlacesRow:
    """Groups of places that `localise` left whole have the evidence of all places, which is the lowest."""
    evidence = _evidence(study, places.toggles)
    members = [member for toggle in places.toggles for member in toggle.members]
    lowest = levels.in_words(levels.evidence(members, study.reference.plan, study.candidate.plan))
    groups = {share.name: evidence.get(share.name, lowest) for share in places.shares.shares}
    return filled(
        PlacesRow,
        places,
        shares=_shares(places.shares, groups),
        sets=tuple(map(_restored, places.sets)),
        fixes=tuple(_fix_set(fix, evidence) for fix in places.fixes.sets),
        complete=places.fixes.complete,
        exhaustive=places.fixes.exhaustive,
    )


def _restored(restored: Restored) -> RestoredRow:
    (low, high), outcome = restored.interval, restored.outcome
    return filled(
        RestoredRow,
        restored,
        places=restored.players,
        kl=outcome.value,
        upper=outcome.upper,
        exact=outcome.exact,
        gone_low=low,
        gone_high=high,
    )


def _kept_row(allowed: MayStay, evidence: Evidence) -> KeptRow:
    of_toggles = tuple(evidence[name] for name in allowed.toggles)
    return filled(KeptRow, allowed, evidence=of_toggles, restored=allowed.restored.toggles)


MEASURE = Measure(gives=Attribution, measure=measure, search=SHARES)
