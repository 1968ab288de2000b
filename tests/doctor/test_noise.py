"""What lies between engines without a mistake, and the place of a record in it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from moeparity.doctor import answer
from moeparity.doctor.hypotheses import AS_CONFIGURED
from moeparity.doctor.judge import Difference, spread_of
from moeparity.doctor.noise import STATISTICS, is_far_beyond, may_make, noise
from moeparity.doctor.report import Noise
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


def test_far_beyond_is_what_many_tokens_of_several_sequences_are() -> None:
    of = noise([engine(seed) for seed in range(10)], engine(20) - engine(21))
    assert of is not None
    clean = engine(20) - engine(21)
    sequence = torch.arange(TOKENS) // 100
    one_token, one_sequence, several = clean.clone(), clean.clone(), clean.clone()
    one_token[0] += 1000
    one_sequence[:100] += 10
    several[:300] += 10
    spread = spread_of(torch.stack([engine(seed) for seed in range(10)]))
    diffs = [Difference(d=d, sequence=sequence, spread=spread) for d in (clean, one_token, one_sequence, several)]
    assert [is_far_beyond(of, difference) for difference in diffs] == [False, False, False, True]
    assert [may_make(of, difference.d) for difference in diffs] == [True, False, False, False]
    # As often, but not as much by the mean of all tokens.
    seldom = clean.clone()
    seldom[:: TOKENS // 8] += 0.2
    assert not is_far_beyond(of, Difference(d=seldom, sequence=sequence, spread=spread))


def test_engines_that_are_nearly_one_do_not_widen_the_bound() -> None:
    engines = [engine(seed) for seed in range(10)]
    near = engines[0].clone()
    near[0] += 1e-3
    of, plain = (noise(each, engine(20) - engine(21)) for each in ([*engines, near], engines))
    assert of is not None
    assert plain is not None
    assert of.statistics[0].bound < 1.1 * plain.statistics[0].bound


def test_a_token_that_flips_in_none_of_the_engines_is_noise_and_a_far_larger_one_is_not() -> None:
    """Eight tokens flip in every other engine or so, which makes the largest difference of all pairs; twelve more flip
    in one engine each, by less or by more.
    """
    engines, recorded = [engine(seed) for seed in range(12)], engine(20) - engine(21)
    flips = torch.rand(8, 12, generator=torch.Generator().manual_seed(3)) < 0.5
    for place, each in enumerate(engines):
        each[:8] += flips[:, place]
    largest = max(float((a - b).abs().max()) for a in engines for b in engines)
    for place, size in enumerate(torch.logspace(-1, 0, 12, dtype=torch.float64)):
        engines[place][100 + place] += size
    recorded[1000] = 1.5
    assert recorded[1000] > 1.4 * largest
    of = noise(engines, recorded)
    assert of is not None
    assert all(each.is_inside for each in of.statistics)
    recorded[1000] = 5.0
    beyond = noise(engines, recorded)
    assert beyond is not None
    assert "max_abs_delta" in [each.name for each in beyond.statistics if not each.is_inside]


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


def within(low: float, high: float) -> Any:
    return SimpleNamespace(low=low, high=high, sequences=4)


def test_a_small_record_beyond_the_bounds_is_undecided() -> None:
    """Less than twice what engines make between them, which nothing explains: noise only if no bound says otherwise."""
    d = engine(20) - engine(21, 0.03)
    beyond = noise([engine(seed) for seed in range(10)], d)
    small = answer.Sizes(size=within(0.5, 1.5), remainder=within(0.5, 1.5), legal=1.0)
    assert answered(d, small, None) == "noise"
    assert answered(d, small, beyond) == "undecided"


def test_what_lies_inside_wide_bounds_is_noise_only_if_it_is_not_surely_larger_than_engines_make() -> None:
    """32 tokens, 0.69 nats where two engines differ by 0.1 and bounds drawn for so few reach 1.1: a shared expert's
    rows rolled by one.
    """
    d = engine(20) - engine(21)
    inside = noise([engine(seed) for seed in range(10)], d)
    assert inside is not None
    assert all(each.is_inside for each in inside.statistics)
    sizes = answer.Sizes(size=within(0.38, 1.5), remainder=within(0.38, 1.5), legal=0.1)
    assert answered(d, sizes, inside) == "undecided"
    assert answered(d, replace(sizes, size=within(0.19, 1.5)), inside) == "noise"


def answered(d: torch.Tensor, sizes: answer.Sizes, of_noise: Noise | None) -> str:
    """The answer where 100 hypotheses were tried and none explains anything."""
    case: Any = SimpleNamespace(
        clues=(), legal_difference=d, difference=SimpleNamespace(d=d, share=lambda _: within(0, 0))
    )
    configured = SimpleNamespace(hypothesis=AS_CONFIGURED)
    stand: Any = SimpleNamespace(is_settled=False, first=None, contenders=[configured], rivals=())
    first: Any = SimpleNamespace(share=within(0, 0.1))
    with patch.object(answer, "of_other_weights", return_value=False), patch.object(answer, "fits", return_value=False):
        return answer._answer(case, stand, first, sizes, (), 100, of_noise)
