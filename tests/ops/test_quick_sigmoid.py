"""sigmoid and silu by torch's quick exp, as vLLM's experts on CPUs have them, against one number at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.ops.kernels.exponentials import sigmoid, silu
from tests.numerics import cpu_scalar
from tests.ops.plain import BF16, FP32
from tests.ops.scalar import F32


def share(x: np.float32) -> np.float32:
    """1 / (1 + exp(-x)), each step rounded."""
    return F32(1) / (F32(1) + cpu_scalar.exp_u20(-x))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_values(dtype: torch.dtype) -> None:
    x = (torch.randn(500, generator=torch.Generator().manual_seed(0)) * 12).to(dtype)
    numbers = x.float().numpy()
    assert same_bits(sigmoid(x, "u20"), torch.tensor(np.array([share(value) for value in numbers])))
    assert same_bits(silu(x, "u20"), torch.tensor(np.array([value * share(value) for value in numbers])))


def test_it_is_another_function_than_the_exact_one() -> None:
    x = torch.randn(500, generator=torch.Generator().manual_seed(0))
    for function in (sigmoid, silu):
        quick, written = function(x, "u20"), function(x, "exp")
        assert not torch.equal(quick, written)
        assert torch.allclose(quick, written, rtol=1e-5)
