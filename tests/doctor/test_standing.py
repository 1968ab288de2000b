"""Which hypotheses come to the same."""

from __future__ import annotations

import torch

from moeparity.doctor.case import Tried
from moeparity.doctor.hypotheses import AS_CONFIGURED, Hypothesis
from moeparity.doctor.report import Party
from moeparity.doctor.standing import same

LEGAL = torch.zeros(100, dtype=torch.float64)
MADE = torch.linspace(-1, 1, 100, dtype=torch.float64)


def tried(simulated: torch.Tensor, party: Party | None = "sampler") -> Tried:
    return Tried(Hypothesis(name="a", says="does"), party, simulated)


def test_the_same_difference_at_one_party_is_the_same() -> None:
    assert same(tried(MADE), tried(1.05 * MADE), LEGAL)
    assert not same(tried(MADE), tried(1.5 * MADE), LEGAL)
    assert not same(tried(MADE), tried(MADE, "trainer"), LEGAL)
    assert not same(tried(MADE), tried(LEGAL), LEGAL)
    assert not same(Tried(AS_CONFIGURED, None, MADE), Tried(AS_CONFIGURED, None, MADE), LEGAL)
