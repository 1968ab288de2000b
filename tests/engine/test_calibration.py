"""Rates that are measured: none is below 0, and those that made the seconds are found again."""

from __future__ import annotations

import itertools

import pytest
import torch

from moeparity.engine import calibration
from moeparity.engine.duration import CALLS, DRAWN, MADE, MOVED, MULTIPLY_ADDS, WEIGHT_BYTES, Amounts


def test_every_amount_has_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"num_attention_heads": 4, "head_dim": 32, "num_experts": 8, "moe_intermediate_size": 64}
    monkeypatch.setattr(calibration, "_LAYERS", ({"hidden_size": 64, **small}, {"hidden_size": 256, **small}))
    rates = calibration.measured_rates(["bf16", "fp32"], torch.device("cpu"))
    assert {(DRAWN, ""), (MADE, "")} <= set(rates.seconds)
    fitted = {(MULTIPLY_ADDS, "bf16"), (WEIGHT_BYTES, "bf16"), (MULTIPLY_ADDS, "fp32"), (MOVED, ""), (CALLS, "")}
    assert set(rates.seconds) & fitted
    assert all(second >= 0 for second in rates.seconds.values())


def test_rates_that_made_the_passes_are_found_again() -> None:
    """Two rates, one of them 0 at best: the third amount would need a rate below 0, and is left out."""
    true = {(MULTIPLY_ADDS, "bf16"): 1e-11, (CALLS, ""): 1e-4}
    rows = []
    for multiply_adds, calls in itertools.product((1e8, 1e9, 1e10), (20, 40)):
        of = {(MULTIPLY_ADDS, "bf16"): multiply_adds, (CALLS, ""): float(calls)}
        rows.append((Amounts(of=of), sum(n * true[key] for key, n in of.items())))
    assert calibration._fitted(rows) == pytest.approx(true)
    worse = [(Amounts(of={**row.of, (MOVED, ""): 1 / seconds}), seconds) for row, seconds in rows]
    fitted = calibration._fitted(worse)
    assert all(second >= 0 for second in fitted.values())
