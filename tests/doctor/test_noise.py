"""What lies between engines without a mistake, and the place of a record in it."""

from __future__ import annotations

import torch

from moeparity.doctor.noise import STATISTICS, noise
from moeparity.doctor.routes import Flipped, Flips

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


def test_flipped_routes_have_a_bound_of_at_most_one_and_none_where_nothing_flips() -> None:
    engines = [engine(seed) for seed in range(6)]
    draw = torch.Generator().manual_seed(1)
    parts = torch.rand(6, 6, generator=draw, dtype=torch.float64) / 10
    of = noise(engines, engine(20), Flipped(recorded=0.05, legal=parts))
    assert of is not None
    flipped = of.statistics[-1]
    assert (flipped.name, flipped.recorded, flipped.is_inside) == ("flipped", 0.05, True)
    assert flipped.middle < 0.1 < flipped.bound <= 1
    of = noise(engines, engine(20), Flipped(recorded=0.05, legal=torch.zeros(6, 6)))
    assert of is not None
    assert {each.name for each in of.statistics} == {*STATISTICS}


def test_engines_with_the_same_bits_are_one() -> None:
    assert noise([engine(1), engine(1), engine(2)], engine(3)) is None


def test_flips_are_those_of_the_engines_that_are_asked_for() -> None:
    recorded = torch.zeros(1, 3, 1, 2, dtype=torch.int64)
    flips = Flips(recorded, ("s", "s"), "t", (), engines=("s", "t", "u"))
    apart = torch.zeros(4, 4, 1, 3, dtype=torch.bool)
    apart[3, :3] = apart[:3, 3] = True
    flips.apart[0] = apart
    scored = torch.tensor([[False, True, True]])
    of_two, swapped = flips.flipped(scored, ["s", "u"]), flips.flipped(scored, ["u", "t", "s"])
    assert of_two is not None
    assert swapped is not None
    assert of_two.recorded == 0
    assert of_two.legal.tolist() == [[0, 1], [1, 0]]
    assert swapped.legal.tolist() == [[0, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert flips.flipped(scored, ["s", "v"]) is None
