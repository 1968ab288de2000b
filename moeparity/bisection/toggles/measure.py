"""Measures what each toggle does, from its two trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from moeparity.bisection.context import Context
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.shares.reading import fix_reading, share_reading
from moeparity.bisection.shares.search import SHARES, Searched
from moeparity.bisection.toggles.data import LeftOut, Offset, Swap, Toggled, ToggleResult
from moeparity.bisection.toggles.effect import Effect, worth_splitting
from moeparity.bisection.toggles.effects import measured, total_kl
from moeparity.bisection.toggles.search import OFFSETTING
from moeparity.bisection.toggles.show import reading
from moeparity.bisection.trials import TrialKey, in_words
from moeparity.engine.routes import NATURAL
from moeparity.plan.address import pattern
from moeparity.plan.difference import two_sided
from moeparity.plan.sides import CANDIDATE, REFERENCE
from moeparity.plan.toggles import Toggle
from moeparity.search.offsetting import OffsettingPair


def measure(of: Context) -> Toggled:
    """Every toggle, every swapped block, and what they mean."""
    plan, observed = of.plan, of.observed
    effects = [measured(toggle, plan, observed) for toggle in plan.trial_toggles]
    blame = observed.of_search(SHARES)
    sentences = None if blame is None else _share_sentences(plan, blame, {e.toggle.name: e.label for e in effects})
    pairs = (observed.of_search(OFFSETTING) or ()) if blame is None else blame.shares.pairs
    offsets = tuple(_offset(pair, plan) for pair in pairs)
    return Toggled(
        toggles=tuple(_toggle_result(effect) for effect in effects),
        swaps=tuple(_swap(selector, plan, observed) for selector in plan.swaps),
        reading=tuple(reading(effects, total_kl(observed), sentences, offsets)),
        offsets=offsets,
        left_out=left_out(observed.refused, () if blame is None else blame.refused),
    )


def left_out(refused: Mapping[TrialKey, str], mixtures: Iterable[str] = ()) -> tuple[LeftOut, ...]:
    """Trials that can't run, grouped by reason; `mixtures` has one reason for each further mixture."""
    counts = Counter(mixtures)
    names: dict[str, dict[str, list[str]]] = {reason: {} for reason in (*refused.values(), *counts)}
    for key, reason in refused.items():
        kind = key.kind if key.kind in ("alone", "restored") and key.forced == NATURAL else "others"
        names[reason].setdefault(kind, []).append(key.of if kind != "others" else in_words(key))
    return tuple(
        LeftOut(
            reason=reason,
            alone=tuple(by_kind.get("alone", ())),
            restored=tuple(by_kind.get("restored", ())),
            others=tuple(by_kind.get("others", ())),
            mixtures=counts[reason],
        )
        for reason, by_kind in names.items()
    )


def worth_taking_apart(plan: Plan, observed: Observed) -> list[Toggle]:
    """The toggles that are worth a further pass to take them apart."""
    return worth_splitting([measured(toggle, plan, observed) for toggle in plan.toggles], total_kl(observed))


def _toggle_result(effect: Effect) -> ToggleResult:
    toggle = effect.toggle
    return ToggleResult(
        name=toggle.name,
        kind=toggle.kind,
        **two_sided(toggle),
        reference_changed_by=toggle.reference_changed_by,
        candidate_changed_by=toggle.candidate_changed_by,
        reference_evidence=effect.evidence[0],
        candidate_evidence=effect.evidence[1],
        parent=toggle.parent,
        nodes=len(toggle.nodes),
        reference_resting=toggle.resting(REFERENCE),
        candidate_resting=toggle.resting(CANDIDATE),
        alone=effect.alone,
        restored=effect.restored,
        restored_change_low=effect.change[0],
        restored_change_high=effect.change[1],
        restores_all=effect.restores_all,
        large=effect.is_large,
        legal=effect.is_legal,
        had_no_effect=effect.had_no_effect,
        masked=effect.is_masked,
    )


def _offset(pair: OffsettingPair, plan: Plan) -> Offset:
    nodes = {toggle.name: pattern(toggle.nodes) for toggle in plan.toggles}
    return Offset(
        first=pair.first,
        second=pair.second,
        first_nodes=nodes[pair.first],
        second_nodes=nodes[pair.second],
        first_alone=pair.first_alone,
        second_alone=pair.second_alone,
        together=pair.together,
    )


def _swap(selector: str, plan: Plan, observed: Observed) -> Swap:
    nodes, toggle = plan.swaps[selector]
    result = None if toggle is None else _toggle_result(measured(toggle, plan, observed))
    return Swap(selector=selector, nodes=len(nodes), toggle=result)


def _share_sentences(plan: Plan, blame: Searched, labels: Mapping[str, str]) -> list[str]:
    """Sentences on who is to blame and what to restore; toggles go by their labels."""
    dtype = " and ".join(dict.fromkeys(side.plan.dtype for side in (plan.reference, plan.candidate)))
    label = labels.__getitem__
    shares = share_reading(
        blame.shares.renamed(label),
        None if blame.forced is None else blame.forced.renamed(label),
        [pair.renamed(label) for pair in blame.interactions],
        blame.in_fp32,
        dtype,
        None if blame.apart is None else blame.apart.renamed(label),
    )
    allowed = None if blame.may_stay is None else blame.may_stay.renamed(label)
    return [*shares, *fix_reading(blame.fixes.renamed(label), allowed, costs=bool(plan.recipe.costs))]
