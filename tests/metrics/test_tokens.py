"""`token_metrics` against scalar loops with `math`, and the identities that fix every direction and sign."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from moeparity.metrics import tokens as logprobs
from moeparity.metrics.tokens import SequenceSums, token_metrics

Sampler = Literal["candidate", "reference"]

NAMES = [field.name for field in fields(SequenceSums) if field.name != "gated"]


def log_softmax(row: list[float]) -> list[float]:
    top = max(row)
    norm = math.log(math.fsum(math.exp(v - top) for v in row))
    return [v - top - norm for v in row]


def scalar_sums(
    reference: torch.Tensor, candidate: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor, sign: int
) -> dict[str, list[float]]:
    """Every field of `SequenceSums` by loops over sequences, positions and the vocabulary."""
    out: dict[str, list[float]] = {name: [] for name in NAMES}
    for b in range(ids.shape[0]):
        deltas, forward, backward, agree, unequal = [], [], [], 0, 0
        for t in range(1, ids.shape[1]):
            if not mask[b, t]:
                continue
            x, y = reference[b, t - 1].tolist(), candidate[b, t - 1].tolist()
            p, q = log_softmax(x), log_softmax(y)
            token = int(ids[b, t])
            deltas.append(sign * (p[token] - q[token]))
            forward.append(math.fsum(math.exp(v) * (v - u) for u, v in zip(p, q, strict=True)))
            backward.append(math.fsum(math.exp(u) * (u - v) for u, v in zip(p, q, strict=True)))
            agree += x.index(max(x)) == y.index(max(y))
            unequal += reference.dtype != candidate.dtype or [v.hex() for v in x] != [v.hex() for v in y]
        out["tokens"].append(len(deltas))
        out["k1"].append(-math.fsum(deltas))
        out["k2"].append(math.fsum(d * d / 2 for d in deltas))
        out["k3"].append(math.fsum(math.expm1(d) - d for d in deltas))
        out["kl_candidate_reference"].append(math.fsum(forward))
        out["kl_reference_candidate"].append(math.fsum(backward))
        out["abs_delta"].append(math.fsum(map(abs, deltas)))
        out["max_abs_delta"].append(max(map(abs, deltas), default=0.0))
        out["top1"].append(agree)
        out["unequal"].append(unequal)
        for name in ("nonfinite", "outside", "unshared"):
            out[name].append(0)
    return out


def block(seed: int, b: int, t: int, v: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    reference = torch.randn(b, t, v, generator=g) * 3
    candidate = reference + torch.randn(b, t, v, generator=g) * 0.3
    ids = torch.randint(v, (b, t), generator=g)
    return reference, candidate, ids, torch.rand(b, t, generator=g) < 0.6


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    b=st.integers(1, 3),
    t=st.integers(1, 5),
    v=st.integers(1, 7),
    dtypes=st.tuples(*[st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64])] * 2),
    sampled_from=st.sampled_from(["candidate", "reference"]),
)
def test_equals_scalar_loop(
    seed: int,
    b: int,
    t: int,
    v: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    sampled_from: Sampler,
) -> None:
    reference, candidate, ids, mask = block(seed, b, t, v)
    reference, candidate = reference.to(dtypes[0]), candidate.to(dtypes[1])
    sums = token_metrics(reference, candidate, ids, mask, sampled_from=sampled_from).sums()
    expected = scalar_sums(reference, candidate, ids, mask, 1 if sampled_from == "candidate" else -1)
    for name in NAMES:
        assert getattr(sums, name).dtype == torch.float64
        assert getattr(sums, name).tolist() == pytest.approx(expected[name], rel=1e-11, abs=1e-13), name


def test_hand_checked() -> None:
    # P_reference = (1/2, 1/2), P_candidate = (3/4, 1/4); the only scored token is id 0.
    reference = torch.zeros(1, 2, 2)
    candidate = torch.tensor([[[math.log(3), 0.0], [5.0, -5.0]]], dtype=torch.float64)
    sums = token_metrics(reference, candidate, torch.tensor([[1, 0]]), torch.tensor([[True, True]])).sums()
    delta = math.log(2 / 3)
    expected = {
        "tokens": 1,
        "k1": -delta,
        "k2": delta**2 / 2,
        "k3": 2 / 3 - 1 - delta,
        "kl_candidate_reference": 0.75 * math.log(1.5) + 0.25 * math.log(0.5),
        "kl_reference_candidate": 0.5 * math.log(2 / 3) + 0.5 * math.log(2),
        "abs_delta": -delta,
        "max_abs_delta": -delta,
        "top1": 1,
        "unequal": 1,
        "nonfinite": 0,
    }
    for name, value in expected.items():
        assert getattr(sums, name).item() == pytest.approx(value, rel=1e-14), name


@pytest.mark.parametrize("sampled_from", ["candidate", "reference"])
def test_k1_and_k3_estimate_the_kl_of_the_sampler_from_the_scorer(
    sampled_from: Sampler,
) -> None:
    v = 9
    reference, candidate, _, _ = block(3, 1, 1, v)
    # One sequence per possible token, weighted by the sampler's probability: the exact expectation.
    ids = torch.stack([torch.zeros(v, dtype=torch.int64), torch.arange(v)], dim=1)
    metrics = token_metrics(
        reference.expand(v, 2, v),
        candidate.expand(v, 2, v),
        ids,
        torch.ones(v, 2, dtype=torch.bool),
        sampled_from=sampled_from,
    )
    sampler = (candidate if sampled_from == "candidate" else reference).double().softmax(-1).flatten()
    scorer = "reference" if sampled_from == "candidate" else "candidate"
    kl = getattr(metrics, f"kl_{sampled_from}_{scorer}")[0, 1].item()
    assert (sampler * metrics.k1[:, 1]).sum().item() == pytest.approx(kl, rel=1e-12)
    assert (sampler * metrics.k3[:, 1]).sum().item() == pytest.approx(kl, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("sampled_from", ["candidate", "reference"])
def test_equal_bits_give_exactly_zero(dtype: torch.dtype, sampled_from: Sampler) -> None:
    reference, _, ids, mask = block(1, 4, 40, 3001)
    logits = reference.to(dtype)
    metrics = token_metrics(logits, logits.clone(), ids, mask, sampled_from=sampled_from)
    sums = metrics.sums()
    assert not torch.signbit(metrics.k1).any()
    for name in ("k1", "k2", "k3", "kl_candidate_reference", "kl_reference_candidate", "abs_delta", "max_abs_delta"):
        assert torch.equal(getattr(sums, name), torch.zeros(4, dtype=torch.float64)), name
        assert not torch.signbit(getattr(sums, name)).any(), name
    assert torch.equal(sums.top1, sums.tokens)
    assert sums.tokens.tolist() == mask[:, 1:].sum(-1).tolist()


def test_roles_swap() -> None:
    reference, candidate, ids, mask = block(5, 2, 6, 11)
    metrics = token_metrics(reference, candidate, ids, mask)
    two = token_metrics(candidate, reference, ids, mask, sampled_from="reference")
    assert torch.equal(metrics.delta, two.delta)
    assert torch.allclose(metrics.kl_candidate_reference, two.kl_reference_candidate, rtol=0, atol=1e-14)
    same_logits = token_metrics(reference, candidate, ids, mask, sampled_from="reference")
    assert torch.equal(same_logits.delta, -metrics.delta)
    assert torch.equal(same_logits.kl_candidate_reference, metrics.kl_candidate_reference)


def test_only_logits_before_a_scored_token_count() -> None:
    reference, candidate, ids, _ = block(7, 1, 4, 5)
    mask = torch.tensor([[True, False, True, False]])
    before = token_metrics(reference, candidate, ids, mask)
    assert before.scored.tolist() == [[False, False, True, False]]
    spoilt = candidate.clone()
    spoilt[0, [0, 2, 3]] = math.nan
    padded = torch.tensor([[-100, -100, int(ids[0, 2]), 10**9]])
    after = token_metrics(reference, spoilt, padded, mask)
    assert torch.equal(before.delta, after.delta)
    assert not after.nonfinite.any()
    spoilt[0, 1] += torch.arange(5)
    assert not torch.equal(before.delta, token_metrics(reference, spoilt, ids, mask).delta)


def test_no_scored_token() -> None:
    reference, candidate, ids, _ = block(2, 2, 3, 4)
    sums = token_metrics(reference, candidate, ids, torch.zeros(2, 3, dtype=torch.bool)).sums()
    assert all(getattr(sums, name).tolist() == [0.0, 0.0] for name in NAMES)


def test_one_position_scores_nothing() -> None:
    sums = token_metrics(torch.randn(1, 1, 4), torch.randn(1, 1, 4), torch.tensor([[2]]), torch.tensor([[True]])).sums()
    assert sums.tokens.tolist() == [0.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("on_both", [False, True])
def test_nonfinite_logits_are_counted_and_make_sums_nan(value: float, on_both: bool) -> None:
    reference, candidate, ids, _ = block(4, 2, 4, 6)
    candidate[1, 2, 5] = value
    if on_both:
        reference[1, 2, 5] = value
    metrics = token_metrics(reference, candidate, ids % 5, torch.ones(2, 4, dtype=torch.bool))
    sums = metrics.sums()
    assert metrics.nonfinite.nonzero().tolist() == [[1, 3]]
    assert sums.nonfinite.tolist() == [0.0, 1.0]
    assert sums.tokens.tolist() == [3.0, 3.0]
    for name in set(NAMES) - {"tokens", "unequal", "nonfinite", "outside", "unshared"}:
        assert getattr(sums, name).isnan().tolist() == [False, True], name


def test_bits_are_compared_where_a_token_is_scored() -> None:
    """The last logits score nothing, -0 is not +0, a NaN is itself, and another dtype is another value."""
    reference = torch.tensor([[[0.0, 1.0], [0.0, 1.0], [0.0, math.nan], [5.0, 5.0]]])
    candidate = torch.tensor([[[0.0, 1.0], [-0.0, 1.0], [0.0, math.nan], [7.0, 7.0]]])
    ids, mask = torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.bool)
    assert token_metrics(reference, candidate, ids, mask).unequal.tolist() == [[False, False, True, False]]
    assert token_metrics(reference, reference.double(), ids, mask).sums().unequal.tolist() == [3.0]
    masked = torch.tensor([[True, True, False, True]])
    assert token_metrics(reference, candidate, ids, masked).sums().unequal.tolist() == [0.0]


def test_top1_takes_the_lowest_index_among_ties() -> None:
    reference = torch.tensor([[[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]]])
    agree = torch.tensor([[[0.0, 3.0, 3.0], [0.0, 0.0, 0.0]]])
    differ = torch.tensor([[[0.0, 3.0, 4.0], [0.0, 0.0, 0.0]]])
    ids, mask = torch.tensor([[0, 0]]), torch.tensor([[True, True]])
    assert token_metrics(reference, agree, ids, mask).sums().top1.item() == 1.0
    assert token_metrics(reference, differ, ids, mask).sums().top1.item() == 0.0


def test_small_deltas_keep_their_digits() -> None:
    reference = torch.zeros(1, 2, 2, dtype=torch.float64)
    candidate = torch.tensor([[[2e-8, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    sums = token_metrics(reference, candidate, torch.tensor([[0, 0]]), torch.tensor([[True, True]])).sums()
    # delta = -1e-8 + O(1e-16), and k3 = delta^2 / 2 + O(delta^3); exp(delta) - 1 would leave 0 or 1e-16.
    assert sums.k3.item() == pytest.approx(5e-17, rel=1e-6, abs=0)


def test_large_deltas_are_not_clamped() -> None:
    reference = torch.tensor([[[100.0, 0.0], [0.0, 0.0]]])
    candidate = torch.tensor([[[0.0, 0.0], [0.0, 0.0]]])
    ids, mask = torch.tensor([[0, 1]]), torch.tensor([[True, True]])
    delta = -100.0 + math.log(2)
    assert token_metrics(reference, candidate, ids, mask).sums().k3.item() == pytest.approx(-1 - delta, rel=1e-13)
    swapped = token_metrics(reference, candidate, ids, mask, sampled_from="reference").sums()
    assert swapped.k3.item() == pytest.approx(math.exp(-delta) - 1 + delta, rel=1e-12)


def test_chunks_do_not_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = block(9, 3, 17, 29)
    whole = token_metrics(*arguments).sums()
    monkeypatch.setattr(logprobs, "CHUNK", 1)
    rows = token_metrics(*arguments).sums()
    assert all(torch.equal(getattr(whole, name), getattr(rows, name)) for name in NAMES)


def test_no_temporary_beyond_one_chunk() -> None:
    sizes: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                sizes.append(out.numel())
            return out

    v = 150_001
    logits = torch.zeros(1, 9, v, dtype=torch.bfloat16)
    ids, mask = torch.zeros(1, 9, dtype=torch.int64), torch.ones(1, 9, dtype=torch.bool)
    with Sizes():
        token_metrics(logits, logits, ids, mask)
    assert v <= max(sizes) <= 1 << 19


def test_concatenate_keeps_the_order() -> None:
    reference, candidate, ids, mask = block(6, 5, 4, 8)
    whole = token_metrics(reference, candidate, ids, mask).sums()
    parts = [token_metrics(reference[s], candidate[s], ids[s], mask[s]).sums() for s in (slice(0, 2), slice(2, 5))]
    sums = SequenceSums.concatenate(parts)
    assert all(torch.equal(getattr(sums, name), getattr(whole, name)) for name in NAMES)
    with pytest.raises(ValueError, match="nothing to concatenate"):
        SequenceSums.concatenate([])


def test_refuses_bad_input() -> None:
    x, _, ids, mask = block(0, 2, 3, 4)
    mask = torch.ones_like(mask)
    with pytest.raises(ValueError, match=r"\[B, T, V\] expected, given \(2, 3, 4\) and \(2, 3, 3\)"):
        token_metrics(x, x[..., :3], ids, mask)
    with pytest.raises(ValueError, match="input_ids has shape"):
        token_metrics(x, x, ids[:, :2], mask)
    with pytest.raises(ValueError, match="loss_mask has shape"):
        token_metrics(x, x, ids, mask[:1])
    with pytest.raises(ValueError, match="no positions"):
        token_metrics(x[:, :0], x[:, :0], ids[:, :0], mask[:, :0])
    with pytest.raises(ValueError, match="outside the vocabulary of 4"):
        token_metrics(x, x, torch.full_like(ids, 4), mask)
    with pytest.raises(ValueError, match="outside the vocabulary of 4"):
        token_metrics(x, x, torch.full_like(ids, -1), mask)
    with pytest.raises(ValueError, match="sampled_from is 'both'"):
        token_metrics(x, x, ids, mask, sampled_from="both")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="floating point expected"):
        token_metrics(x.long(), x, ids, mask)
    with pytest.raises(TypeError, match=r"input_ids is torch\.int32"):
        token_metrics(x, x, ids.int(), mask)
    with pytest.raises(TypeError, match=r"loss_mask is torch\.int64"):
        token_metrics(x, x, ids, mask.long())
