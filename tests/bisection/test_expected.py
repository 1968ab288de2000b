"""What is expected of classes of tokens and of swapped blocks: met, not met and open."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from moeparity.bisection.report import Report
from moeparity.bisection.toggles.data import Swap
from moeparity.bisection.tokens.data import ClassMetrics
from tests.bisection.reports import REPORT
from tests.bisection.test_expectations import findings, judged

ACTS, MASKED, _, REFUSED = REPORT.toggles
CLASSES = (
    ClassMetrics(name="text", scored_tokens=9, k3=1e-5, mean_abs_delta=2e-3, token_layers=20, set_flips=1),
    ClassMetrics(name="image", scored_tokens=4, k3=2e-3, mean_abs_delta=5e-2, token_layers=0, set_flips=0),
    ClassMetrics(name="unseen", scored_tokens=0, k3=math.nan, mean_abs_delta=math.nan, token_layers=0, set_flips=0),
)


def with_classes(expect: dict[str, Any]) -> list[tuple[str, str]]:
    return judged({"classes": expect}, replace(REPORT, classes=CLASSES))


def with_swap(**changes: Any) -> Report:
    toggle = replace(ACTS, **changes)
    return replace(
        REPORT, swaps=(Swap(selector="other", nodes=1, toggle=None), Swap(selector="a", nodes=2, toggle=toggle))
    )


def test_each_bound_of_each_class_is_an_expectation() -> None:
    expect = {"image": {"k3": {"above": 1e-3}}, "text": {"k3": {"below": 1e-6}, "flips": {"below": 0.1}}}
    assert with_classes(expect) == [
        ("k3 of image above 0.001", "ok"),
        ("k3 of text below 1e-06", "fail"),
        ("flipped token-layers of text below 0.1", "ok"),
    ]
    assert with_classes({"text": {"mean_abs_delta": {"above": 0.01}}}) == [
        ("mean_abs_delta of text above 0.01", "fail")
    ]


@pytest.mark.parametrize(("name", "key"), [("unseen", "k3"), ("unseen", "mean_abs_delta"), ("image", "flips")])
def test_what_was_not_measured_meets_no_bound(name: str, key: str) -> None:
    ((_, status),) = with_classes({name: {key: {"below": 1}}})
    assert status == "fail"


def test_a_class_that_no_token_has_is_named() -> None:
    expect = {"classes": {"imag": {"k3": {"below": 1}}}}
    (finding,) = findings(expect, replace(REPORT, classes=CLASSES))
    assert finding.status == "fail"
    assert finding.found == "there is no class 'imag'; there are text, image, unseen. Did you mean 'image'?"
    (finding,) = findings(expect, replace(REPORT, classes=()))
    assert finding.found == "there is no class 'imag'; the tokens have no classes."


def test_a_swapped_block_restores_all_bits_or_not() -> None:
    expect = {"restores": ["a"]}
    assert judged(expect, with_swap(restores_all=True)) == [("a restores all bits", "ok")]
    (finding,) = findings(expect, with_swap(restores_all=False))
    assert finding.status == "fail"
    assert finding.found.startswith("KL ")
    assert finding.found.endswith(" nodes changed")
    assert judged(expect, with_swap(restored=None)) == [("a restores all bits", "inconclusive")]
    assert judged({"restores": ["other"]}, with_swap()) == [("other restores all bits", "fail")]
