"""Near ties against plain evaluations: what cannot flip has probability 0, what must flip 1, what may its share."""

from __future__ import annotations

import math

import pytest
import torch

from moeparity.bisection.flips.observe import Ranking
from moeparity.bisection.mine.observe import _NoisyLogits, lift

SETTINGS = {
    "softmax": "native",
    "math": "torch",
    "sigmoid": "native",
    "scores": torch.float32,
    "correction": torch.float32,
    "choice": torch.float32,
    "chosen": "scores",
    "group_score": "top2_sum",
    "group_mask": "neg_inf",
    "tie_break": "lowest_index",
    "renormalize": "divide",
    "renormalize_order": "native",
    "renormalize_eps": 0.0,
    "renormalize_eps_at": "end",
    "total": torch.float32,
    "weights": torch.float32,
}
PLAIN = {"score": "softmax", "top_k": 3, "groups": 1, "top_groups": 1, "renormalize": True, "scale": 1.0}
GROUPED = {**PLAIN, "score": "sigmoid", "groups": 4, "top_groups": 2}


def drawn(p: dict[str, object], noise: float, output: torch.dtype) -> tuple[_NoisyLogits, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    unrounded = torch.randn(400, 16, generator=generator)
    rows = noise * torch.randn(50, 16, generator=generator)
    w = {} if p["groups"] == 1 else {"bias": torch.linspace(-0.05, 0.05, 16)}
    noisy = _NoisyLogits(
        unrounded, unrounded.to(output), output, rows, Ranking(w=w, p=p, at=SETTINGS), torch.Generator().manual_seed(0)
    )
    return noisy, chosen(noisy, unrounded.to(output))


def chosen(noisy: _NoisyLogits, logits: torch.Tensor) -> torch.Tensor:
    from moeparity.ops.kernels.router import router

    ranking = noisy.ranking
    return router(logits.unsqueeze(0), w=ranking.w, p=ranking.p, at=ranking.at)[0][0]


def shares(noisy: _NoisyLogits, ids: torch.Tensor) -> torch.Tensor:
    """Over every row of the noise in turn, which the draws only sample."""
    wanted = ids.sort(-1).values
    others = [chosen(noisy, (noisy.unrounded + row).to(noisy.output)).sort(-1).values for row in noisy.noise]
    return torch.stack([(noisy_ids != wanted).any(-1) for noisy_ids in others]).double().mean(0)


@pytest.mark.parametrize("output", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [PLAIN, GROUPED], ids=["plain", "grouped"])
def test_shares_of_draws_are_those_of_the_noise(p: dict[str, object], output: torch.dtype) -> None:
    noisy, ids = drawn(p, 0.02, output)
    expected, got = shares(noisy, ids), noisy.flips(ids, 400)
    assert bool((got[expected == 0] == 0).all())
    assert bool((got[expected == 1] == 1).all())
    # Five standard errors of 400 draws.
    assert float((got - expected).abs().max()) < 5 * math.sqrt(0.25 / 400)
    assert 0 < int((expected > 0).sum()) < len(expected)


def test_what_is_left_out_as_too_far_from_the_cut_flips_under_no_noise() -> None:
    noisy, ids = drawn(PLAIN, 0.02, torch.bfloat16)
    near = noisy._near(ids)
    assert not bool(near.all())
    assert not bool(shares(noisy, ids)[~near].any())


def test_without_noise_the_candidates_gate_alone_decides() -> None:
    noisy, ids = drawn(PLAIN, 0.0, torch.bfloat16)
    assert not bool(noisy.flips(ids, 3).any())
    # A reference that ranked unrounded logits flips exactly where rounding changes the choice.
    unrounded = chosen(noisy, noisy.unrounded)
    assert noisy.flips(unrounded, 3).tolist() == (unrounded.sort(-1).values != ids.sort(-1).values).any(-1).tolist()
    assert bool(noisy.flips(unrounded, 3).any())


def test_lift() -> None:
    flipped = torch.tensor([True, False, False, True, False] * 20)
    assert lift(flipped.double(), flipped) == pytest.approx(1 / 0.4)
    assert lift(-flipped.double(), flipped) == 0
    assert lift(torch.zeros(100), flipped, share=1.0) == 1
    assert math.isnan(lift(torch.zeros(100), torch.zeros(100, dtype=torch.bool)))
