"""How a record is rounded, read off its numbers, where they are many and where they are few."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from moeparity.bisection.record.last_digit import ARITHMETIC, half_units


def values(count: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    """Log-probabilities as of a model: from near 0 to some nats below."""
    u = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return u.log() * scale


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("decimals", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("stored", [torch.float64, torch.float32])
def test_decimals(seed: int, decimals: int, stored: torch.dtype) -> None:
    rounded = ((values(40, seed) * 10**decimals).round() / 10**decimals).to(stored).double()
    half, says = half_units(rounded)
    assert says == f"{decimals} decimal{'s' * (decimals > 1)}"
    assert torch.equal(half, torch.full_like(rounded, 0.5 * 10.0**-decimals + ARITHMETIC))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32")]
)
def test_dtypes_round_no_further_than_half_a_unit(seed: int, dtype: torch.dtype, name: str) -> None:
    exact = values(30, seed)
    half, says = half_units(exact.to(dtype).double())
    assert says == name
    assert ((exact.to(dtype).double() - exact).abs() <= half).all()
    assert (half <= exact.abs() * torch.finfo(dtype).eps + ARITHMETIC).all()


def test_numbers_as_python_and_numpy_print_fp32() -> None:
    texts = [f"{x:.9g}" for x in values(50).float().tolist()]
    assert half_units(torch.tensor([float(text) for text in texts], dtype=torch.float64))[1] == "fp32"


def test_numbers_in_full_have_no_digit_to_spare() -> None:
    half, says = half_units(values(30))
    assert says == "fp64"
    assert torch.equal(half, torch.full_like(half, ARITHMETIC))


@pytest.mark.parametrize(
    "record",
    [
        [0.0, 0.0, 0.0],
        [],
        [-1.0, -2.0, -3.0, -7.0, -11.0, -13.0],
        [-0.3],
        [-0.1, -0.7],
        [0.0, 0.0, -0.2, 0.0],
    ],
)
def test_too_little_to_tell_is_no_rounding(record: list[float]) -> None:
    """Zeros, whole numbers and one or two short numbers: nothing coarser than fp32 is believed of them, but bf16."""
    half, _ = half_units(torch.tensor(record, dtype=torch.float64))
    assert (half <= torch.tensor(record).abs().clamp(min=math.exp(-30)).double() * 2**-8 + ARITHMETIC).all()


def test_one_number_in_full_takes_the_digits_from_all() -> None:
    rounded = (values(40) * 100).round() / 100
    rounded[7] = -math.pi
    assert half_units(rounded)[1] == "fp64"
