"""Of which weights a tensor was made: shown by its bits, or not said at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from moeparity.evidence.census.forms import MERGED, POINTWISE, QUANTISED, SCALES, Making
from moeparity.evidence.census.lanes import TOTAL, Lanes, is_telling, lanes, plain_sums
from moeparity.evidence.census.sources import Sources
from moeparity.evidence.census.walk import HeldTensor

_BASES = ("base", "theta")
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_LANES = 16
"""So many lanes of each axis are looked at first."""
_WIDEST = 1 << 26
"""Elements of a table of cos and sin, or of a merged weight, that is made to compare."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a tensor was shown to be made of.

    makings: whose lanes hold all of the tensor's. axis: along which these are the tensor's, `TOTAL` for all elements at
    once. repeated: axes along which the tensor repeats itself, which are left out first. alternatives: whether each of
    the makings by itself gives the whole tensor.
    """

    makings: tuple[Making, ...]
    axis: int
    repeated: tuple[int, ...]
    alternatives: bool

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of what it was made of."""
        return tuple(dict.fromkeys(name for making in self.makings for name in making.sources))

    def lanes(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sums of a tensor by which it is compared with what its makings give; empty for another shape."""
        reduced = without(tensor, self.repeated)
        found_lanes = lanes(reduced, outer=self.axis == 0)
        return found_lanes.sums.get(self.axis, torch.zeros(0, dtype=torch.int64))


def without(tensor: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    """The first entry along some axes."""
    for axis in sorted(axes, reverse=True):
        tensor = tensor.select(axis, 0) if axis < tensor.dim() and tensor.shape[axis] else tensor
    return tensor


def origin_of(held_tensor: HeldTensor, sources: Sources) -> Origin | None:
    """Of what a tensor was made; None where nothing shows it."""
    tensor = held_tensor.tensor.detach()
    if not is_telling(tensor):
        return None
    repeated = () if held_tensor.kind in ("parameter", "parametrised") else _repeated(tensor)
    search = _Search(held_tensor, without(tensor, repeated), sources)
    near = sources.near(held_tensor)
    plans = [search.copies(near), *search.functions(near)]
    if held_tensor.kind not in ("parameter", "parametrised"):
        plans.append(search.copies(sources.weights))
    for makings in plans:
        covering = search.covering(makings)
        if covering is not None:
            axis, chosen, alternatives = covering
            return Origin(chosen, axis, repeated, alternatives)
    return None


def _repeated(tensor: torch.Tensor) -> tuple[int, ...]:
    """Axes along which all entries have the same bits."""
    axes = []
    for axis in range(tensor.dim()):
        if tensor.shape[axis] > 1 and tensor.dim() > 1:
            first = tensor.narrow(axis, 0, 1)
            bits = first.expand(tensor.shape)
            if torch.equal(tensor.narrow(axis, 1, 1), first) and torch.equal(tensor, bits):
                axes.append(axis)
    return tuple(axes) if len(axes) < tensor.dim() else ()


class _Search:
    """The search for the makings of one tensor, whose repetitions are left out."""

    def __init__(self, held_tensor: HeldTensor, tensor: torch.Tensor, sources: Sources) -> None:
        self._target, self._tensor, self._sources = held_tensor, tensor, sources
        self._is_weight = held_tensor.kind in ("parameter", "parametrised")
        self._dtype = str(tensor.dtype).removeprefix("torch.")
        self._size = tensor.numel()
        self._lanes: Lanes | None = None

    def copies(self, weights: Sequence[HeldTensor]) -> list[Making]:
        """Each weight as it is, or cast to the tensor's dtype. What is registered as a weight itself is a copy only of
        part of a larger one in another shape: equal weights are those of twins, as a policy and its reference are.
        """
        return [self._copy(each.path, each.tensor) for each in weights if self._may_be_copied(each)]

    def _may_be_copied(self, weight: HeldTensor) -> bool:
        tensor, dtype = weight.tensor, self._tensor.dtype
        if weight is self._target:
            return False
        if self._is_weight and (weight.kind == "buffer" or tensor.numel() <= self._size):
            return False
        same_bits = tensor.dtype == dtype or (tensor.element_size() == dtype.itemsize and dtype in _INTEGERS)
        return same_bits or (tensor.is_floating_point() and dtype.is_floating_point)

    def _copy(self, name: str, weight: torch.Tensor) -> Making:
        is_same = weight.dtype == self._tensor.dtype or not self._tensor.is_floating_point()
        return Making("copy" if is_same else "cast", (name,), self._dtype)

    def functions(self, near: Sequence[HeldTensor]) -> Iterator[list[Making]]:
        """Lists of makings that are tried one after the other."""
        if self._is_weight:
            return
        yield self._tables()
        floats = [each for each in near if each.tensor.is_floating_point()]
        if self._tensor.is_floating_point():
            equal = [each for each in floats if each.tensor.numel() == self._size <= _WIDEST]
            yield [Making(form, (each.path,), self._dtype) for each in equal for form in POINTWISE]
            yield self._scales(floats)
            yield self._merged(floats)
        if self._tensor.element_size() == 1:
            equal = [each for each in floats if each.tensor.numel() == self._size and each.tensor.dim() > 1]
            form_names = [form for form in QUANTISED if ("127" in form) != self._tensor.is_floating_point()]
            yield [Making(form, (each.path,), self._dtype) for each in equal for form in form_names]

    def _scales(self, near: Sequence[HeldTensor]) -> list[Making]:
        makings = []
        for each in near:
            if each.tensor.dim() < 2 or each.tensor.element_size() < 2:
                continue
            rows = each.tensor.numel() // each.tensor.shape[-1]
            fits = {"tensor": self._size == 1, "row": self._size == rows, "block": 1 < self._size < rows}
            names = (form for form in SCALES if fits[form.rsplit(" ", 1)[-1]])
            makings += [Making(form, (each.path,), self._dtype) for form in names]
        return makings

    def _tables(self) -> list[Making]:
        """Of cos and sin, and of frequencies: by frequencies that lie beside it, or by a base among numbers."""
        if not self._tensor.is_floating_point() or self._size > _WIDEST:
            return []
        shape = [size for size in self._tensor.shape if size != 1]
        bases = [name for name in self._sources.numbers(self._target) if name.rpartition(".")[2].endswith(_BASES)]
        if len(shape) == 1:
            return [Making("frequencies by base", (name,), self._dtype, (shape[0],)) for name in bases]
        if len(shape) != 2:
            return []
        positions, width = shape
        beside = (each for each in self._sources.tensors.values() if each.module == self._target.module)
        makings = [
            Making("cos and sin", (each.path,), self._dtype, (positions,))
            for each in beside
            if each.tensor.is_floating_point() and each.tensor.dim() == 1 and each.tensor.numel() in (width, width // 2)
        ]
        widths = product(bases, (width // 2, width))
        return makings + [
            Making("cos and sin by base", (base,), self._dtype, (positions, half)) for base, half in widths
        ]

    def _merged(self, near: Sequence[HeldTensor]) -> list[Making]:
        """A weight of the same shape with two factors beside it, and a number of the module or their quotients."""
        if self._tensor.dim() != 2 or self._size > _WIDEST:
            return []
        high, wide = self._tensor.shape
        matrices = [each for each in near if each.tensor.dim() == 2]
        bases = [each for each in matrices if each.tensor.shape == self._tensor.shape]
        lows = [each for each in matrices if each.tensor.shape[1] == wide and each.tensor.shape[0] < high]
        highs = [each for each in matrices if each.tensor.shape[0] == high and each.tensor.shape[1] < wide]
        triples = [
            (base.path, low.path, top.path)
            for base, low, top in product(bases, lows, highs)
            if low.tensor.shape[0] == top.tensor.shape[1] and base.tensor.dtype == self._tensor.dtype
        ]
        numbers = [name for name, value in self._sources.numbers(self._target).items() if value > 0]
        return [
            Making(form, (*triple, name), self._dtype) for triple in triples[:8] for name in numbers for form in MERGED
        ]

    def covering(self, makings: Sequence[Making]) -> tuple[int, tuple[Making, ...], bool] | None:
        """The axis of the tensor's lanes and those makings that together have all of them; None if they have not. Some
        lanes are looked at first, by their plain sums.
        """
        for axis, part in _samples(self._tensor).items():
            fitting = [making for making in makings if axis != TOTAL or self._is_as_large(making)]
            if fitting and self._sharing(fitting, axis, part):
                likely = self._sharing(fitting, axis, self._tensor)
                chosen = self._proved(axis, likely) if likely else None
                if chosen is not None:
                    return axis, *chosen
        return None

    def _is_as_large(self, making: Making) -> bool:
        """Whether what is made has as many elements as the tensor, without its padding."""
        values = self._sources.values(making)
        return values is not None and values.numel() <= self._size <= 2 * values.numel()

    def _sharing(self, makings: Sequence[Making], axis: int, part: torch.Tensor) -> list[Making]:
        """Those makings that have some lanes of a part of the tensor, by plain sums, if together they have all."""
        lane = plain_sums(part).get(axis, torch.zeros(0, dtype=torch.int64))
        lane = lane[lane != 0]
        covered = torch.zeros(len(lane), dtype=torch.bool)
        sharing = []
        for making in makings if len(lane) else ():
            plain = self._sources.plain_sums(making)
            shared = torch.isin(lane, _together(plain, axis)) if plain else covered
            if plain and bool(shared.any()):
                sharing.append(making)
                covered |= shared
        return sharing if bool(covered.all()) else []

    def _proved(self, axis: int, likely: Sequence[Making]) -> tuple[tuple[Making, ...], bool] | None:
        """Those of these makings that have lanes of the tensor, if each of its lanes is one of theirs."""
        self._lanes = self._lanes or lanes(self._tensor)
        lane = self._lanes.sums[axis]
        lane = torch.unique(lane[lane != 0])
        covered = torch.zeros(len(lane), dtype=torch.bool)
        chosen: list[tuple[Making, bool]] = []
        for making in likely:
            sums = self._sources.lanes(making)
            if sums is not None:
                shared = torch.isin(lane, _together(sums.sums, axis))
                if bool(shared.any()):
                    chosen.append((making, bool(shared.all())))
                    covered |= shared
        if not len(lane) or not bool(covered.all()):
            return None
        alone = [making for making, is_whole in chosen if is_whole]
        if alone:
            return _nearest_form(alone), len({making.sources for making in alone}) > 1
        return tuple(making for making, _ in chosen), False


def _samples(tensor: torch.Tensor) -> dict[int, torch.Tensor]:
    """By axis, as `Lanes` counts them, some of a tensor's lanes; and the whole tensor for all its elements at once."""
    shape = [size for size in tensor.shape if size != 1]
    samples = {}
    if len(shape) > 1:
        blocks = tensor.reshape(-1, shape[-2], shape[-1])
        every = [max(1, size // _LANES) for size in blocks.shape]
        blocks = blocks[:: every[0]]
        samples = {2: blocks[:, :: every[1]], 1: blocks[:, :, :: every[2]]}
    return {**samples, TOTAL: tensor}


def _together(sums: dict[int, torch.Tensor] | object, axis: int) -> torch.Tensor:
    """The lanes of what is made, along whichever axis; of all elements only their sum."""
    assert isinstance(sums, dict)
    if axis == TOTAL:
        return sums[TOTAL]
    parts = [lane for place, lane in sums.items() if place != TOTAL]
    return torch.cat(parts) if parts else sums[TOTAL]


def _nearest_form(alone: Sequence[Making]) -> tuple[Making, ...]:
    """Of several makings of the same sources the first."""
    return tuple({making.sources: making for making in reversed(alone)}.values())[::-1]
