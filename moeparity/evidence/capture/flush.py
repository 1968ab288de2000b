"""A flush: calls that have returned become records, and what was begun for their values is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch

from moeparity.evidence.capture.ops import plain
from moeparity.evidence.capture.seen import SeenValue
from moeparity.evidence.capture.stacks import Frames, lines
from moeparity.evidence.capture.statistics import by_name
from moeparity.evidence.trace.digest import value_digests
from moeparity.evidence.trace.records import Batch, Call, Value


class Running:
    """A call that has been entered: what will be written of it when it has returned."""

    __slots__ = (
        "clock", "flags", "forward_call", "frames", "id", "inputs", "inside", "keeps", "level", "name", "nth",
        "outputs", "path", "phase", "scalars", "step", "weights", "written",
    )  # fmt: skip

    def __init__(self, number: int, level: str, name: str) -> None:
        self.id, self.level, self.name = number, level, name
        self.path, self.phase, self.nth, self.step = "", "forward", 0, 0
        self.inside: int | None = None
        self.forward_call: int | None = None
        self.inputs: dict[str, SeenValue] = {}
        self.outputs: dict[str, SeenValue] = {}
        self.written: dict[str, SeenValue] = {}
        self.weights: dict[str, SeenValue] = {}
        self.scalars: dict[str, Any] = {}
        self.frames: Frames | None = None
        self.flags: list[str] = []
        self.keeps = False
        self.clock: int | None = None
        """The count of writes when it was entered, where its values are recorded."""


class Sink(Protocol):
    """What takes the records of a flush: a writer, or what compares them with another trace."""

    @property
    def held_bytes(self) -> int:
        """Bytes of whole tensors that it holds in memory until the next flush."""

    def value(self, value: Value, *, rows: torch.Tensor | None = None, tensor: torch.Tensor | None = None) -> None:
        """A value, with what is kept of it."""

    def keep(self, number: int, tensor: torch.Tensor) -> int | None:
        """The whole tensor of a value, as it is now; the number of the file that it was written to, if it was."""

    def call(self, call: Call) -> None:
        """A call whose values were handed over."""

    def batch(self, batch: Batch) -> None:
        """The rows of a server's step."""

    def stack(self, frames: Iterable[str]) -> int:
        """The number of a stack."""

    def note(self, text: str) -> None:
        """A sentence for the reader."""

    def flush(self) -> None:
        """A flush has ended."""

    def close(self, *, whole: bool = True) -> None:
        """The recording has ended."""


def complete(calls: list[Running]) -> None:
    """Ask for what was begun when the calls' values were seen."""
    values = _unwritten(calls)
    digested = [value for value in values if value.rows is not None and value.digest is None]
    rows = _on_host([value.rows for value in digested if value.rows is not None])
    digests = value_digests(rows, [value.shape for value in digested], [_dtype(value.dtype) for value in digested])
    for value, part, digest in zip(digested, rows, digests, strict=True):
        value.rows, value.digest = part, digest
    later = [value for value in values if isinstance(value.stats, torch.Tensor)]
    numbers = _on_host([value.stats for value in later if isinstance(value.stats, torch.Tensor)])
    for value, five in zip(later, numbers, strict=True):
        value.stats = by_name(five.tolist())


def write(sink: Sink, calls: list[Running], notes: list[str], batches: list[Batch], *, rows: bool) -> None:
    """Hand calls, their values, notes and a server's steps to a sink; `rows`: with the digests of rows."""
    for text in notes:
        sink.note(text)
    for batch in batches:
        sink.batch(batch)
    for value in _unwritten(calls):
        sink.value(_value(value), rows=value.rows if rows else None, tensor=value.bits)
    stacks: dict[tuple[int, ...], int] = {}
    for call in calls:
        sink.call(_call(call, None if call.frames is None else _stack(sink, call.frames, stacks)))
    sink.flush()


def _stack(sink: Sink, frames: Frames, stacks: dict[tuple[int, ...], int]) -> int:
    """The number of a stack. `stacks`: those of this flush, by identity: the hash of a code object is slow."""
    key = tuple([number for code, instruction in frames for number in (id(code), instruction)])
    number = stacks.get(key)
    if number is None:
        number = stacks[key] = sink.stack(lines(frames))
    return number


def let_go(calls: list[Running]) -> None:
    """What was written need not be held."""
    for value in _unwritten(calls):
        value.written, value.bits = True, None


def _unwritten(calls: list[Running]) -> list[SeenValue]:
    """The values of calls that are not in the trace yet, a base before its views."""
    values: dict[int, SeenValue] = {}
    for call in calls:
        for slots in (call.inputs, call.outputs, call.written, call.weights):
            for value in slots.values():
                if value.base is not None and not value.base.written:
                    values[value.base.id] = value.base
                if not value.written:
                    values[value.id] = value
    return list(values.values())


def _on_host(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """These tensors [N] in main memory: one copy for each device, since each waits."""
    fetched = dict(enumerate(parts))
    for device in {part.device for part in parts if not part.is_cpu}:
        torch.accelerator.synchronize(device)  # what makes them may run on another stream than this thread's
        there = [number for number, part in enumerate(parts) if part.device == device]
        together = torch.cat([parts[number] for number in there]).cpu()
        fetched |= zip(there, torch.split(together, [len(parts[number]) for number in there]), strict=True)
    return [fetched[number] for number in range(len(parts))]


def _value(value: SeenValue) -> Value:
    return Value(
        id=value.id,
        dtype=_dtype(value.dtype),
        shape=value.shape,
        strides=value.strides,
        offset=value.offset,
        device=str(value.device),
        storage=value.storage,
        version=value.version,
        base=None if value.base is None else value.base.id,
        digest=value.digest,
        label=value.label,
        tensor=value.file is not None,
        tensor_file=value.file,
        stats=value.stats if isinstance(value.stats, dict) else None,
    )


def _call(call: Running, stack: int | None) -> Call:
    return Call(
        id=call.id,
        level=call.level,
        name=call.name,
        path=call.path,
        nth=call.nth,
        step=call.step,
        phase=call.phase,
        inside=call.inside,
        inputs={slot: value.id for slot, value in call.inputs.items()},
        outputs={slot: value.id for slot, value in call.outputs.items()},
        written={slot: value.id for slot, value in call.written.items()},
        weights={slot: value.id for slot, value in call.weights.items()},
        scalars={slot: plain(value) for slot, value in call.scalars.items()},
        stack=stack,
        flags=(*call.flags, *(f"{name}_born" for name in ("nan", "inf") if _bears(call, name))),
        forward_call=call.forward_call,
    )


def _bears(call: Running, name: str) -> bool:
    """Whether a call's results hold a number that is not finite, and none of its inputs does."""
    return any(_holds(value, name) for value in (*call.outputs.values(), *call.written.values())) and not any(
        _holds(value, name) for value in call.inputs.values()
    )


def _holds(value: SeenValue, name: str) -> bool:
    stats = (value.base or value).stats
    return isinstance(stats, dict) and stats.get(name, 0) > 0


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
