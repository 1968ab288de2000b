"""sigmoid and silu by other exponentials than torch's, number by number: as vLLM's experts on CPUs have them, by
torch's quick exp or Sleef's; and as CUDA's kernels, and those of Inductor, have them.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.ops.kernels.exponentials import sigmoid, silu
from tests.numerics import cpu_scalar, cuda_scalar
from tests.ops.plain import BF16, FP32
from tests.ops.scalar import F32

EXPONENTIALS = {"u20": cpu_scalar.exp_u20, "sleef": cpu_scalar.sleef_exp}

ON_GPUS = {
    "cuda": (cuda_scalar.expf, lambda a, b: float(F32(a) / F32(b))),
    "cuda_fast": (cuda_scalar.fast_expf, cuda_scalar.fast_divide),
    "inductor": (cuda_scalar.expf, cuda_scalar.div_full),
}


def share(x: np.float32, form: str) -> np.float32:
    """1 / (1 + exp(-x)), each step rounded."""
    return F32(1) / (F32(1) + EXPONENTIALS[form](-x))


@pytest.mark.parametrize("form", EXPONENTIALS)
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_values(dtype: torch.dtype, form: str) -> None:
    x = (torch.randn(500, generator=torch.Generator().manual_seed(0)) * 12).to(dtype)
    numbers = x.float().numpy()
    shares = [share(value, form) for value in numbers]
    assert same_bits(sigmoid(x, form), torch.tensor(np.array(shares)))
    products = [value * part for value, part in zip(numbers, shares, strict=True)]
    assert same_bits(silu(x, form), torch.tensor(np.array(products)))


@pytest.mark.parametrize("form", ON_GPUS)
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_values_on_gpus(dtype: torch.dtype, form: str) -> None:
    """1 and x over 1 + exp(-x); the others' exponentials or quotients are others."""
    x = (torch.randn(300, generator=torch.Generator().manual_seed(1)) * 6).to(dtype)
    power, quotient = ON_GPUS[form]
    numbers = x.float().tolist()
    below = [float(F32(1) + F32(power(-value))) for value in numbers]
    shares = [quotient(1.0, total) for total in below]
    products = [quotient(value, total) for value, total in zip(numbers, below, strict=True)]
    assert same_bits(sigmoid(x, form), torch.tensor(shares))
    assert same_bits(silu(x, form), torch.tensor(products))
    for changed in ON_GPUS.keys() - {form}:
        assert not same_bits(silu(x, form), silu(x, changed))


def test_it_is_another_function_than_the_exact_one() -> None:
    x = torch.randn(500, generator=torch.Generator().manual_seed(0))
    for function in (sigmoid, silu):
        quick, written = function(x, "u20"), function(x, "exp")
        assert not torch.equal(quick, written)
        assert torch.allclose(quick, written, rtol=1e-5)
