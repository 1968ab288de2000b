"""Tokens by position, probability, label and step: the parts are those tokens, and they add up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from moeparity.metrics.groups import POSITIONS, PROBABILITIES, Groups, name
from moeparity.metrics.registry import METRICS
from tests.metrics.made import chunk, estimates, noisy


def test_bounds_of_positions_belong_to_the_part_above() -> None:
    chunk_in = replace(chunk(([-1.0] * 8, [-1.5] * 8)), position=torch.tensor([0, 1, 15, 16, 63, 64, 16383, 16384]))
    groups = Groups("position")
    groups.add(chunk_in)
    assert {name("position", key): part.tokens for key, part in groups} == {
        "0": 1,
        "1 to 15": 2,
        "16 to 63": 2,
        "64 to 255": 1,
        "4096 to 16383": 1,
        "16384 on": 1,
    }


def test_bounds_of_probabilities() -> None:
    logs = [math.log(p) for p in (1e-4, 1e-3, 0.05, 0.5, 0.95, 1.0)]
    groups = Groups("probability")
    groups.add(chunk(([-math.inf, *logs], [-1.0] * 7)))
    assert {name("probability", key): part.tokens for key, part in groups} == {
        "P 0 to 0.001": 2,
        "P 0.001 to 0.01": 1,
        "P 0.01 to 0.1": 1,
        "P 0.5 to 0.9": 1,
        "P 0.9 to 0.99": 1,
        "P 0.99 to 1": 1,
    }


def test_parts_add_up_over_chunks() -> None:
    chunks = [noisy([30, 1, 50], 0.2, seed=seed) for seed in (0, 1)]
    groups = Groups("probability")
    for chunk_in in chunks:
        groups.add(chunk_in)
    whole = estimates(*chunks, names=["k3", "max_abs_delta"])
    parts = [(part.tokens, part.estimate(METRICS["k3"])) for _, part in groups]
    assert sum(tokens for tokens, _ in parts) == 162
    assert sum(tokens * k3 for tokens, k3 in parts) / 162 == pytest.approx(whole["k3"])
    assert max(part.estimate(METRICS["max_abs_delta"]) for _, part in groups) == whole["max_abs_delta"]


def test_a_part_has_the_sequences_that_have_such_a_token() -> None:
    chunk_in = chunk(([-1.0, -1.0], [-1.0, -1.5]), ([-1.0], [-1.25]), ([-1.0], [-1.0]))
    groups = Groups("flipped")
    groups.add(replace(chunk_in, labels={"flipped": torch.tensor([0, 1, 1, -1])}))
    part = {name("flipped", key): (part.ids, part.estimate(METRICS["mean_abs_delta"])) for key, part in groups}
    assert part == {
        "routes unknown": (["s2"], 0.0),
        "not flipped": (["s0"], 0.0),
        "flipped": (["s0", "s1"], 0.375),
    }


def test_tokens_of_which_the_log_does_not_say_are_counted() -> None:
    groups = Groups("step")
    groups.add(noisy([3, 4], 0.1))
    assert (list(groups), groups.unknown) == ([], 7)


@pytest.mark.parametrize("bounds", [POSITIONS, PROBABILITIES])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
    assert bounds[0] == 0
