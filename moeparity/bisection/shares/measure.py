"""Blame as reports hold it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from moeparity.bisection.observed import Observed
from moeparity.bisection.prepare import Plan
from moeparity.bisection.shares.report import Attribution, FixSetRow, InteractionRow, KeptRow, ShareRow, Shares
from moeparity.bisection.shares.search import Blame
from moeparity.search.fixes import FixSet, Kept
from moeparity.search.interactions import Interaction
from moeparity.search.memo import Outcome
from moeparity.search.waterfall import Share, Waterfall


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the searches found; None for a recipe that asks for none, or without toggles."""
    blame: Blame | None = observed.searched.get("shares")
    return {"attribution": None if blame is None else _attribution(blame)}


def _attribution(found: Blame) -> Attribution:
    """The searches' results in plain numbers."""
    return Attribution(
        shares=_shares(found.shares),
        forced=None if found.forced is None else _shares(found.forced),
        inside=None if found.inside is None else _shares(found.inside),
        interactions=tuple(_interaction(pair) for pair in found.interactions),
        fixes=tuple(_fix_set(one) for one in found.fixes.sets),
        complete=found.fixes.complete,
        exhaustive=found.fixes.exhaustive,
        refused=found.fixes.refused,
        kept=None if found.kept is None else _kept(found.kept),
        in_fp32=found.in_fp32,
        mixtures=found.mixtures,
        passes=found.passes,
        seconds=found.seconds,
    )


def _shares(found: Waterfall) -> Shares:
    return Shares(
        total=None if found.total is None else float(found.total),
        exact=found.exact,
        orders=found.orders,
        left_out=found.left_out,
        rows=tuple(_row(share, found.total) for share in found.shares),
    )


def _row(share: Share, total: Fraction | None) -> ShareRow:
    return ShareRow(
        name=share.name,
        depth=share.depth,
        share=float(share.share),
        of_whole=float(share.share / total) if total else 0.0,
        of_whole_low=share.part[0],
        of_whole_high=share.part[1],
        standard_error=share.standard_error,
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


def _interaction(pair: Interaction) -> InteractionRow:
    return InteractionRow(
        first=pair.first,
        second=pair.second,
        in_reference=None if pair.in_reference is None else float(pair.in_reference),
        in_reference_low=pair.in_reference_interval[0],
        in_reference_high=pair.in_reference_interval[1],
        in_candidate=None if pair.in_candidate is None else float(pair.in_candidate),
        in_candidate_low=pair.in_candidate_interval[0],
        in_candidate_high=pair.in_candidate_interval[1],
    )


def _fix_set(found: FixSet) -> FixSetRow:
    return FixSetRow(
        toggles=found.toggles,
        kl=found.outcome.value,
        upper=found.outcome.upper,
        exact=found.outcome.exact,
        minimal=found.minimal,
        spoiled_by=found.spoiled_by,
    )


def _kept(found: Kept) -> KeptRow:
    return KeptRow(toggles=found.toggles, restored=found.restored.toggles, cost=found.cost, certain=found.certain)
