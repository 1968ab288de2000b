"""What tensors of a program may have been made of: weights, and numbers such as a rotary base, by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from moeparity.evidence.capture.seen import problem
from moeparity.evidence.census.forms import Making
from moeparity.evidence.census.lanes import Lanes, lanes, plain_sums
from moeparity.evidence.census.members import attributes, key_in_words, layout_of
from moeparity.evidence.census.walk import HeldTensor, Walk

WEIGHTS = frozenset({"parameter", "parametrised", "buffer"})
"""Kinds of what a checkpoint keeps."""
_NEAREST = 64
"""So many weights are near a tensor at most."""


class Sources:
    """The weights of a walk by name, and what is made of them, each made once."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.tensors = {each.path: each for each in walk.tensors if problem(each.tensor) is None}
        self.weights = [each for each in self.tensors.values() if each.kind in WEIGHTS and each.tensor.numel()]
        self._below: dict[str, list[HeldTensor]] = {}
        for each in self.weights:
            words = each.module.split(".") if each.module else []
            for end in range(len(words) + 1):
                self._below.setdefault(".".join(words[:end]), []).append(each)
        self._lanes: dict[Making, Lanes] = {}
        self._plain: dict[Making, dict[int, torch.Tensor]] = {}
        self._numbers: dict[str, float] = {}

    def values(self, making: Making) -> torch.Tensor | None:
        """What is made so of what the sources hold now; None where one of them is gone or has another shape."""
        tensors = [self._tensor(name) for name in making.sources]
        if any(tensor is None for tensor in tensors):
            return None
        try:
            return making.values([tensor for tensor in tensors if tensor is not None])
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError, NotImplementedError):
            return None

    def lanes(self, making: Making) -> Lanes | None:
        """The sums of what is made so."""
        if making not in self._lanes:
            values = self.values(making)
            if values is None:
                return None
            self._lanes[making] = lanes(values)
        return self._lanes[making]

    def plain_sums(self, making: Making) -> dict[int, torch.Tensor]:
        """Its plain sums; none where it can't be made."""
        if making not in self._plain:
            values = self.values(making)
            self._plain[making] = {} if values is None else plain_sums(values)
        return self._plain[making]

    def near(self, held_tensor: HeldTensor) -> list[HeldTensor]:
        """The weights of the layer that holds a tensor, or of the modules beside it where it is in none, the nearest
        first.
        """
        words = held_tensor.module.split(".") if held_tensor.module else []
        layer = max((place for place, word in enumerate(words, 1) if word.isdecimal()), default=max(0, len(words) - 1))
        inside = [each for each in self._below.get(".".join(words[:layer]), ()) if each is not held_tensor]
        inside.sort(key=lambda each: -_shared(words, each.module.split(".")))
        return inside[:_NEAREST]

    def numbers(self, held_tensor: HeldTensor) -> Mapping[str, float]:
        """The numbers that the holder of a tensor and its module have, by path."""
        module = self.walk.modules.get(held_tensor.module)
        names = _numbers(self.walk.paths.get(held_tensor.module, ""), module) if module is not None else iter(())
        numbers = dict(names) | dict(_numbers(held_tensor.holder_path, held_tensor.holder))
        self._numbers |= numbers
        return numbers

    def remember(self, sources: Sequence[str]) -> None:
        """Look up those of these names that are numbers."""
        if any(name not in self.tensors and name not in self._numbers for name in sources):
            for each in self.walk.tensors:
                if each.kind not in WEIGHTS:
                    self.numbers(each)

    def _tensor(self, name: str) -> torch.Tensor | None:
        if name in self.tensors:
            return self.tensors[name].tensor
        number = self._numbers.get(name)
        return None if number is None else torch.tensor(number, dtype=torch.float64)


def _shared(words: Sequence[str], others: Sequence[str]) -> int:
    """How many words two names have in common at their beginning."""
    return next((place for place, (a, b) in enumerate(zip(words, others, strict=False)) if a != b),
                min(len(words), len(others)))  # fmt: skip


def _numbers(path: str, holder: Any) -> Iterator[tuple[str, float]]:
    """The finite numbers among the attributes of an object, and in dictionaries among them."""
    for name, value in list(attributes(holder).items()):
        step = f"{path}.{name}" if path else name
        if type(value) in (int, float) and math.isfinite(value):
            yield step, float(value)
        elif layout_of(type(value)).sort == "mapping" and not name.startswith("_"):
            for key, entry in list(dict.items(value)):
                if type(entry) in (int, float) and math.isfinite(entry):
                    yield f"{step}[{key_in_words(key)}]", float(entry)
