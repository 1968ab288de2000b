"""What lies between engines without a mistake, and the place of a record in it."""

from __future__ import annotations

import torch

from moeparity.doctor.noise import STATISTICS, noise

TOKENS = 4000


def engine(seed: int, size: float = 0.01) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return size * torch.randn(TOKENS, generator=draw, dtype=torch.float64) - 2


def test_a_pair_of_the_same_kind_is_inside_and_a_larger_one_beyond() -> None:
    of = noise([engine(seed) for seed in range(10)], engine(20) - engine(21))
    assert of is not None
    assert (of.engines, {each.name for each in of.statistics}) == (10, {*STATISTICS})
    assert all(each.is_inside for each in of.statistics)
    mistaken = noise([engine(seed) for seed in range(10)], engine(20) - engine(21, 0.03))
    assert mistaken is not None
    assert not any(each.is_inside for each in mistaken.statistics)


def test_engines_that_are_nearly_one_do_not_widen_the_bound() -> None:
    engines = [engine(seed) for seed in range(10)]
    near = engines[0].clone()
    near[0] += 1e-3
    of, plain = (noise(each, engine(20) - engine(21)) for each in ([*engines, near], engines))
    assert of is not None
    assert plain is not None
    assert of.statistics[0].bound < 1.1 * plain.statistics[0].bound


def test_engines_with_the_same_bits_are_one() -> None:
    assert noise([engine(1), engine(1), engine(2)], engine(3)) is None
