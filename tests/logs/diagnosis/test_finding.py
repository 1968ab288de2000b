"""Evidence in words."""

from __future__ import annotations

import pytest

from moeparity.logs.diagnosis.finding import Evidence


@pytest.mark.parametrize(
    ("value", "low", "high", "words"),
    [
        (1.00197, 1.00105, 1.00358, "E[rho] 1.00197 [1.00105, 1.00358]"),
        (1.0, 0.98, 1.25, "E[rho] 1 [0.98000, 1.25]"),
        (0.326, -1.7, 1.0, "E[rho] 0.326 [-1.7, 1]"),
    ],
)
def test_a_ratio_that_is_not_1_does_not_read_1(value: float, low: float, high: float, words: str) -> None:
    assert str(Evidence(name="E[rho]", value=value, low=low, high=high)) == words
