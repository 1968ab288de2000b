"""A trace made of values that another tool wrote down: calls are put together in their order, values by their bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moeparity.evidence.trace.digest import row_digests, value_digest
from moeparity.evidence.trace.records import Call, Head, Value
from moeparity.evidence.trace.writer import TraceWriter


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor of which only the shape and dtype are known."""

    dtype: str
    shape: tuple[int, ...]


Content = Tensor | Described


@dataclass(slots=True, kw_only=True)
class Event:
    """A call as another tool saw it: entered `first`, returned `last` in its order."""

    level: str
    name: str
    path: str
    first: int
    last: int
    step: int = 0
    phase: str = "forward"
    inputs: dict[str, Content] = field(default_factory=dict)
    outputs: dict[str, Content] = field(default_factory=dict)
    weights: dict[str, Content] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)


def write_trace(
    folder: Path, head: Head, events: Iterable[Event], notes: Iterable[str] = (), *, whole: bool = True
) -> None:
    """One rank's trace of these calls; `whole`: whether nothing of them is known to be lost.

    A value of equal bits, dtype and shape is one value, wherever it was seen, so that what made it is known to what
    reads it. Raises TraceError where the folder has that rank already.
    """
    ordered = sorted(events, key=lambda event: (event.step, event.first, -event.last))
    ids = {id(event): number for number, event in enumerate(ordered)}
    around = _around(ordered)
    counts: dict[tuple[object, ...], int] = {}
    calls = []
    for event in ordered:
        key = event.step, event.phase, event.path, event.name
        nth = counts[key] = counts.get(key, -1) + 1
        call = Call(
            id=ids[id(event)], level=event.level, name=event.name, path=event.path, nth=nth, step=event.step,
            phase=event.phase, inside=around.get(ids[id(event)]), scalars=event.scalars,
        )  # fmt: skip
        calls.append((event, call))
    with TraceWriter(folder, head) as writer:
        values = _Values(writer)
        for text in notes:
            writer.note(text)
        for event, call in sorted(calls, key=lambda entry: (entry[0].step, entry[0].last, -entry[0].first)):
            slots = (values.numbers(held_values) for held_values in (event.inputs, event.outputs, event.weights))
            inputs, outputs, weights = slots
            writer.call(replace(call, inputs=inputs, outputs=outputs, weights=weights))
        writer.close(whole=whole)


def _around(ordered: list[Event]) -> Mapping[int, int]:
    """The module call around each call: the innermost that was entered before it, returned after it, and whose path
    begins its own.
    """
    around: dict[int, int] = {}
    open_calls: list[int] = []
    for number, event in enumerate(ordered):
        open_calls = [
            index for index in open_calls if (ordered[index].step, ordered[index].last) >= (event.step, event.last)
        ]
        outer = next((index for index in reversed(open_calls) if _begins(ordered[index], event)), None)
        if outer is not None:
            around[number] = outer
        if event.level == "module":
            open_calls.append(number)
    return around


def _begins(outer: Event, inner: Event) -> bool:
    same = (outer.step, outer.phase) == (inner.step, inner.phase)
    within = not outer.path or inner.path.startswith(f"{outer.path}.")
    return same and (within or (inner.level == "op" and inner.path == outer.path))


class _Values:
    """Numbers of values, each written when it is first met."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._numbers: dict[tuple[object, ...], int] = {}
        self._count = 0

    def numbers(self, slots: Mapping[str, Content]) -> dict[str, int]:
        """By slot."""
        return {slot: self._number(content) for slot, content in slots.items()}

    def _number(self, content: Content) -> int:
        number = self._count
        if isinstance(content, Described):
            self._writer.value(Value(id=number, dtype=content.dtype, shape=content.shape))
            self._count += 1
            return number
        tensor = content.detach().cpu().resolve_conj().resolve_neg().contiguous()
        rows, dtype, shape = row_digests(tensor), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        digest = value_digest(rows, shape, dtype)
        key = digest, dtype, shape
        if key not in self._numbers:
            self._numbers[key] = number
            self._count += 1
            value = Value(id=number, dtype=dtype, shape=shape, strides=tuple(tensor.stride()), digest=digest)
            self._writer.value(value, rows=rows, tensor=tensor.clone() if tensor._base is not None else tensor)  # noqa: SLF001
        return self._numbers[key]


def is_tensor(value: Any) -> bool:
    """Whether a value has bits that a trace can hold."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and not value.is_nested
        and not value.is_quantized
        and not value.is_meta
    )
