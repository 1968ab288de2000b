"""Divergences of whole distributions against scipy, and what equal and disjoint ones must give."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import rankdata

from moeparity.metrics.distributions import divergences, rank_change, top_jaccard, vocabulary_metrics

X = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)).double() * 3
Y = X + 0.3 * torch.randn(6, 40, generator=torch.Generator().manual_seed(1)).double()


def test_against_scipy() -> None:
    p, q = X.softmax(-1), Y.softmax(-1)
    jsd, tv = divergences(X.log_softmax(-1), Y.log_softmax(-1))
    assert jsd.tolist() == pytest.approx([float(jensenshannon(a, b)) ** 2 for a, b in zip(p, q, strict=True)])
    assert tv.tolist() == pytest.approx((p - q).clamp(min=0).sum(-1).tolist())


def test_equal_rows_differ_by_exactly_nothing() -> None:
    tokens = torch.arange(6)
    assert vocabulary_metrics(X, X.clone(), tokens).tolist() == [[0.0] * 6, [0.0] * 6, [1.0] * 6, [0.0] * 6]


def test_rows_with_nothing_in_common() -> None:
    x = torch.tensor([[0.0, -2000.0]], dtype=torch.float64)
    jsd, tv = divergences(x.log_softmax(-1), x.flip(-1).log_softmax(-1))
    assert float(jsd) == pytest.approx(math.log(2))
    assert float(tv) == pytest.approx(1.0)


def test_small_differences_keep_their_digits() -> None:
    noise = torch.randn(6, 40, generator=torch.Generator().manual_seed(2)).double() * 1e-5
    x, y = X.log_softmax(-1), (X + noise).log_softmax(-1)
    kl = (x.exp() * (x - y)).sum(-1)
    assert divergences(x, y)[0].tolist() == pytest.approx((kl / 4).tolist(), rel=1e-3)


def test_top_ids_by_hand() -> None:
    x, y = torch.tensor([[5.0, 4, 3, 2, 1]]), torch.tensor([[5.0, 1, 4, 3, 2]])
    assert top_jaccard(x, y, 2).tolist() == [1 / 3]
    assert top_jaccard(x, y, 9).tolist() == [1.0]


def test_ranks_against_scipy() -> None:
    tokens = torch.tensor([0, 3, 7, 11, 20, 39])
    ranks = [rankdata(-side.numpy(), method="min", axis=1) for side in (X, Y)]
    expected = [abs(int(ranks[0][i, t]) - int(ranks[1][i, t])) for i, t in enumerate(tokens.tolist())]
    assert rank_change(X, Y, tokens).tolist() == expected
    assert any(expected)
