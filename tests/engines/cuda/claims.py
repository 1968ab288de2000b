"""What equal bits say of an op's attributes: those are verified of which the data would have shown another value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from moeparity.errors import MoeparityError
from moeparity.numerics.bits import same_bits
from moeparity.ops.attribute import Attribute
from moeparity.ops.registry import OPS

Node = Callable[[Mapping[str, Any]], Sequence[torch.Tensor]]
_ORDERS = ("sequential", "fold_lo", "fold_hi", "reverse")
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Claim:
    """An op with the values that a kernel is held to, and what its node gives with any values.

    Without `node` the values are those whose other ones the comparison's control stands for. `beside`: by attribute,
    values with which its other ones can be run where those of the kernel refuse them. `edges`: sites on the op's edges,
    of which the comparison's control has another value.
    """

    op: str
    values: Mapping[str, Any]
    node: Node | None = None
    beside: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    edges: Mapping[str, Any] = field(default_factory=dict)

    def values_told(self, control: int | None) -> Mapping[str, Any]:
        """The values of which some other one, of those that can be run, changes a bit of the outputs."""
        if self.node is None:
            return self.values if control else {}
        base = self.node(self.values)
        declared = {attribute.name: attribute for attribute in OPS[self.op].attributes}
        values = dict(self.edges) if control else {}
        for name, value in self.values.items():
            if name not in declared or declared[name].kind == "placement":
                continue
            beside = {**self.values, **self.beside.get(name, {})}
            there = self.node(beside) if name in self.beside else base
            # The first value that is told from it will do.
            if any(
                self._changes(there, {**beside, name: alternative}) for alternative in _others(declared[name], value)
            ):
                values[name] = value
        # Which attributes are in effect goes by what the op is told, too.
        return values and {
            **values,
            **{name: self.values[name] for name in OPS[self.op].choices_elsewhere if name in self.values},
        }

    def _changes(self, base: Sequence[torch.Tensor], values: Mapping[str, Any]) -> bool | None:
        """Whether these values give other bits; None where they cannot be run."""
        assert self.node is not None
        try:
            outputs = self.node(values)
        except (MoeparityError, AssertionError, KeyError, RuntimeError, TypeError, ValueError):
            return None
        same = all(a.dtype == b.dtype and same_bits(a, b) for a, b in zip(base, outputs, strict=True))
        return not same


def _others(attribute: Attribute, value: object) -> list[object]:
    """Values to be told from this one: all that are listed, dtypes, orders, usual numbers and one that is none."""
    if isinstance(value, torch.dtype) or attribute.kind == "rounding":
        return [dtype for dtype in _DTYPES if dtype != value]
    listed: list[object] = [*attribute.values, *(_ORDERS if attribute.order else ()), *attribute.usual]
    if attribute.number and isinstance(value, float):
        listed.append(1.5 * value + 0.25)
    return [alternative for alternative in dict.fromkeys(listed) if alternative != value]
