"""Summary statistics of a value: of its finite numbers, and how many are none. On an accelerator nothing waits."""

from __future__ import annotations

import torch

NAMES = ("min", "max", "mean", "nan", "inf")
"""The order in which an accelerator's statistics lie in their tensor."""

_SMALL = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)

_MANY = 1 << 15
"""From so many elements on torch is quicker in two passes, one for each bound, than in one for both."""


class Tally:
    """Statistics of a value on the CPU, whose elements are shown a piece at a time, flat."""

    __slots__ = ("_high", "_low", "_nonfinite", "_total")

    def __init__(self) -> None:
        self._low, self._high, self._total = torch.inf, -torch.inf, 0.0
        self._nonfinite = 0, 0
        """NaNs and infinities."""

    def saw(self, piece: torch.Tensor) -> None:
        """Enter a piece; a single zero may stand for many."""
        piece = _ordered(piece)
        low, high = _bounds(piece)
        if not (low > -torch.inf and high < torch.inf):  # a NaN is neither
            finite = piece[torch.isfinite(piece)]
            nans, infinities = self._nonfinite
            new = int(torch.isnan(piece).sum())
            self._nonfinite = nans + new, infinities + piece.numel() - finite.numel() - new
            if not finite.numel():
                return
            piece = finite
            low, high = _bounds(piece)
        self._low, self._high = min(self._low, low), max(self._high, high)
        self._total += _sum(piece).item()

    def by_name(self, count: int) -> dict[str, float]:
        """The statistics of a value of so many elements, by name."""
        nans, infinities = self._nonfinite
        if self._low > self._high:
            return {"nan": nans, "inf": infinities}
        return _together(self._low, self._high, self._total / (count - nans - infinities), nans, infinities)


def has_order(tensor: torch.Tensor) -> bool:
    """Whether a value has statistics: not where its dtype has no order, nor an empty one."""
    return not tensor.is_complex() and tensor.numel() > 0


def later(tensor: torch.Tensor) -> torch.Tensor:
    """Statistics of a value on an accelerator, float64 [5] on its device, in the order of `NAMES`."""
    tensor = _ordered(tensor.detach())
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


def by_name(numbers: list[float]) -> dict[str, float]:
    """The statistics of an accelerator's numbers, by name."""
    low, high, mean, nans, infinities = numbers
    if low > high:
        return {"nan": nans, "inf": infinities}
    return _together(low, high, mean, nans, infinities)


def _ordered(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a dtype that torch can compare."""
    if tensor.dtype in _SMALL:
        return tensor.float()
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def _bounds(tensor: torch.Tensor) -> tuple[float, float]:
    if tensor.numel() < _MANY:
        low, high = torch.aminmax(tensor)
    else:
        low, high = tensor.amin(), tensor.amax()
    return float(low.item()), float(high.item())


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
