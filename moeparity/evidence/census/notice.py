"""Whether the parameters of a module have changed since the last look: some of them at each look, in turn."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import torch
from torch import nn

from moeparity.evidence.capture.seen import problem, version_of
from moeparity.evidence.census.members import layout_of, submodules, table

_AT_A_LOOK = 16
"""Parameters that are looked at: an update changes all or many."""
_SAMPLES = 8
"""Elements of each."""


class WeightsNotice:
    """What weights were when they were looked at: address, torch's count of writes, a sample of elements.

    `param.data.copy_` is no write that torch counts, which is why elements are looked at. Nothing of the module is kept
    alive. A look takes one transfer for each device.
    """

    def __init__(self, module: nn.Module) -> None:
        self._slots = list(_slots(module))
        self._signs: dict[int, tuple[object, ...]] = {}
        self._next = 0
        for _ in range(0, len(self._slots), _AT_A_LOOK):
            self.has_changed()

    @property
    def has_weights(self) -> bool:
        """Whether there is a parameter."""
        return bool(self._slots)

    def has_changed(self) -> bool:
        """Whether one of the weights that are looked at now is not what it was at the last look."""
        count = min(_AT_A_LOOK, len(self._slots))
        places = [(self._next + step) % len(self._slots) for step in range(count)]
        self._next = (self._next + count) % max(1, len(self._slots))
        weights = {place: weight for place in places if (weight := self._weight(place)) is not None}
        samples = _samples(weights)
        has_changed = False
        for place, weight in weights.items():
            sign = (weight.data_ptr(), version_of(weight), tuple(weight.shape), samples[place])
            has_changed |= self._signs.get(place, sign) != sign
            self._signs[place] = sign
        return has_changed

    def _weight(self, place: int) -> torch.Tensor | None:
        reference, name = self._slots[place]
        module = reference()
        weight = None if module is None else table(module, "_parameters").get(name)
        if weight is None or layout_of(type(weight)).sort != "tensor" or not weight.numel():
            return None
        return weight if problem(weight) is None else None


def _slots(root: nn.Module) -> Iterator[tuple[weakref.ref[nn.Module], str]]:
    for module in submodules(root):
        for name in table(module, "_parameters"):
            yield weakref.ref(module), name


def _samples(weights: dict[int, torch.Tensor]) -> dict[int, bytes]:
    """The bytes of some elements of each weight."""
    by_device: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for place, weight in weights.items():
        flat = weight.detach().as_strided((min(_SAMPLES, weight.numel()),), (_stride(weight),))
        by_device.setdefault(weight.device, []).append((place, flat.contiguous().view(torch.uint8)))
    samples = {}
    for parts in by_device.values():
        together = bytes(torch.cat([octets for _, octets in parts]).cpu().tolist())
        for place, octets in parts:
            samples[place], together = together[: len(octets)], together[len(octets) :]
    return samples


def _stride(weight: torch.Tensor) -> int:
    """Elements from one sample to the next, so that all lie in a weight's memory."""
    if not weight.is_contiguous():
        return 0
    return max(1, (weight.numel() - 1) // max(1, _SAMPLES - 1))
