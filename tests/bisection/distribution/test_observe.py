"""What the observer sums: scored tokens with finite logits only, whatever the waves."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from moeparity.bisection.distribution.measure import Distributions
from moeparity.metrics import tokens as scored_tokens
from moeparity.metrics.distributions import vocabulary_metrics

LOGITS = torch.randn(2, 3, 5, 12, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(0, 12, (3, 5), generator=torch.Generator().manual_seed(1))
MASK = torch.ones(3, 5, dtype=torch.bool)


def observed(mask: torch.Tensor = MASK, logits: torch.Tensor = LOGITS, *, wave: int = 3) -> Distributions:
    observer = Distributions("lm_head", IDS, mask)
    for start in range(0, 3, wave):
        rows = (start, min(3, start + wave))
        sides = dict(zip(("reference", "candidate"), logits[:, slice(*rows)], strict=True))
        view = SimpleNamespace(node=SimpleNamespace(name="lm_head"), wave=rows, tensor=sides.__getitem__)
        observer.see(cast("Any", view))
    return observer


def test_a_token_is_scored_by_the_logits_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (side[:, :-1].reshape(-1, 12) for side in LOGITS)
    expected = vocabulary_metrics(x, y, IDS[:, 1:].reshape(-1))
    distances = observed()
    assert distances.tokens == 12
    assert distances.sums == pytest.approx(expected.sum(-1).tolist(), rel=1e-12)
    assert distances.max_tv == float(expected[1].max())
    monkeypatch.setattr(scored_tokens, "CHUNK", 24)
    assert observed(wave=1).sums == pytest.approx(distances.sums, rel=1e-12)


def test_masked_tokens_and_logits_that_are_not_finite_do_not_count() -> None:
    mask = MASK.clone()
    mask[0] = False
    spoilt = LOGITS.clone()
    spoilt[1, 0], spoilt[0, 1, 2, 7] = math.nan, -math.inf
    distances = observed(mask, spoilt)
    assert distances.tokens == 7
    assert all(map(math.isfinite, distances.sums))


def test_nothing_scored() -> None:
    distances = observed(torch.zeros_like(MASK))
    assert (distances.tokens, distances.max_tv, distances.sums) == (0, 0.0, [0.0] * 4)
