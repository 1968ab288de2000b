"""Shares, slopes and rankings of simulated differences, on numbers whose truth is known."""

from __future__ import annotations

import pytest
import torch

from moeparity.doctor.judge import Difference, legal_sizes, ranked, spread_of

SEQUENCES, LENGTH = 40, 30


def drawn(seed: int, size: float = 1.0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return size * torch.randn(SEQUENCES * LENGTH, generator=draw, dtype=torch.float64)


def difference(d: torch.Tensor) -> Difference:
    return Difference(d=d, sequence=torch.arange(SEQUENCES).repeat_interleave(LENGTH))


def test_the_cause_explains_all_but_the_noise() -> None:
    cause, noise = drawn(1), drawn(2, 0.5)
    share = difference(cause + noise).share(cause)
    assert share.low < 0.8 < share.high
    assert share.high - share.low < 0.1
    slope = difference(cause + noise).slope(cause)
    assert slope.low < 1 < slope.high


def test_what_is_no_cause_explains_nothing() -> None:
    of = difference(drawn(1))
    assert of.share(drawn(2)).high < 0
    assert of.share(torch.zeros(SEQUENCES * LENGTH, dtype=torch.float64)).estimate == 0
    assert of.slope(drawn(2)).low < 0 < of.slope(drawn(2)).high


def test_half_a_cause_has_a_slope_of_two() -> None:
    cause = drawn(1)
    assert difference(cause).slope(cause / 2).estimate == pytest.approx(2)
    assert difference(cause).share(cause / 2).estimate == pytest.approx(0.75)


def test_the_whole_is_chosen_before_its_parts() -> None:
    parts = [drawn(1), drawn(2)]
    of = difference(parts[0] + parts[1] + drawn(3, 0.3))
    ranking = ranked(of, [parts[0], parts[0] + parts[1], parts[1], drawn(4)], [1, 2, 1, 1])
    assert ranking.order[0] == 1
    assert ranking.rivals == ()


def test_of_equal_bits_the_one_with_less_wrong_stays() -> None:
    cause = drawn(1)
    ranking = ranked(difference(cause), [cause, cause.clone()], [7, 1])
    assert ranking.order == (1,)


def test_what_can_not_be_told_apart_is_a_rival() -> None:
    cause, noise = drawn(1), drawn(2, 0.5)
    near = cause + drawn(3, 0.01)
    ranking = ranked(difference(cause + noise), [near, cause], [1, 1])
    assert set(ranking.order) == {0, 1}
    assert len(ranking.rivals) == 1


def test_what_one_half_would_choose_is_a_rival() -> None:
    """A cause of some sequences only, such as those that a new replica sampled, is not told from a cause of others."""
    odd = torch.arange(SEQUENCES).repeat_interleave(LENGTH) % 2 == 1
    first, second = drawn(1) * odd, drawn(2) * ~odd
    ranking = ranked(difference(first + second), [first, second], [1, 1])
    assert set(ranking.rivals) == {ranking.order[1]}


def test_not_finite_differences_are_left_out() -> None:
    cause = drawn(1)
    broken = cause.clone()
    broken[3] = torch.nan
    assert ranked(difference(cause), [broken, cause], [1, 1]).order == (1,)


def test_the_largest_legal_difference_is_named() -> None:
    base = drawn(1)
    size, pair = legal_sizes({"a": base, "b": base + 0.25, "c": base - 0.5})
    assert size == pytest.approx(0.75)
    assert pair == ("b", "c")


def test_one_sequence_that_is_far_off_hides_no_preference() -> None:
    """A mean that one sequence carries has no bounds; all others say the same."""
    draw = torch.Generator().manual_seed(5)
    d = torch.randn(24 * 20, generator=draw, dtype=torch.float64)
    difference = Difference(d=d, sequence=torch.arange(24).repeat_interleave(20))
    truth, wrong = d + 0.1 * torch.randn(d.shape, generator=draw, dtype=torch.float64), -d
    wrong[:20] *= 50
    assert difference.advantage(truth, wrong).low < 0
    assert difference.prefers(truth, wrong)
    assert not difference.prefers(wrong, truth)


def test_of_two_that_are_as_far_off_none_is_preferred() -> None:
    """More often than chance at the level that is stated, by whichever of the two ways."""
    draw = torch.Generator().manual_seed(7)
    sequence, preferred = torch.arange(24).repeat_interleave(8), 0
    for _ in range(400):
        d = torch.randn(len(sequence), generator=draw, dtype=torch.float64) ** 3
        x, y = (d + torch.randn(d.shape, generator=draw, dtype=torch.float64) for _ in range(2))
        preferred += Difference(d=d, sequence=sequence).prefers(x, y)
    assert preferred <= 12


def test_a_way_has_all_that_come_to_the_same() -> None:
    """But not those that would have to be scaled a hundredfold."""
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(2, 400, generator=draw, dtype=torch.float64)
    of = Difference(d=x + 0.5 * y, sequence=torch.arange(400) // 20)
    assert sorted(index for index, _ in of.leading([x, 1e-3 * x, -x, 1.5 * x])) == [0, 3]
    assert [sorted(way) for way in of.directions([x, y, 1.5 * x, 1e-3 * x], 4)] == [[0, 2], [1]]
    assert len(of.directions([x, y], 1)) == 1


def test_a_token_that_any_rounding_moves_does_not_outweigh_all_others() -> None:
    """The cause makes a little everywhere; one token, whose routes flip, is far off at random."""
    draw = torch.Generator().manual_seed(4)
    sequence = torch.arange(400) // 20
    x = 0.02 * torch.randn(400, generator=draw, dtype=torch.float64)
    d = x + 0.01 * torch.randn(400, generator=draw, dtype=torch.float64)
    d[7] += 4
    engines = -2 + 0.01 * torch.randn(20, 400, generator=draw, dtype=torch.float64)
    engines[10:, 7] += 4
    spread = spread_of(engines)
    alike, counted = (Difference(d=d, sequence=sequence, spread=of) for of in (None, spread))
    assert alike.share(x).estimate < 0.02
    assert 0.5 < counted.share(x).low < counted.share(x).estimate < 0.9
    assert 0.8 < counted.slope(x).low < counted.slope(x).high < 1.2
    assert counted.remains(x) < counted.remains(torch.zeros_like(x)) / 2
    tokens = sequence == 0
    assert counted.at(tokens).spread is not None
    assert counted.at(tokens).d.equal(d[:20])


def test_engines_that_agree_count_all_tokens_alike() -> None:
    engines = torch.zeros(3, 2, dtype=torch.float64)
    assert spread_of(engines) is None
    assert spread_of(engines[:1]) is None
    d = torch.tensor([1.0, -2.0], dtype=torch.float64)
    assert Difference(d=d, sequence=torch.tensor([0, 1])).counted(d).equal(d)


def test_a_token_on_which_engines_agree_counts_no_more_than_the_one_in_the_middle() -> None:
    engines = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 3.0]], dtype=torch.float64)
    spread, middle = spread_of(engines), engines[:, 1].std()
    assert spread is not None
    assert spread.tolist() == pytest.approx([float(middle), float(middle) * 2**0.5, float(middle) * 10**0.5])
