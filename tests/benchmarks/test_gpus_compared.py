"""What the page on tensor cores says of a difference beside those of legal orders, and of whole GEMMs in fp8."""

from __future__ import annotations

import pytest

from benchmarks import promoted
from benchmarks.gpus_compared import LEGAL, PAIRS, Made, row
from moeparity.metrics.verdict import Interval


def effect(k3: float, flips: float) -> Made:
    interval = Interval(estimate=k3, low=k3 / 2, high=k3 * 2, level=0.95, method="bootstrap-t")
    return Made(k3=interval, flips=flips, first="layers[0].attention.q_proj, 1%", tokens=768)


@pytest.mark.parametrize(
    ("k3", "flips", "within"),
    [(1e-5, 0.001, "yes"), (2e-5, 0.002, "yes"), (3e-5, 0.001, "no"), (1e-5, 0.003, "no"), (4e-5, 0.0, "yes")],
)
def test_a_difference_lies_within_what_one_kind_of_orders_makes(k3: float, flips: float, within: str) -> None:
    """Both k3 and flips: not one of one kind and the other of another."""
    legal = [effect(1e-5, 0.002), effect(2e-5, 0.001)], [effect(5e-5, 0.0)]
    assert row(PAIRS[0], effect(k3, flips), legal).endswith(f" | {within} |")


def test_every_draw_is_another_order() -> None:
    for draws in LEGAL:
        assert len({str(pair.candidate) for pair in draws}) == len(draws) > 1


def test_gemms_in_fp8_tell_how_they_were_promoted() -> None:
    """What 13 bits lose grows with a chain, and what 25 bits lose bf16 hardly shows."""
    of = {k: promoted.shares(k) for k in (256, 2048)}
    assert of[2048]["flat against promoted"] > 2 * of[256]["flat against promoted"] > 0.02
    assert of[2048]["promoted against sums of fp32"] < 2 * of[256]["promoted against sums of fp32"]
    assert of[2048]["B200 against sums of fp32"] < 0.001
