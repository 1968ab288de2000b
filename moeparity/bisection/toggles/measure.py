"""Measures what each toggle does, from its two trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from moeparity.bisection.context import Context, Measure, filled
from moeparity.bisection.mixtures import Mixtures
from moeparity.bisection.observed import Observed
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.shares.reading import fix_reading, share_reading
from moeparity.bisection.shares.search import SHARES, Searched, over_sequences
from moeparity.bisection.study import Study
from moeparity.bisection.toggles.data import LeftOut, Offset, Swap, Toggled
from moeparity.bisection.toggles.effects import measured, total_kl, worth_splitting
from moeparity.bisection.toggles.show import reading
from moeparity.bisection.trials import TrialKey, in_words, restored
from moeparity.bisection.watch import Search
from moeparity.engine.routes import NATURAL
from moeparity.plan.address import pattern
from moeparity.plan.toggles import Toggle
from moeparity.progress import Callback
from moeparity.search.memo import Memo
from moeparity.search.offsetting import OffsettingPair, offsetting


def search(
    study: Study, observed: Observed, progress: Callback | None, store: PieceStore | None
) -> tuple[OffsettingPair, ...] | None:
    """The pairs. None for a recipe with `attribute:`, whose shares find them, and if fewer than two toggles raise the
    KL when restored. Runs a pass only if two surely do.
    """
    if study.recipe.attribute:
        return None
    whole = study.whole_toggles
    # Intervals take long with many sequences, and a toggle that does not raise the KL at all needs none.
    raising = [toggle for toggle in whole if _raises(toggle, observed)]
    if len(raising) < 2:
        return None
    mixtures = Mixtures(study, progress=progress, store=store, name="offsets")
    mixtures.learn(observed)
    memo = Memo(tuple(toggle.name for toggle in whole), mixtures)
    return offsetting(
        memo, {toggle.name: measured(toggle, study, observed).change for toggle in raising}, over_sequences
    )


def _raises(toggle: Toggle, observed: Observed) -> bool:
    """Whether the KL is higher with this toggle restored; False if an op refuses that or the KL is not finite."""
    if restored(toggle) not in observed.logits.walkers:
        return False
    return observed.logits.sums(restored(toggle)).mean("kl_candidate_reference") > total_kl(observed)


OFFSETTING: Final[Search[tuple[OffsettingPair, ...]]] = Search("toggles", search)


def measure(of: Context) -> Toggled:
    """Every toggle, every swapped block, and what they mean."""
    study, observed = of.study, of.observed
    toggles = tuple(measured(toggle, study, observed) for toggle in study.trial_toggles)
    blame = observed.of_search(SHARES)
    sentences = (
        None if blame is None else _share_sentences(study, blame, {toggle.name: toggle.label for toggle in toggles})
    )
    pairs = (observed.of_search(OFFSETTING) or ()) if blame is None else blame.shares.pairs
    offsets = tuple(_offset(pair, study) for pair in pairs)
    return Toggled(
        toggles=toggles,
        swaps=tuple(_swap(selector, study, observed) for selector in study.swaps),
        reading=tuple(reading(toggles, total_kl(observed), sentences, offsets)),
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


def worth_taking_apart(study: Study, observed: Observed) -> list[Toggle]:
    """The toggles that are worth a further pass to take them apart."""
    results = [measured(toggle, study, observed) for toggle in study.toggles]
    names = worth_splitting(results, total_kl(observed))
    return [toggle for toggle in study.toggles if toggle.name in names]


def _offset(pair: OffsettingPair, study: Study) -> Offset:
    nodes = {toggle.name: pattern(toggle.nodes) for toggle in study.toggles}
    return filled(Offset, pair, first_nodes=nodes[pair.first], second_nodes=nodes[pair.second])


def _swap(selector: str, study: Study, observed: Observed) -> Swap:
    nodes, toggle = study.swaps[selector]
    result = None if toggle is None else measured(toggle, study, observed)
    return Swap(selector=selector, nodes=len(nodes), toggle=result)


def _share_sentences(study: Study, blame: Searched, labels: Mapping[str, str]) -> list[str]:
    """Sentences on who is to blame and what to restore; toggles go by their labels."""
    dtype = " and ".join(dict.fromkeys(side.plan.dtype for side in study.sides.values()))
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
    return [*shares, *fix_reading(blame.fixes.renamed(label), allowed, costs=bool(study.recipe.costs))]


MEASURE = Measure(gives=Toggled, measure=measure, search=OFFSETTING)
