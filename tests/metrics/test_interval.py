"""Intervals against a scalar bootstrap-t and against simulated truth; verdicts case by case."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.metrics.interval import effective, sequence_mean, student, tail_mean, token_mean
from moeparity.metrics.verdict import Gate, Interval, judge, sequences_needed


def f64(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def scalar_bootstrap_t(x: list[float], n: list[float], resamples: int, seed: int, tail: float) -> tuple[float, float]:
    """The textbook interval, one resample at a time, on the sums themselves instead of on residuals."""

    def fit(rows: list[int]) -> tuple[float, float]:
        total, m = math.fsum(n[i] for i in rows), len(rows)
        r = math.fsum(x[i] for i in rows) / total
        squares = math.fsum((x[i] - r * n[i]) ** 2 for i in rows)
        return r, math.sqrt(m / (m - 1) * squares) / total

    estimate, error = fit(list(range(len(x))))
    generator = torch.Generator().manual_seed(seed)
    t = []
    for rows in torch.randint(len(x), (resamples, len(x)), generator=generator).tolist():
        r, e = fit(rows)
        if len({x[i] / n[i] for i in rows}) > 1:
            t.append((r - estimate) / e)
        else:
            t.append(math.copysign(math.inf, r - estimate))
    t.sort()
    k = math.floor((resamples + 1) * tail)
    return estimate - t[len(t) - k] * error, estimate - t[k - 1] * error


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), size=st.integers(2, 12), scale=st.sampled_from([1e-200, 1e-9, 1.0, 1e200]))
def test_equals_scalar_bootstrap(seed: int, size: int, scale: float) -> None:
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 50, (size,), generator=g).double()
    sums = torch.randn(size, generator=g, dtype=torch.float64).exp() * counts
    interval = token_mean(sums * scale, counts, resamples=399, seed=seed)
    low, high = scalar_bootstrap_t(sums.tolist(), counts.tolist(), 399, seed, 0.025)
    assert interval.estimate == pytest.approx(scale * sums.sum().item() / counts.sum().item(), rel=1e-12, abs=0)
    assert interval.low == pytest.approx(scale * low, rel=1e-8, abs=0)
    assert interval.high == pytest.approx(scale * high, rel=1e-8, abs=0)
    assert (interval.method, interval.sequences, interval.level) == ("bootstrap-t", size, 0.95)


def test_sequence_mean_weighs_sequences_alike() -> None:
    sums, counts = f64([10.0, 6.0, 9.0, 8.0, 5.0]), f64([10.0, 2.0, 3.0, 1.0, 5.0])
    assert token_mean(sums, counts).estimate == pytest.approx(38 / 21)
    interval = sequence_mean(sums, counts)
    assert interval.estimate == pytest.approx((1 + 3 + 3 + 8 + 1) / 5)
    low, high = scalar_bootstrap_t([1.0, 3.0, 3.0, 8.0, 1.0], [1.0] * 5, 2000, 0, 0.025)
    assert (interval.low, interval.high) == (pytest.approx(low, rel=1e-9), pytest.approx(high, rel=1e-9))


def test_seed_decides_alone() -> None:
    sums, counts = torch.rand(30, generator=torch.Generator().manual_seed(1)), torch.full((30,), 7)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert token_mean(sums, counts) == token_mean(sums, counts)
    assert token_mean(sums, counts, seed=1) != token_mean(sums, counts, seed=2)
    assert torch.equal(torch.rand(3), expected)


def test_wider_level_wider_interval() -> None:
    sums, counts = (torch.rand(30, generator=torch.Generator().manual_seed(1)), torch.full((30,), 7))
    narrow, wide = (token_mean(sums, counts, level=0.8), token_mean(sums, counts, level=0.99))
    assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high


def test_sequences_without_tokens_are_dropped() -> None:
    with_empty = token_mean(f64([1.0, 0.0, 2.0, 4.0, 3.0, math.nan]), f64([2.0, 0.0, 2.0, 3.0, 5.0, 0.0]))
    assert with_empty == token_mean(f64([1.0, 2.0, 4.0, 3.0]), f64([2.0, 2.0, 3.0, 5.0]))
    assert with_empty.sequences == 4


def test_more_sequences_than_one_chunk_holds() -> None:
    size = 3000
    sums = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    interval = token_mean(sums, torch.ones(size), resamples=999)
    error = sums.std().item() / math.sqrt(size)
    assert interval.low == pytest.approx(interval.estimate - 1.96 * error, abs=0.3 * error)
    assert interval.high == pytest.approx(interval.estimate + 1.96 * error, abs=0.3 * error)


@pytest.mark.parametrize("mean", [token_mean, sequence_mean])
@pytest.mark.parametrize("size", [1, 2, 40])
def test_all_zeros_are_exact(mean: object, size: int) -> None:
    interval = mean(torch.zeros(size), torch.full((size,), 5))  # type: ignore[operator]
    assert (interval.estimate, interval.low, interval.high, interval.method) == (0.0, 0.0, 0.0, "exact")
    assert interval.sequences == size


def test_no_sequences_and_one() -> None:
    none = token_mean(f64([0.0, 3.0]), f64([0.0, 0.0]))
    assert (none.low, none.high, none.method, none.sequences) == (-math.inf, math.inf, "none", 0)
    assert math.isnan(none.estimate)
    interval = token_mean(f64([3.0]), f64([2.0]))
    assert interval == Interval(
        estimate=1.5, low=-math.inf, high=math.inf, level=0.95, sequences=1, tokens=2, method="none"
    )


@pytest.mark.parametrize("sums", [[1.0, 4.0], [0.1, 0.7], [1.0, 2.0, 6.0], [0.1, 0.3, 1.9]])
def test_two_and_three_sequences_bound_nothing(sums: list[float]) -> None:
    interval = token_mean(f64(sums), f64([3.0, 7.0, 11.0][: len(sums)]))
    assert (interval.low, interval.high, interval.method) == (-math.inf, math.inf, "bootstrap-t")


def test_sequences_all_alike_have_no_interval() -> None:
    counts = torch.arange(1, 41).double()
    # Token by token, so that the sums carry different rounding errors.
    interval = token_mean(f64([sum([0.1] * n) for n in range(1, 41)]), counts)
    assert interval.estimate == pytest.approx(0.1)
    assert (interval.low, interval.high, interval.method) == (-math.inf, math.inf, "none")


def test_few_sequences_that_differ_from_zero_give_no_upper_bound() -> None:
    sums = torch.zeros(100)
    sums[:2] = torch.tensor([1.0, 2.0])
    interval = token_mean(sums, torch.ones(100))
    assert interval.high == math.inf
    sums[:12] = torch.arange(1.0, 13.0)
    assert token_mean(sums, torch.ones(100)).high < math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_sums_have_no_interval(value: float) -> None:
    interval = token_mean(f64([1.0, value, 2.0, 5.0]), torch.ones(4))
    assert not math.isfinite(interval.estimate)
    assert (interval.low, interval.high, interval.method) == (-math.inf, math.inf, "none")


@settings(max_examples=60)
@given(
    rows=st.lists(
        st.tuples(st.floats(-1e300, 1e300) | st.sampled_from([0.0, 5e-324]), st.integers(0, 3)), min_size=1, max_size=9
    )
)
def test_bounds_are_never_nan_and_hold_the_estimate(rows: list[tuple[float, int]]) -> None:
    interval = token_mean(f64([x for x, _ in rows]), f64([float(n) for _, n in rows]), resamples=199)
    assert not math.isnan(interval.low)
    assert not math.isnan(interval.high)
    assert interval.low <= interval.high


def coverage(mean: object, truth: float, sequences: int, replications: int = 200) -> float:
    """Share of intervals that hold the truth, on clustered heavy-tailed tokens whose spread grows with the length.

    Sequence i has n_i tokens, n_i uniform on 20..60, each n_i exp(0.5 z_i) exp(z_ij) with standard normal z: a
    lognormal of sigma 1 within and 0.5 between sequences.
    """
    g = torch.Generator().manual_seed(20)
    hits = 0
    for seed in range(replications):
        n = torch.randint(20, 61, (sequences,), generator=g)
        between = (0.5 * torch.randn(sequences, generator=g, dtype=torch.float64)).exp()
        tokens = torch.randn(sequences, 60, generator=g, dtype=torch.float64).exp()
        tokens *= torch.arange(60) < n.unsqueeze(-1)
        interval = mean(n * between * tokens.sum(-1), n, resamples=599, seed=seed)  # type: ignore[operator]
        hits += interval.low <= truth <= interval.high
    return hits / replications


# 200 replications put two standard errors of 0.03 around a true coverage of 0.95; skewness may cost a little more.
LOGNORMAL_MEAN = math.exp(0.5**2 / 2 + 1 / 2)
MEAN_SQUARED_LENGTH = sum(n * n for n in range(20, 61)) / 41


@pytest.mark.parametrize(
    # Tokens of long sequences are larger and more numerous, so the token mean is E[n * n] / E[n].
    ("mean", "truth"),
    [(token_mean, LOGNORMAL_MEAN * MEAN_SQUARED_LENGTH / 40), (sequence_mean, LOGNORMAL_MEAN * 40)],
)
def test_covers_the_truth(mean: object, truth: float) -> None:
    assert 0.90 <= coverage(mean, truth, sequences=30) <= 0.99


def test_the_two_means_are_different_targets() -> None:
    assert coverage(sequence_mean, LOGNORMAL_MEAN * MEAN_SQUARED_LENGTH / 40, sequences=200, replications=40) < 0.8


def interval_of(
    estimate: float,
    low: float,
    high: float,
    sequences: int = 100,
    method: Literal["bootstrap-t", "exact", "none"] = "bootstrap-t",
) -> Interval:
    tokens = 200 * sequences
    return Interval(
        estimate=estimate, low=low, high=high, level=0.95, sequences=sequences, tokens=tokens, method=method
    )


def status(interval: Interval, gate: float = 1.0, *, bit_equal: bool = False, nonfinite: int = 0) -> str:
    return judge(interval, Gate(metric="k3", below=gate), bit_equal=bit_equal, nonfinite=nonfinite).status


def test_interval_against_gate() -> None:
    assert status(interval_of(0.5, 0.2, 0.9)) == "pass"
    assert status(interval_of(2.0, 1.1, 3.0)) == "fail"
    assert status(interval_of(0.8, 0.5, 1.2)) == "inconclusive"
    # A bound on the gate decides nothing.
    assert status(interval_of(0.5, 0.2, 1.0)) == "inconclusive"
    assert status(interval_of(2.0, 1.0, 3.0)) == "inconclusive"


def test_too_few_sequences_never_pass_but_can_fail() -> None:
    judgement = judge(
        interval_of(0.5, 0.2, 0.9, sequences=24), Gate(metric="k3", below=1.0), bit_equal=False, nonfinite=0
    )
    assert judgement.status == "inconclusive"
    assert "24 sequences" in judgement.reason
    assert "25 needed" in judgement.reason
    assert status(interval_of(0.5, 0.2, 0.9, sequences=25)) == "pass"
    assert status(interval_of(2.0, 1.1, 3.0, sequences=24)) == "fail"


def test_only_equal_bits_pass_at_any_size() -> None:
    assert status(interval_of(0.0, 0.0, 0.0, sequences=1, method="exact"), bit_equal=True) == "pass"
    # A metric of 0 with different bits somewhere needs its 25 sequences.
    assert status(interval_of(0.0, 0.0, 0.0, sequences=24, method="exact")) == "inconclusive"
    assert status(interval_of(0.0, 0.0, 0.0, sequences=25, method="exact")) == "pass"


def test_nonfinite_fails_closed() -> None:
    assert status(interval_of(0.0, 0.0, 0.0, method="exact"), bit_equal=True, nonfinite=1) == "fail"
    judgement = judge(
        interval_of(math.nan, -math.inf, math.inf, method="none"),
        Gate(metric="k3", below=1.0),
        bit_equal=False,
        nonfinite=3,
    )
    assert judgement.status == "fail"
    assert "logits: 3" in judgement.reason
    assert status(interval_of(math.inf, -math.inf, math.inf, method="none")) == "fail"
    assert status(interval_of(math.nan, -math.inf, math.inf, method="none")) == "fail"


def test_nothing_scored_is_never_parity() -> None:
    nothing = interval_of(math.nan, -math.inf, math.inf, sequences=0, method="none")
    assert status(nothing) == "inconclusive"
    assert status(nothing, bit_equal=True) == "inconclusive"


def reason(interval: Interval, gate: float = 1.0) -> str:
    judgement = judge(interval, Gate(metric="k3", below=gate), bit_equal=False, nonfinite=0)
    assert judgement.status == "inconclusive"
    return judgement.reason


def test_says_how_many_sequences_would_do_if_it_can() -> None:
    # The upper half-width 0.8 must shrink to 0.4: four times the sequences.
    assert "about 400 such sequences" in reason(interval_of(0.6, 0.1, 1.4))
    # Above the gate the lower half-width counts: 0.9 to 0.3, nine times.
    assert "about 900 such sequences" in reason(interval_of(1.3, 0.4, 1.5))
    assert "about 25 such sequences" in reason(interval_of(0.5, 0.2, 1.05, sequences=10))
    assert "about 101 such sequences" in reason(interval_of(0.5, 0.2, 1.0))
    # No number can be given.
    assert "at least 101 such sequences" in reason(interval_of(1.0, 0.5, 1.5))
    assert "at least 101 such sequences" in reason(interval_of(0.5, -1.0, 1e200))
    assert "at least 25 such sequences" in reason(interval_of(0.5, -math.inf, math.inf, sequences=3))
    assert "at least 101 such sequences" in reason(interval_of(1.0 - 1e-9, 0.5, 1.5))
    assert "1 sequence (200 tokens): one is too few" in reason(
        interval_of(0.5, -math.inf, math.inf, sequences=1, method="none")
    )
    assert "all alike" in reason(interval_of(0.5, -math.inf, math.inf, sequences=50, method="none"))


def test_says_how_many_tokens_would_do_if_it_can() -> None:
    def needed(interval: Interval) -> tuple[int | None, int | None]:
        judgement = judge(interval, Gate(metric="k3", below=1.0), bit_equal=False, nonfinite=0)
        if judgement.needed_tokens is not None and judgement.needed_sequences != 25:
            assert f"about {judgement.needed_sequences} such sequences ({judgement.needed_tokens} tokens)" in (
                judgement.reason
            )
        return judgement.needed_sequences, judgement.needed_tokens

    assert needed(interval_of(0.6, 0.1, 1.4)) == (400, 80_000)
    assert needed(interval_of(1.3, 0.4, 1.5)) == (900, 180_000)
    # Only the number of sequences keeps it from passing.
    assert needed(interval_of(0.5, 0.2, 0.9, sequences=10)) == (25, 5_000)
    assert needed(interval_of(1.0, 0.5, 1.5)) == (None, None)
    assert needed(interval_of(0.5, -math.inf, math.inf, sequences=50, method="none")) == (None, None)
    assert needed(interval_of(0.5, 0.2, 0.9)) == (None, None)
    assert needed(interval_of(2.0, 1.2, 2.9)) == (None, None)


def test_counts_the_tokens_given() -> None:
    sums, counts = f64([1.0, 0.0, 2.0, 4.0]), f64([2.0, 0.0, 3.0, 6.0])
    assert token_mean(sums, counts).tokens == sequence_mean(sums, counts).tokens == 11


@settings(max_examples=200)
@given(
    bounds=st.tuples(*[st.floats(-10, 10)] * 3).map(sorted),
    sequences=st.integers(0, 60),
    bit_equal=st.booleans(),
    nonfinite=st.integers(0, 1),
)
def test_a_pass_is_always_earned(bounds: list[float], sequences: int, bit_equal: bool, nonfinite: int) -> None:
    low, estimate, high = bounds
    verdict = status(interval_of(estimate, low, high, sequences), bit_equal=bit_equal, nonfinite=nonfinite)
    earned = sequences and not nonfinite and (bit_equal or (sequences >= 25 and high < 1.0))
    assert (verdict == "pass") == bool(earned)


def test_refuses_bad_input() -> None:
    x = torch.rand(5)
    with pytest.raises(ValueError, match="equal shapes"):
        token_mean(x, torch.ones(4))
    with pytest.raises(ValueError, match="equal shapes"):
        sequence_mean(x.reshape(5, 1), torch.ones(5, 1))
    with pytest.raises(ValueError, match="not negative"):
        token_mean(x, torch.tensor([1.0, 1.0, -1.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match="not negative"):
        token_mean(x, torch.tensor([1.0, 1.0, math.nan, 1.0, 1.0]))
    with pytest.raises(ValueError, match="between 0 and 1"):
        token_mean(x, torch.ones(5), level=1.0)
    with pytest.raises(ValueError, match="38 resamples are too few"):
        token_mean(x, torch.ones(5), resamples=38)
    for gate in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive finite"):
            judge(interval_of(0.5, 0.2, 0.9), Gate(metric="k3", below=gate), bit_equal=True, nonfinite=0)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 101, 5000])
@pytest.mark.parametrize("probability", [0.5, 0.9, 0.975, 0.9995])
def test_students_quantile_is_that_of_scipy(freedom: int, probability: float) -> None:
    expected = float(scipy.stats.t.ppf(probability, freedom))
    assert student(probability, freedom) == pytest.approx(expected, rel=2e-3 if freedom > 1000 else 1e-9, abs=1e-12)


@pytest.mark.parametrize(("probability", "freedom"), [(0.975, 0), (0.4, 3), (1.0, 3)])
def test_students_quantile_of_nothing_is_refused(probability: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="degrees of freedom, probability"):
        student(probability, freedom)


def test_how_many_carry_a_sum() -> None:
    assert effective(f64([2.0, 2.0, 0.0, 2.0])) == 3
    assert effective(f64([1e-300, 0.0])) == 1
    assert effective(f64([0.0, 0.0])) == effective(f64([])) == 0


def test_a_tail_widens_an_interval_and_many_alike_hardly_do() -> None:
    ones = torch.ones(200, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    alike = torch.rand(200, generator=generator, dtype=torch.float64) + 1
    single = torch.zeros(200, dtype=torch.float64)
    single[:4] = f64([50.0, 30.0, 60.0, 45.0])
    for sums, least, most in ((alike, 1.0, 1.15), (single, 1.3, 4.0)):
        narrow, wide = token_mean(sums, ones), tail_mean(sums, ones)
        assert wide.low < narrow.low <= narrow.estimate == wide.estimate <= narrow.high < wide.high
        assert least < (wide.high - wide.low) / (narrow.high - narrow.low) < most
    # What one more sequence like the dearest adds: its distance to the mean over one sequence more.
    steady = f64([1.0, 1.5] * 50)
    narrow, wide = token_mean(steady, torch.ones(100)), tail_mean(steady, torch.ones(100))
    assert wide.high - narrow.high == pytest.approx(0.25 / 101, rel=0.05)


@pytest.mark.parametrize("sums", [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [5.0], [], [1.0, math.nan, 2.0]])
def test_where_there_is_no_bootstrap_nothing_is_widened(sums: list[float]) -> None:
    ones = torch.ones(len(sums), dtype=torch.float64)
    assert repr(tail_mean(f64(sums), ones)) == repr(token_mean(f64(sums), ones))


def test_how_many_sequences_an_interval_needs_to_leave_a_line() -> None:
    assert sequences_needed(1.0, (-1.0, 2.0), 0.0, 100) == 400
    assert sequences_needed(-1.0, (-2.0, 2.0), 0.0, 100) == 900
    assert sequences_needed(1.0, (0.5, 2.0), 0.0, 10) == 25
    assert sequences_needed(1.0, (-math.inf, 2.0), 0.0, 100) is None
    assert sequences_needed(0.0, (-1.0, 1.0), 0.0, 100) is None
