"""A value in a band of draws, against a plain evaluation."""

from __future__ import annotations

import math

import torch

from moeparity.evidence.envelope.band import SLACK, band


def test_the_band_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0, 4.0, 0.0, 3.0, 1.0, math.nan]])
    draws = [
        torch.tensor([[1.5, 2.0, 4.0, 0.0, 3.0, 1.0, math.nan]]),
        torch.tensor([[1.5, 2.0, 5.0, 0.0, 3.0, 1.0, math.nan]]),
        torch.tensor([[0.5, 2.0, 4.0, 0.0, 3.0, 1.0, math.nan]]),
    ]
    #                    inside, equal, above 5, -0, below 3, equal, no NaN any more
    others = torch.tensor([[1.25, 2.0, 6.0, -0.0, 2.5, 1.0, 1.0]])
    around = band(values, others, draws, tokens=1)
    assert (around.elements, around.differing, around.outside, around.varying) == (7, 5, 3, 2)
    assert around.own_outside == (0, 1, 1)
    assert around.furthest == math.inf
    finite = band(values[:, :-1], others[:, :-1], [draw[:, :-1] for draw in draws], tokens=1)
    # 6 is 1 above the band; the greatest of the row, 5, has the spacing of 4.
    assert (finite.outside, finite.furthest) == (2, 1 / (4 * torch.finfo(torch.float32).eps))


def test_values_of_another_dtype_lie_between_the_values_of_a_band() -> None:
    values = torch.linspace(1, 2, 200).reshape(20, 10)
    around = band(values.bfloat16(), values, [values.bfloat16()] * 4, tokens=20)
    assert around.differing == around.outside == int((values != values.bfloat16().float()).sum())
    assert around.furthest <= 0.5
    assert not around.inside
    same_band = band(values, values, [values] * 4, tokens=20)
    assert (same_band.differing, same_band.outside, same_band.inside) == (0, 0, True)


def test_a_further_draw_is_inside_and_a_coarser_sum_is_not() -> None:
    leaves = torch.randn(256, 64, 32, generator=torch.Generator().manual_seed(0))
    sums = [leaves[:, torch.randperm(64, generator=torch.Generator().manual_seed(i))] for i in range(10)]
    drawn = [_sequential(x) for x in sums]
    further = band(drawn[0], drawn[1], drawn[2:], tokens=256)
    assert further.differing > 4000
    assert 0 < further.outside <= SLACK * max(further.own_outside) + SLACK
    assert further.inside
    coarse = band(drawn[0], _sequential(leaves.bfloat16()).float(), drawn[2:], tokens=256)
    assert coarse.outside > 0.9 * coarse.elements
    assert not coarse.inside


def _sequential(x: torch.Tensor) -> torch.Tensor:
    total = x[:, 0]
    for i in range(1, x.shape[1]):
        total = total + x[:, i]
    return total


def test_one_element_far_out_is_evidence_and_one_near_is_not() -> None:
    values = torch.linspace(1, 2, 400).reshape(20, 20)
    near, far = values.clone(), values.clone()
    near[3, 4] *= 1 + 3 * torch.finfo(torch.float32).eps
    far[3, 4] *= 1 + 1e-3
    inside, outside = (band(values, others, [values] * 4, tokens=20) for others in (near, far))
    assert (inside.outside, inside.inside, outside.outside, outside.inside) == (1, True, 1, False)


def test_what_one_row_alone_has_outside_is_evidence_however_many_rows_have_nothing() -> None:
    leaves = torch.randn(256, 32, 64, generator=torch.Generator().manual_seed(0))
    drawn = [_sequential(leaves[:, torch.randperm(32, generator=torch.Generator().manual_seed(i))]) for i in range(10)]
    others = drawn[1].clone()
    others[7] *= 1 + 2**-21
    around = band(drawn[0], others, drawn[2:], tokens=256)
    assert around.outside <= SLACK * max(around.own_outside) + SLACK
    assert not around.inside
    assert band(drawn[0], drawn[1], drawn[2:], tokens=256).inside
