"""Reports by hand for the sections on choices: what each does, who makes how much, and what would fix it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moeparity.bisection.nearest.data import Nearest
from moeparity.bisection.report import Report
from moeparity.bisection.run.data import Cost
from moeparity.bisection.shares.data import Attribution, Shares
from moeparity.bisection.shares.reading import fix_reading, share_reading
from moeparity.bisection.toggles.data import LeftOut, Offset, Swap, ToggleResult
from moeparity.bisection.toggles.show import reading
from moeparity.bisection.tokens.data import ClassMetrics
from moeparity.bisection.updates.data import Lagging, StaleKeys, UpdatePart, Updates
from moeparity.bisection.updates.show import updates_reading
from moeparity.evidence.explain.report import NumberRange
from moeparity.search.contrast import Bounds
from moeparity.search.fixes import Fixes, fix_sets, may_stay
from moeparity.search.interactions import interactions
from moeparity.search.judged_apart import judged_apart
from moeparity.search.memo import Mixture
from moeparity.search.tree import Group
from moeparity.search.waterfall import Waterfall, waterfall
from tests.bisection.floor.test_show import interval
from tests.bisection.nearest.test_show import answer, match
from tests.bisection.reports import REPORT, fill
from tests.bisection.shares import test_show as shares_shown
from tests.bisection.shares.test_reading import fixed, shared, table
from tests.bisection.test_screen import FAIL, INERT, MASKED, TOGGLE, trial
from tests.bisection.toggles.test_show import TOTAL, effect, without
from tests.search.games import memo_of, no_bounds, subsets

SPLIT = replace(TOGGLE, name="fusion ar_norm", nodes=8)
PART = replace(TOGGLE, name="fusion ar_norm / add:output->rms_norm", parent=SPLIT.name)
TOGGLES = (
    SPLIT,
    PART,
    INERT,
    MASKED,
    replace(TOGGLE, name="op experts:form", alone=None),
    replace(TOGGLE, name="op router:weights", restored=None),
    replace(TOGGLE, name="op gate:output", restores_all=True),
    replace(TOGGLE, name="op combine:leaves", alone=replace(trial(0.0), changed_nodes=0)),
    replace(TOGGLE, name="op attention:scale", reference_resting=7, candidate_resting=1),
)
TRIALS = {
    "every kind of outcome": replace(FAIL, toggles=TOGGLES),
    "a KL that is not finite": replace(
        FAIL,
        toggles=(replace(TOGGLE, alone=trial(math.nan), restored=trial(math.inf)),),
        metrics=replace(FAIL.metrics, kl=math.nan),
    ),
    "no choice differs": replace(FAIL, toggles=()),
}
BLOCK = replace(TOGGLE, name="layers[*].moe", kind="several", nodes=1)
SWAPS = {
    "one that differs, one that does not": replace(
        FAIL,
        swaps=(Swap(selector="layers[*].moe", nodes=24, toggle=BLOCK), Swap(selector="norm", nodes=1, toggle=None)),
    ),
    "none asked for": FAIL,
}
REFUSAL = "layers[0].moe.experts: implementation=grouped takes no fp64, in a mixture."
LEFT_OUT = {
    "toggles, further runs, one mixture and several": replace(
        REPORT,
        left_out=(
            LeftOut(reason=REFUSAL, alone=("a", "b"), restored=("c",), others=("micro-batch 4",), mixtures=3),
            LeftOut(reason="another reason.", alone=(), restored=(), others=(), mixtures=1),
        ),
    ),
    "nothing": REPORT,
}
PAIR = Offset(
    first="layers[1].v:impl",
    second="op linear:scale",
    first_nodes="layers[1].v",
    second_nodes="layers[1].o, layers[2].o",
    first_alone=0.06,
    second_alone=0.07,
    together=0.0,
)


def apart(of: ToggleResult, name: str, parent: str) -> ToggleResult:
    """The same as a part of another."""
    return replace(of, name=name, parent=parent)


def flagged(of: ToggleResult, flag: str, back: str, reference: str = "") -> ToggleResult:
    """The same, set by a flag of the candidate that another takes back, and by none or one of the reference."""
    flags = {"candidate_set_by": flag, "candidate_changed_by": back, "reference_changed_by": reference}
    return replace(of, **flags)  # type: ignore[arg-type]


def worded(sentences: Sequence[str]) -> Report:
    return replace(REPORT, reading=tuple(sentences))


LARGE = [effect("a", TOTAL, TOTAL), effect("b", TOTAL, TOTAL)]
UNSURE = effect("b", 0.6 * TOTAL, TOTAL, spread=0.4 * TOTAL)
FLAGGED = [
    flagged(effect("a", TOTAL, TOTAL / 10), "--a (my-server)", "leaving out --a", "--no-a"),
    *(flagged(effect(name, TOTAL / 100, TOTAL), "--b (my-server)", "--b 1") for name in ("b", "c")),
]
TRIAL_WORDS: Mapping[str, Sequence[str]] = {
    "nothing acts": reading([without("a"), without("b")], 0.0),
    "nothing reaches a token": reading([effect("a", 0.0, 0.0), effect("b", 0.0, 0.0)], 0.0),
    "one acts, and rests on what nobody vouches for": reading(
        [without("a"), effect("b", TOTAL, 0.0, evidence=("read", "unknown"))], TOTAL
    ),
    "another function, one": reading([effect("eps", TOTAL, 0.0, kind="semantics")], TOTAL),
    "other functions, two; one cannot be tried": reading(
        [
            replace(effect("eps", TOTAL, 0.0, kind="semantics"), alone=None),
            effect("scale", TOTAL / 9, TOTAL, kind="semantics"),
        ],
        TOTAL,
    ),
    "saturated, and another function beside": reading(
        [*LARGE, effect("eps", 0.9 * TOTAL, 0.8 * TOTAL, kind="semantics", spread=0.25 * TOTAL)], TOTAL
    ),
    "not decided": reading([effect("a", TOTAL, TOTAL), UNSURE], TOTAL),
    "one lowers it, one raises it, one is masked": reading(
        [
            effect("a", TOTAL, TOTAL / 10),
            effect("b", TOTAL / 4, 2 * TOTAL),
            effect("c", TOTAL / 9, TOTAL, nodes=(3, 0)),
        ],
        TOTAL,
    ),
    "two offset each other": reading(
        [effect("layers[1].v:impl", 0.06, 0.07), effect("op linear:scale", 0.07, 0.06)], TOTAL, offsets=[PAIR]
    ),
    "taken apart": reading([*LARGE, apart(effect("a", 0.9 * TOTAL, TOTAL), "a / x", "a")], TOTAL),
    "flags of one, and of two": reading(FLAGGED, TOTAL),
}


def speak(
    game: Mapping[Mixture, float | None], forced: Waterfall | None = None, in_fp32: float | None = None
) -> list[str]:
    return share_reading(shared(game), forced, [], in_fp32, "bf16")


def bounded(game: Mapping[Mixture, float | None], bounds: Bounds) -> list[str]:
    """What is said of two with these intervals."""
    shares = waterfall(memo_of(("a", "b"), game.__getitem__), Group("all", ("a", "b")), bounds)
    return share_reading(shares, None, [], None, "bf16")


def wide(*_: Sequence[float]) -> tuple[float, float]:
    """An interval that says nothing."""
    return -1.0, 1.0


def endless(*_: Sequence[float]) -> tuple[float, float]:
    """An interval from which no number of sequences follows."""
    return -math.inf, math.inf


def wide_below(sums: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
    """Sure of what is there, not of what goes away."""
    return (-0.9, 0.1) if sum(sums) < 0 else no_bounds(sums, tokens)


def wide_above(sums: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
    """Sure of small sums, not of large ones."""
    return (-1.0, 9.0) if sum(sums) > 5 else no_bounds(sums, tokens)


def beside_roundings(bounds: Bounds) -> list[str]:
    """What is said of `e`, which is another function beside two roundings, with these bounds of every change."""
    free = {frozenset(c): v for c, v in {"": 0.0, "a": 0.9, "b": 0.9, "e": 0.9}.items()}
    free |= {frozenset(c): v for c, v in {"ab": 0.95, "ae": 0.95, "be": 0.95, "abe": 1.0}.items()}
    forced = {c: 0.01 * len(c & {"a", "b"}) + 0.38 * ("e" in c) for c in free}
    natural, routed = (memo_of(("a", "b", "e"), game.__getitem__) for game in (free, forced))
    chart = waterfall(natural, Group("all", natural.players), no_bounds, apart=frozenset("e"))
    return share_reading(chart, None, [], None, "bf16", judged_apart(frozenset("e"), natural, routed, bounds))


def restored(fixes: Fixes, costs: Mapping[str, float] | None = None) -> list[str]:
    """What is said of fixes, and of what may stay."""
    return fix_reading(fixes, may_stay(fixes, costs) if costs else may_stay(fixes), costs=bool(costs))


CULPRITS, EVEN, SATURATED = table(a=0.2, b=0.8, ab=1.0), table(a=0.19, b=0.2, ab=0.39), table(a=0.9, b=0.8, ab=1.0)
INTERACTING = table(a=0.1, b=0.1, ab=1.0)
SEARCHED = fix_sets(memo_of(tuple("abcdef"), lambda on: float(len(on))), 1.5, budget=12)
HARMFUL = memo_of(("a", "b"), table(a=0.1, b=0.9, ab=0.2).__getitem__)
HARMFUL.ask([frozenset("a"), frozenset("b")])
UNDOING = fix_sets(HARMFUL, 0.5)
ANY = {mixture: 1.0 if len(mixture) == 5 else 0.1 for mixture in subsets("abcde")} | {frozenset(): 0.0}
STAYING: Any = may_stay(SEARCHED)
UNDONE = table(a=0.2, b=0.9, c=0.9, ab=0.2, ac=0.9, bc=0.9, abc=1.0)
SHARE_WORDS: Mapping[str, Sequence[str]] = {
    "shares: culprits, one makes most without flips": speak(CULPRITS, shared(EVEN)),
    "shares: nothing is left without flips": speak(CULPRITS, shared(table(a=0.0, b=0.0, ab=0.0))),
    "shares: routes cannot be forced": speak(CULPRITS, shared(table(a=0.2, b=0.8, ab=None))),
    "shares: saturated, unlike without flips, fp32 would help": speak(
        SATURATED, shared(table(a=0.38, b=0.01, ab=0.39)), 0.3
    ),
    "shares: saturated, alike without flips": speak(SATURATED, shared(table(a=0.2, b=0.2, ab=0.4))),
    "shares: at the floor of rounding": speak(SATURATED, None, 1e-9),
    "shares: saturated, one even raises it, fp32 would not help": speak(table(a=0.9, b=1.1, ab=1.0), None, 1.6),
    "shares: a small one": speak(table(a=1.0, b=0.05, ab=1.05)),
    "shares: one helps": speak(table(a=2.0, b=0.4, ab=1.0)),
    "shares: one is negligible": speak(table(a=1.01, b=0.01, ab=1.0)),
    "shares: one undoes": speak(table(a=1.3, b=0.8, ab=1.0)),
    "shares: not decided": bounded(table(a=0.5, b=0.4, ab=1.0), wide),
    "shares: not decided, nor how many it takes": bounded(table(a=0.5, b=0.4, ab=1.0), endless),
    "shares: large, and no culprits": bounded(table(a=0.3, b=0.8, ab=1.0), wide_below),
    "shares: not decided whether others stand in": bounded(SATURATED, wide_above),
    "shares: small ones": speak(table(a=1.0, b=0.05, c=0.05, ab=1.05, ac=1.05, bc=0.1, abc=1.1)),
    "shares: several help": speak(table(a=3.0, b=0.4, c=0.4, ab=2.0, ac=2.0, bc=0.8, abc=1.0)),
    "shares: either of two undoes": speak(table(a=1.01, b=0.01, c=0.01, ab=1.005, ac=1.005, bc=0.01, abc=1.0)),
    "shares: two interact": share_reading(
        shared(INTERACTING),
        None,
        interactions(memo_of(("a", "b"), INTERACTING.__getitem__), ["a", "b"], no_bounds),
        None,
        "bf16",
    ),
    "shares: another function, judged apart": beside_roundings(no_bounds),
    "shares: another function, which may do nothing": beside_roundings(wide),
    "shares: another function, restoring it raises the KL": beside_roundings(lambda *_: (0.1, 1.0)),
    "fixes: one": restored(fixed(CULPRITS, 0.5)),
    "fixes: one, with costs": restored(fixed(CULPRITS, 0.5), {"a": 3.0, "b": 1.5}),
    "fixes: either of two": restored(fixed(table(a=0.2, b=0.3, ab=1.0), 0.5)),
    "fixes: any of five": restored(fixed(ANY, 0.5)),
    "fixes: none that may stay is known": fix_reading(
        SEARCHED, replace(STAYING, toggles=(), certain=False), costs=False
    ),
    "fixes: only all together": restored(fixed(table(a=0.8, b=0.9, ab=1.0), 0.5)),
    "fixes: one that restoring more undoes": restored(fixed(UNDONE, 0.5)),
    "fixes: none needed": restored(fixed(table(a=0.1, b=0.1, ab=0.2), 0.5)),
    "fixes: none needed, yet one would undo it": restored(UNDOING),
    "fixes: none known, an op refuses": restored(fixed({**table(a=0.8, b=0.9, ab=1.0), frozenset(): None}, 0.5)),
    "fixes: a search within a budget": restored(SEARCHED),
    "fixes: an op refuses some": restored(fixed(table(a=0.2, b=None, ab=1.0), 0.5)),
}
WORDS = {heading: worded(sentences) for heading, sentences in {**TRIAL_WORDS, **SHARE_WORDS}.items()}
IDLE = {
    "two": replace(FAIL, toggles=(INERT, replace(INERT, name="op norm:square"))),
    "none": replace(FAIL, toggles=(TOGGLE,)),
}
CLOSE, EXACT = match("norm:square=bf16", equal=0.75), match("norm:normalized=fp32")
NUMBER = NumberRange(place="norm:eps", least=3.6e-4, greatest=3.8e-4)


def nearest(*answers: Nearest) -> Report:
    return replace(REPORT, nearest=answers)


NEAREST = {
    "all bits, in several layers": nearest(
        *(replace(answer(match("norm:normalized=fp32")), node=f"layers[{i}].norm") for i in range(6))
    ),
    "all bits by a fault, by a number, and by others": nearest(
        answer(
            replace(EXACT, between=(NUMBER,), faults=("the norm is left out",), compared=0.75),
            *(match(f"norm:square=fp{i}", "norm:eps=1e-05") for i in range(5)),
        )
    ),
    "all bits by one other": nearest(answer(EXACT, match("norm:square=fp1"))),
    "near": nearest(answer(CLOSE)),
    "far": nearest(answer(CLOSE, as_it_is=0.8)),
    "nothing to try": nearest(Nearest(node="split", call="mine:split", tried=0, calls=2, as_it_is=0.5, found=())),
    "no function of a user's": REPORT,
}
FIRST, SECOND, SHARED = shares_shown.A, shares_shown.B, shares_shown.SHARES


def attributed(attribution: Attribution) -> Report:
    return replace(REPORT, attribution=attribution, cost=fill(Cost, search_passes=2, search_seconds=3.25))


WHOLE = shares_shown.FOUND
DRAWN = replace(SHARED, exact=False, orders=16, left_out=3, rows=(replace(FIRST, of_whole_low=-math.inf), SECOND))
SHARES = {
    "all orders, ids forced, taken apart, a pair": attributed(WHOLE),
    "drawn orders, some left out": attributed(replace(WHOLE, shares=DRAWN, forced=None, inside=None, interactions=())),
    "one order, one left out, all orders inside": attributed(
        replace(
            WHOLE,
            shares=replace(SHARED, orders=1, left_out=1),
            inside=replace(shares_shown.INSIDE, exact=True, orders=6, left_out=1),
            forced=None,
        )
    ),
    "a KL that is not finite": attributed(
        replace(WHOLE, shares=Shares(total=None, exact=True, orders=2, left_out=0, rows=()), inside=None)
    ),
    "no order that runs": attributed(replace(WHOLE, shares=replace(SHARED, rows=()), inside=None)),
    "not asked for": REPORT,
}
FIX = shares_shown.FIX
FIXES = {
    "of every kind": attributed(
        replace(
            WHOLE,
            fixes=(
                replace(FIX, toggles=(), evidence=()),
                FIX,
                replace(FIX, toggles=("a", "b"), evidence=("read", "unknown | read"), exact=True, minimal=False),
                *(replace(FIX, spoiled_by=("x",)),) * 7,
            ),
        )
    ),
    "none, one mixture": attributed(replace(WHOLE, fixes=(), mixtures=1)),
}
CLASSES = {
    "two classes, one of which nothing is scored": replace(
        REPORT,
        classes=(
            ClassMetrics(
                name="code", scored_tokens=111, k3=1.1e-3, mean_abs_delta=0.0222, token_layers=444, set_flips=33
            ),
            ClassMetrics(
                name="prose", scored_tokens=0, k3=math.nan, mean_abs_delta=math.nan, token_layers=0, set_flips=0
            ),
        ),
    ),
    "no classes": REPORT,
}
PARTS = tuple(
    UpdatePart(
        name=name,
        value=interval(k1),
        low=min(k1, weights_first),
        high=max(k1, weights_first),
        mean_abs=size,
        k3_left=k3_left,
    )
    for name, k1, weights_first, size, k3_left in (
        ("old cache", -2e-3, 1e-3, 1.6e-2, 4.3e-3),
        ("old weights", 1.9e-3, -1.1e-3, 3.9e-2, 1.9e-4),
        ("semantics", 0.0, 0.0, 0.0, 1.9e-4),
        ("numerics", -6e-4, -6e-4, 7e-3, 0.0),
    )
)
STALE = StaleKeys(tokens=224, sequence=0, token=24, lag=0, oldest_key=2)
ACROSS = Updates(
    whole=interval(-7e-4),
    k3=5.3e-3,
    own_weights=interval(1e-4),
    own_weights_k3=1.1e-3,
    parts=PARTS,
    by_lag=(Lagging(lag=2, tokens=288, k1=2e-3, k3=7.6e-3), Lagging(lag=0, tokens=224, k1=-4e-3, k3=2.3e-3)),
    stale_keys=STALE,
    semantics=("log_probs:temperature",),
    left_out=1,
    reading=tuple(updates_reading(PARTS, STALE, 512, 1.1e-3, 1)),
)
FRESH_PARTS = tuple(replace(part, low=part.value.estimate, high=part.value.estimate) for part in PARTS)
FRESH = replace(
    ACROSS,
    parts=FRESH_PARTS,
    by_lag=ACROSS.by_lag[1:],
    stale_keys=None,
    left_out=0,
    reading=tuple(updates_reading(FRESH_PARTS, None, 224, 1.1e-3, 0)),
)
UPDATES = {
    "stale keys, on older weights too": replace(REPORT, updates=ACROSS),
    "no stale keys": replace(REPORT, updates=FRESH),
    "no updates": REPORT,
}

REPORTS: Mapping[str, Mapping[str, Report]] = {
    "toggles.show_left_out": LEFT_OUT,
    "toggles.show": TRIALS,
    "toggles.show_swaps": SWAPS,
    "toggles.show_words": WORDS,
    "toggles.show_no_effect": IDLE,
    "updates.show": UPDATES,
    "nearest.show": NEAREST,
    "shares.show": SHARES,
    "shares.show_fixes": FIXES,
    "tokens.show_classes": CLASSES,
}
