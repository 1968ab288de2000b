"""What the table of effects says in words."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest

from moeparity.bisection.toggles.data import Offset, ToggleResult
from moeparity.bisection.toggles.data import TrialResult as Trial
from moeparity.bisection.toggles.effects import shown_by
from moeparity.bisection.toggles.show import reading

TOTAL = 1e-3


def effect(
    name: str,
    alone: float,
    restored: float,
    *,
    nodes: tuple[int, int] = (3, 3),
    spread: float = TOTAL / 1000,
    kind: Literal["rounding", "semantics"] = "rounding",
    evidence: tuple[str, str] = ("read", "read"),
) -> ToggleResult:
    """A toggle with the KL of its two trials, and at how many nodes each changed a bit."""
    without, with_it = (
        Trial(kl=kl, k3=kl, flipped_routes=0.0, changed_nodes=changed)
        for kl, changed in zip((alone, restored), nodes, strict=True)
    )
    # As an interval of sums that are not finite: no bounds.
    finite = math.isfinite(restored)
    low, high = (restored - TOTAL - spread, restored - TOTAL + spread) if finite else (-math.inf, math.inf)
    # Surely above a quarter of the whole; not by min(), which may drop a NaN.
    large = all(kl - spread >= TOTAL / 4 for kl in (alone, restored))
    had_no_effect, masked = shown_by(without, with_it)
    return ToggleResult(
        name=name,
        kind=kind,
        reference="bf16",
        candidate="fp32",
        reference_origin="a.yaml:1",
        candidate_origin="b.yaml:1",
        parent=None,
        nodes=3,
        reference_evidence=evidence[0],
        candidate_evidence=evidence[1],
        alone=without,
        restored=with_it,
        restored_change_low=low,
        restored_change_high=high,
        large=large,
        legal=kind in ("rounding", "order"),
        had_no_effect=had_no_effect,
        masked=masked,
        restores_all=False,
    )


def without(name: str) -> ToggleResult:
    return effect(name, 0.0, TOTAL, nodes=(0, 0))


def test_no_toggles_say_nothing() -> None:
    assert reading([], TOTAL) == []
    assert reading([], 0.0) == []


def test_a_pair_that_offsets_each_other_is_named_with_its_nodes_and_is_not_interchangeable() -> None:
    pair = Offset(
        first="layers[1].v:impl",
        second="op linear:scale",
        first_nodes="layers[1].v",
        second_nodes="layers[1].o, layers[2].o",
        first_alone=0.06,
        second_alone=0.07,
        together=0.0,
    )
    effects = [effect("layers[1].v:impl", 0.06, 0.07), effect("op linear:scale", 0.07, 0.06), effect("c", 1e-4, 9e-4)]
    assert any(sentence.startswith("Saturated") for sentence in reading(effects, TOTAL))
    sentences = reading(effects, TOTAL, offsets=[pair])
    assert sentences[0] == (
        "layers[1].v:impl and op linear:scale (at layers[1].o, layers[2].o) offset each other: alone they cost KL "
        "6.00e-02 and 7.00e-02 nats per token, together 0.00e+00. Each hides the other: restoring one alone exposes "
        "the other."
    )
    assert not any("interchangeable" in sentence or "raises" in sentence for sentence in sentences)


def test_a_mixture_that_an_op_refuses_is_named_and_is_no_effect_and_not_masked() -> None:
    refused = replace(effect("a", TOTAL, TOTAL), alone=None, large=False)
    assert not refused.had_no_effect
    assert not refused.masked
    sentences = reading([refused, effect("b", TOTAL, TOTAL)], TOTAL)
    assert sentences == ["a (read) could not be tried both ways, since an op refuses a mixture: see what is left out."]


def test_one_active() -> None:
    sentences = reading([without("a"), effect("b", TOTAL, 0.0)], TOTAL)
    assert sentences == [
        "a (read) had no effect: no bit changed at any node.",
        "b (read) alone makes the whole difference.",
    ]


def test_saturated_names_the_interchangeable_ones_only() -> None:
    effects = [
        effect("a", TOTAL, TOTAL),
        effect("b", TOTAL * 0.6, TOTAL, spread=TOTAL / 20),
        effect("c", TOTAL / 100, TOTAL),
    ]
    (sentence,) = reading(effects, TOTAL)
    assert sentence.startswith("Saturated: a (read) and b (read) are interchangeable. Each alone costs at least 50%")
    assert "only restoring all toggles gives the reference's bits" in sentence


def test_another_model_is_no_more_interchangeable_than_a_bug_is() -> None:
    roundings = [effect("a", TOTAL, TOTAL), effect("b", TOTAL, TOTAL)]
    eps = effect("eps", 0.9 * TOTAL, 0.8 * TOTAL, kind="semantics", spread=0.25 * TOTAL)
    of_roundings, saturated, apart = reading([*roundings, eps], TOTAL)
    assert of_roundings == (
        "eps (read) decides what is computed, not how it is rounded: the two sides of it are different functions, and "
        "no tolerance makes them one."
    )
    assert saturated.startswith("Saturated: a (read) and b (read) are interchangeable.")
    assert apart == (
        "eps (read) is as large but not one of them, since it computes another function: alone it costs 90% of the "
        "whole divergence, and restoring it leaves 80% of it."
    )
    assert reading([roundings[0], eps], TOTAL) == [of_roundings]


def test_what_may_be_less_than_a_quarter_by_its_interval_is_not_called_interchangeable() -> None:
    unsure = effect("b", 0.6 * TOTAL, TOTAL, spread=0.4 * TOTAL)
    (sentence,) = reading([effect("a", TOTAL, TOTAL), unsure], TOTAL)
    assert sentence.startswith("Not decided with these sequences: whether other choices can replace b (read).")
    assert reading([effect("a", TOTAL / 100, TOTAL), unsure], TOTAL) == [], "there is nobody beside it"
    faults = [effect("eps", TOTAL, TOTAL, kind="semantics"), unsure]
    (sentence,) = reading(faults, TOTAL)
    assert sentence.startswith("eps (read) decides what is computed, not how it is rounded")


@pytest.mark.parametrize("level", ["unknown", "opaque"])
def test_an_answer_that_rests_on_what_is_not_known_says_so_first(level: str) -> None:
    effects = [effect("a", TOTAL, 0.0), effect("b", TOTAL / 100, TOTAL, evidence=("read", level)), without("c")]
    effects[2] = replace(effects[2], reference_evidence=level, candidate_evidence="read")
    first, *others = reading(effects, TOTAL)
    assert first == (
        f"This rests on values that nobody vouches for, b (read | {level}): what follows holds for the values that "
        "stand in the profiles, and for the engines only as far as these are right."
    )
    assert others[0] == f"c ({level} | read) had no effect: no bit changed at any node."
    sure = [replace(e, reference_evidence="inferred", candidate_evidence="set by the recipe") for e in effects]
    assert not any("vouches" in sentence for sentence in reading(sure, TOTAL))


def test_one_large_toggle_is_not_saturation() -> None:
    assert reading([effect("a", TOTAL, TOTAL), effect("b", TOTAL / 100, TOTAL)], TOTAL) == []


def test_decisive() -> None:
    sentences = reading([effect("a", TOTAL, TOTAL / 10), effect("b", TOTAL / 100, TOTAL)], TOTAL)
    assert sentences == ["Restoring a (read) alone removes 90% of the divergence."]


def test_interacting() -> None:
    sentences = reading([effect("a", TOTAL / 4, TOTAL), effect("b", TOTAL / 4, 2 * TOTAL)], TOTAL)
    assert sentences == ["Restoring b (read) alone raises the divergence: toggles interact."]


@pytest.mark.parametrize("restored", [TOTAL / 10, TOTAL, 2 * TOTAL])
def test_a_change_within_the_spread_of_the_sequences_is_not_claimed(restored: float) -> None:
    effects = [effect("a", TOTAL / 4, restored, spread=1.1 * TOTAL), effect("b", TOTAL / 4, TOTAL)]
    assert reading(effects, TOTAL) == []


def test_masked() -> None:
    sentences = reading([effect("a", TOTAL, TOTAL, nodes=(3, 0)), effect("b", TOTAL, TOTAL)], TOTAL)
    assert sentences == ["Masked in the candidate: a (read). Restoring alone changes no bit there."]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ((0, 0), (True, False)),
        ((3, 0), (False, True)),
        ((0, 3), (False, False)),
        ((3, 3), (False, False)),
        ((None, 0), (False, False)),
        ((0, None), (False, False)),
        ((3, None), (False, False)),
    ],
)
def test_without_effect_or_masked(changed: tuple[int | None, int | None], says: tuple[bool, bool]) -> None:
    def trial(nodes: int | None) -> Trial | None:
        return None if nodes is None else Trial(kl=TOTAL, k3=TOTAL, flipped_routes=None, changed_nodes=nodes)

    assert shown_by(trial(changed[0]), trial(changed[1])) == says


def test_nothing_is_claimed_of_a_nan() -> None:
    nan = math.nan
    assert reading([effect("a", nan, nan), effect("b", nan, nan)], nan) == []
    assert reading([effect("a", TOTAL, nan), effect("b", nan, TOTAL), effect("c", nan, nan)], TOTAL) == []
    assert reading([effect("a", TOTAL, nan), effect("b", nan, TOTAL), effect("c", TOTAL, TOTAL)], TOTAL) == []
    assert reading([without("a"), effect("b", nan, nan), effect("c", nan, nan)], nan)[1:] == []


def test_what_each_side_runs_and_what_would_change_it_are_two_sentences_dearest_first() -> None:
    """A default is never said to be set by the flag that would change it."""

    def effect_of(name: str, kl: float, reference: tuple[str, str], candidate: tuple[str, str]) -> ToggleResult:
        result = effect(name, kl, TOTAL / 10)
        return replace(
            result,
            reference_set_by=reference[0],
            reference_changed_by=reference[1],
            candidate_set_by=candidate[0],
            candidate_changed_by=candidate[1],
        )

    effects = [
        effect_of("a", 1e-4, ("default (one)", "--no-a"), ("--b (two)", "leaving out --b")),
        effect_of("b", 2e-4, ("", ""), ("--c (two)", "--c other")),
        without("c"),
        effect_of("d", 3e-4, ("one", ""), ("default (two)", "")),
        effect_of("e", 1e-5, ("", ""), ("--c (two)", "--c other")),
    ]
    a = (
        "a is set on the reference by default (one) and on the candidate by --b (two). "
        "To change it: --no-a on the reference or leaving out --b on the candidate."
    )
    assert [s for s in reading(effects, TOTAL) if " set on " in s] == [
        "b and e are set on the candidate by --c (two). To change them: --c other on the candidate.",
        a,
    ]
