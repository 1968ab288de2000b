"""`token_metrics` and `chosen_logprobs` of log-probabilities as a side reports them, against scalar loops."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.bisection.record.observe import chosen_logprobs
from moeparity.metrics import tokens as logprobs
from moeparity.metrics.tokens import TokenMetrics, token_metrics
from tests.metrics.test_tokens import block, log_softmax

Kinds = tuple[bool, bool]
Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
KINDS: list[Kinds] = [(False, False), (False, True), (True, False), (True, True)]
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
IDS, MASK = torch.tensor([[1, 0]]), torch.tensor([[True, True]])


def handed_on(x: torch.Tensor, dtype: torch.dtype, reported: bool) -> torch.Tensor:
    """What a side hands on: logits, or their log-softmax, rounded."""
    return (x.double().log_softmax(-1) if reported else x).to(dtype)


def measures(p: list[float], q: list[float]) -> float:
    """The sum of P (log P - log Q) - P + Q, from logarithms."""
    return math.fsum(math.exp(a) * (a - b) - math.exp(a) + math.exp(b) for a, b in zip(p, q, strict=True))


def of(x: torch.Tensor, reported: bool) -> list[float]:
    row: list[float] = x.tolist()
    return row if reported else log_softmax(row)


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    v=st.integers(1, 7),
    dtypes=st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    reported=st.sampled_from(KINDS),
    sampled_from=st.sampled_from(["candidate", "reference"]),
)
def test_equals_scalar_loop(
    seed: int,
    v: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    reported: Kinds,
    sampled_from: Literal["candidate", "reference"],
) -> None:
    x, y, ids, mask = block(seed, 2, 4, v)
    reference, candidate = handed_on(x, dtypes[0], reported[0]), handed_on(y, dtypes[1], reported[1])
    metrics = token_metrics(reference, candidate, ids, mask, sampled_from=sampled_from, reported=reported)
    for b, t in metrics.scored.nonzero().tolist():
        ours, theirs = of(reference[b, t - 1], reported[0]), of(candidate[b, t - 1], reported[1])
        delta = ours[int(ids[b, t])] - theirs[int(ids[b, t])]
        assert metrics.delta[b, t].item() == pytest.approx(delta if sampled_from == "candidate" else -delta, abs=1e-13)
        assert metrics.kl_candidate_reference[b, t].item() == pytest.approx(
            measures(theirs, ours), rel=1e-11, abs=1e-13
        )
        assert metrics.kl_reference_candidate[b, t].item() == pytest.approx(
            measures(ours, theirs), rel=1e-11, abs=1e-13
        )
        assert metrics.top1[b, t].item() == (ours.index(max(ours)) == theirs.index(max(theirs)))


def one_token(reference: list[float], candidate: list[float], reported: Kinds) -> TokenMetrics:
    """Id 0 scored by these two rows; what stands at the last position scores nothing."""
    x, y = (torch.tensor([[row, [7.0] * len(row)]], dtype=torch.float64) for row in (reference, candidate))
    return token_metrics(x, y, IDS, MASK, reported=reported)


def test_both_reported_by_hand() -> None:
    """e^-1 + e^-2 and e^-1.5 + e^-1 are no 1, and nothing is made of that but what the formula says."""
    metrics = one_token([-1.0, -2.0], [-1.5, -1.0], (True, True))
    assert metrics.delta.tolist() == [[0.0, 0.5]]
    e = [math.exp(-x) for x in (1.0, 1.5, 2.0)]
    assert metrics.kl_candidate_reference[0, 1].item() == pytest.approx(-0.5 * e[1] + e[0] - e[1] + e[2], rel=1e-14)
    assert metrics.kl_reference_candidate[0, 1].item() == pytest.approx(0.5 * e[0] - e[2] - e[2] + e[1], rel=1e-13)
    assert (metrics.top1[0, 1].item(), metrics.unequal[0, 1].item()) == (0.0, True)


@pytest.mark.parametrize("reported", [(True, False), (False, True)])
def test_one_side_reported_by_hand(reported: Kinds) -> None:
    """Logits (log 3, 0) are 3/4 and 1/4; reported are 1/2 and 1/8, of which 3/8 are missing."""
    rows = [-math.log(2), -math.log(8)], [math.log(3), 0.0]
    metrics = one_token(*(rows if reported[0] else rows[::-1]), reported)
    assert metrics.delta[0, 1].item() == pytest.approx(math.log(2 / 3) * (1 if reported[0] else -1), rel=1e-14)
    to_reported = 0.75 * math.log(1.5) + 0.25 * math.log(2) - 3 / 8
    to_logits = 0.5 * math.log(2 / 3) + 0.125 * math.log(0.5) + 3 / 8
    expected = (to_reported, to_logits) if reported[0] else (to_logits, to_reported)
    kls = (metrics.kl_candidate_reference[0, 1].item(), metrics.kl_reference_candidate[0, 1].item())
    assert kls == pytest.approx(expected, rel=1e-13)
    assert (metrics.top1[0, 1].item(), metrics.unequal[0, 1].item()) == (1.0, True)


def test_reported_values_are_not_normalised() -> None:
    """A constant more on one side is a constant more in every delta; of logits it is nothing."""
    rows = [-1.0, -2.0, -3.0], [-0.75, -1.75, -2.75]
    assert one_token(*rows, (True, True)).delta[0, 1].item() == -0.25
    assert one_token(*rows, (False, False)).delta[0, 1].item() == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mass_that_is_off_makes_no_kl_negative(dtype: torch.dtype) -> None:
    x, y, ids, _ = block(3, 4, 30, 257)
    near = x + (y - x) * 1e-4
    reference, candidate = handed_on(x, dtype, reported=True), handed_on(near, dtype, reported=True)
    mask = torch.ones(4, 30, dtype=torch.bool)
    metrics = token_metrics(reference, candidate, ids, mask, reported=(True, True))
    for kl in (metrics.kl_candidate_reference, metrics.kl_reference_candidate):
        assert (kl > -1e-15).all()
        assert (kl > 0).any()
    p, q = candidate[:, :-1].double(), reference[:, :-1].double()
    plain = (p.exp() * (p - q)).sum(-1)
    # What the plain sum would say: of 16 bits, negative by far more than a KL this small.
    assert (dtype.itemsize > 2) == bool((plain > -1e-6).all())


def test_of_distributions_it_is_the_usual_kl() -> None:
    x, y, ids, mask = block(5, 3, 20, 301)
    logits = token_metrics(x, y, ids, mask)
    for reported in KINDS[1:]:
        ours, theirs = (handed_on(values, torch.float64, kind) for values, kind in zip((x, y), reported, strict=True))
        metrics = token_metrics(ours, theirs, ids, mask, reported=reported)
        for name in ("delta", "kl_candidate_reference", "kl_reference_candidate"):
            assert torch.allclose(getattr(metrics, name), getattr(logits, name), rtol=0, atol=1e-13), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_bits_of_one_kind_give_exactly_zero(dtype: torch.dtype) -> None:
    x, _, ids, mask = block(1, 4, 40, 3001)
    values = handed_on(x, dtype, reported=True)
    metrics = token_metrics(values, values.clone(), ids, mask, reported=(True, True))
    for name in ("delta", "kl_candidate_reference", "kl_reference_candidate"):
        assert torch.equal(getattr(metrics, name), torch.zeros(4, 40, dtype=torch.float64)), name
    assert not metrics.sums().k3.any()
    assert not metrics.unequal.any()
    assert torch.equal(metrics.top1.bool(), metrics.scored)


@pytest.mark.parametrize("reported", [(True, False), (False, True)])
def test_values_of_two_kinds_are_never_equal(reported: Kinds) -> None:
    """Even where the bits are."""
    x, _, ids, mask = block(2, 2, 5, 11)
    metrics = token_metrics(x, x.clone(), ids, mask, reported=reported)
    assert torch.equal(metrics.unequal, metrics.scored)
    assert (metrics.delta[metrics.scored] != 0).all()
    assert not token_metrics(x, x.clone(), ids, mask, reported=(True, True)).unequal.any()


def test_a_probability_that_underflowed_is_finite_and_far() -> None:
    """SGLang's least finite number: the other side's share of that token, times the distance."""
    least = torch.finfo(torch.float32).min
    metrics = one_token([math.log(0.5), math.log(0.5)], [0.0, least], (True, True))
    assert metrics.kl_candidate_reference[0, 1].item() == pytest.approx(math.log(2), rel=1e-15)
    assert metrics.kl_reference_candidate[0, 1].item() == pytest.approx(-0.5 * least, rel=1e-15)
    assert not metrics.nonfinite.any()
    assert one_token([-1.0, -2.0], [0.0, -math.inf], (True, True)).nonfinite.tolist() == [[False, True]]


def test_chunks_do_not_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, ids, mask = block(9, 3, 17, 29)
    sides: Rows = (handed_on(x, torch.float32, reported=True), y, ids, mask)
    whole = token_metrics(*sides, reported=(True, False))
    monkeypatch.setattr(logprobs, "CHUNK", 1)
    rows = token_metrics(*sides, reported=(True, False))
    for name in ("delta", "kl_candidate_reference", "kl_reference_candidate", "top1", "unequal"):
        assert torch.equal(getattr(whole, name), getattr(rows, name)), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_reported_values_of_chosen_tokens(dtype: torch.dtype) -> None:
    x, _, ids, _ = block(4, 2, 6, 13)
    values = handed_on(x, dtype, reported=True)
    where = torch.tensor([[0, 1, 0, 1, 0, 0], [0, 0, 1, 0, 0, 1]], dtype=torch.bool)
    chosen = chosen_logprobs(values, ids, where, reported=True)
    places = [(0, 1), (0, 3), (1, 2), (1, 5)]
    assert chosen.dtype == torch.float64
    assert chosen.tolist() == [values[b, t - 1, int(ids[b, t])].double().item() for b, t in places]
    # In fp64 taken of themselves log-probabilities change by their mass that is off, and not at all if none is.
    again = chosen_logprobs(values, ids, where)
    assert torch.allclose(chosen, again, rtol=0, atol=1e-14) == (dtype == torch.float64)
