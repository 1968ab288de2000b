"""Summary statistics of a value: of its finite numbers, and how many are none. On an accelerator nothing waits."""

from __future__ import annotations

import torch

NAMES = ("min", "max", "mean", "nan", "inf")
"""The order in which an accelerator's statistics lie in their tensor."""

_SMALL = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)


def statistics(tensor: torch.Tensor) -> dict[str, float] | torch.Tensor | None:
    """Statistics of a value: on the CPU by name, elsewhere as float64 [5] on its device, in the order of `NAMES`.

    None where a dtype has no order, and of an empty tensor.
    """
    if tensor.is_complex() or not tensor.numel() or tensor.is_quantized:
        return None
    plain = tensor.detach()
    if plain.dtype in _SMALL:
        plain = plain.float()
    elif plain.dtype == torch.bool:
        plain = plain.view(torch.uint8)
    if plain.device.type == "cpu":
        return _now(plain)
    return _later(plain)


def named(numbers: list[float]) -> dict[str, float]:
    """The statistics of an accelerator's numbers, by name."""
    low, high, mean, nans, infinities = numbers
    if low > high:
        return {"nan": nans, "inf": infinities}
    return _together(low, high, mean, nans, infinities)


def _now(tensor: torch.Tensor) -> dict[str, float]:
    low, high = (float(bound) for bound in torch.aminmax(tensor))
    if low > -torch.inf and high < torch.inf:  # no NaN either
        return _together(low, high, float(_sum(tensor)) / tensor.numel(), 0, 0)
    finite = tensor[torch.isfinite(tensor)]
    nans = float(torch.isnan(tensor).sum())
    infinities = tensor.numel() - finite.numel() - nans
    if not finite.numel():
        return {"nan": nans, "inf": infinities}
    low, high = (float(bound) for bound in torch.aminmax(finite))
    return _together(low, high, float(_sum(finite)) / finite.numel(), nans, infinities)


def _later(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        low, high = torch.aminmax(tensor)
        zero = torch.zeros((), dtype=torch.float64, device=tensor.device)
        return torch.stack((low.double(), high.double(), tensor.double().mean(), zero, zero))
    nans, finite = torch.isnan(tensor), torch.isfinite(tensor)
    low = torch.where(finite, tensor, torch.inf).min().double()
    high = torch.where(finite, tensor, -torch.inf).max().double()
    count = finite.sum().double()
    mean = torch.where(finite, tensor, 0).sum(dtype=_wider(tensor)).double() / count
    absent = nans.sum().double()
    return torch.stack((low, high, mean, absent, tensor.numel() - count - absent))


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.sum(dtype=_wider(tensor)) if tensor.is_floating_point() else tensor.sum()


def _wider(tensor: torch.Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _together(low: float, high: float, mean: float, nans: float, infinities: float) -> dict[str, float]:
    numbers = {"min": low, "max": high, "mean": mean, "absmax": max(abs(low), abs(high))}
    if nans:
        numbers["nan"] = nans
    if infinities:
        numbers["inf"] = infinities
    return numbers
