"""Which hypotheses come to the same."""

from __future__ import annotations

import torch

from moeparity.doctor.case import Tried
from moeparity.doctor.hypotheses import AS_CONFIGURED, Hypothesis
from moeparity.doctor.report import Party
from moeparity.doctor.standing import _is_of_other_steps, same

LEGAL = torch.zeros(100, dtype=torch.float64)
MADE = torch.linspace(-1, 1, 100, dtype=torch.float64)


def tried(simulated: torch.Tensor, party: Party | None = "sampler") -> Tried:
    return Tried(Hypothesis(name="a", says="does"), party, simulated)


def test_the_same_difference_at_one_party_is_the_same() -> None:
    assert same(tried(MADE), tried(1.05 * MADE), LEGAL, torch.clone)
    assert not same(tried(MADE), tried(1.5 * MADE), LEGAL, torch.clone)
    assert not same(tried(MADE), tried(MADE, "trainer"), LEGAL, torch.clone)
    assert not same(tried(MADE), tried(LEGAL), LEGAL, torch.clone)
    assert not same(Tried(AS_CONFIGURED, None, MADE), Tried(AS_CONFIGURED, None, MADE), LEGAL, torch.clone)


def test_a_mistake_in_other_steps_is_the_same_mistake() -> None:
    whole, part = Hypothesis(name="a", says=""), Hypothesis(name="a in decoding alone", says="", plainness=1)
    apart = Hypothesis(name="b in decoding alone", says="", plainness=1)
    first, second, third = (Tried(of, "trainer", MADE) for of in (whole, part, apart))
    assert _is_of_other_steps(first, second)
    assert _is_of_other_steps(second, first)
    assert not _is_of_other_steps(first, third)
    assert not _is_of_other_steps(first, Tried(part, "sampler", MADE))
