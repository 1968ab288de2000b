"""A side that gives every token the same probability."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moeparity.doctor.case import Tried
from moeparity.doctor.hypotheses import Hypothesis
from moeparity.doctor.standing import Standing
from moeparity.doctor.uniform import equals_as_rivals, is_uniform, of_uniform

VOCABULARY = 256
EVEN = torch.full((4,), -math.log(VOCABULARY), dtype=torch.float64)
TRAINED = torch.tensor([-0.1, -2.0, -5.545, -1.0], dtype=torch.float64)


def case(sampler: torch.Tensor) -> Any:
    model = SimpleNamespace(graph=SimpleNamespace(config={"vocab_size": VOCABULARY}))
    return SimpleNamespace(recorded={"sampler": sampler, "trainer": TRAINED}, bench=SimpleNamespace(model=model))


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (EVEN, True),
        (EVEN.float().double(), True),
        (EVEN + 0.002 * torch.arange(4), False),
        (torch.zeros(4), False),
        (EVEN[:1], False),
        (TRAINED, False),
    ],
    ids=["exact", "of fp32", "nearly", "certain", "one token", "trained"],
)
def test_only_what_is_the_same_for_all_tokens_is_uniform(recorded: torch.Tensor, expected: bool) -> None:
    of = case(recorded)
    assert is_uniform(of, "sampler") is expected
    assert not is_uniform(of, "trainer")
    assert [clue.cause for clue in of_uniform(of)] == [""] * expected


def test_what_makes_a_uniform_side_is_a_rival_and_no_synonym() -> None:
    first, equal, rival = (Tried(Hypothesis(name=name, says=""), "sampler", EVEN) for name in "abc")
    stand = Standing(order=(first, equal, rival), rivals=(rival,), alike=(equal,))
    of = equals_as_rivals(case(EVEN), stand)
    assert (of.rivals, of.alike) == ((equal, rival), ())
    assert equals_as_rivals(case(TRAINED), stand) is stand
