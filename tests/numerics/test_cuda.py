"""CUDA's functions in fp32, every bit, against single numbers evaluated by fractions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from moeparity.numerics import cuda
from moeparity.numerics.bits import int_view
from tests.numerics import cuda_scalar

EDGES = (0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-149, -(2.0**-149), 2.0**-126, 0.6, 0.6000000238418579, 88.7228,
         88.7229, -87.3, -87.4, -103.9, -104.1, 9.0109, 9.01092, 1.0, -1.0, 3.4e38, -3.4e38)  # fmt: skip


def drawn(count: int) -> torch.Tensor:
    """Numbers of all sizes, and edges."""
    g = torch.Generator().manual_seed(3)
    sized = torch.randn(count, generator=g) * 2.0 ** torch.randint(-12, 7, (count,), generator=g)
    return torch.cat([torch.tensor(EDGES), sized])


def same(ours: torch.Tensor, theirs: list[float]) -> bool:
    """Bit for bit; one NaN is as good as another."""
    expected = torch.tensor(theirs)
    return bool(((int_view(ours) == int_view(expected)) | (ours.isnan() & expected.isnan())).all())


@pytest.mark.parametrize("name", ["expf", "fast_expf", "logf", "tanhf"])
def test_a_function_has_the_bits_of_its_instructions(name: str) -> None:
    x = drawn(600)
    x = x.abs() if name == "logf" else x
    function: Callable[[float], float] = getattr(cuda_scalar, name)
    assert same(getattr(cuda, name)(x), [function(value) for value in x.tolist()])


def test_a_fast_quotient_flushes_what_is_small_and_the_reciprocal_of_what_is_large() -> None:
    a = drawn(200)
    b = a.flip(0) * 2.0**60
    assert same(
        cuda.fast_divide(a, b), [cuda_scalar.fast_divide(*pair) for pair in zip(a.tolist(), b.tolist(), strict=True)]
    )


def test_they_are_near_the_functions_and_not_torchs_own() -> None:
    x = drawn(4000).clamp(-80, 80).nan_to_num()
    for ours, exact, most in (
        (cuda.expf(x), x.double().exp(), 2), (cuda.logf(x.abs()), x.abs().double().log(), 2),
        (cuda.tanhf(x), x.double().tanh(), 3), (cuda.fast_tanhf(x), x.double().tanh(), 1),
        (cuda.fast_expf(x.clamp(-8, 8)), x.clamp(-8, 8).double().exp(), 12),
    ):  # fmt: skip
        assert ((int_view(ours) - int_view(exact.float())).abs()[ours.isfinite()] <= most).all()
    assert not torch.equal(cuda.expf(x), x.exp())
