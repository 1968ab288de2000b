"""The recorder of one rank: values and calls are gathered here, and written in flushes, each a whole piece.

Digests and statistics are begun when a value is seen, on its own device; what they came to is asked for in the flush.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from moeparity.evidence.capture.ops import plain
from moeparity.evidence.capture.seen import Seen, Storage, Storages, covers, extent, remember, version_of
from moeparity.evidence.capture.settings import Settings
from moeparity.evidence.capture.stacks import Frames, lines
from moeparity.evidence.capture.statistics import named, statistics
from moeparity.evidence.trace.digest import row_digests, value_digests
from moeparity.evidence.trace.records import Call, Value
from moeparity.evidence.trace.write import TraceWriter

CALLS = 5000
HELD = 64 << 20
SECONDS = 2.0
"""A flush comes after so many calls, so many bytes of digests and tensors, or so long a time."""


class Running:
    """A call that has been entered: what will be written of it when it has returned."""

    __slots__ = (
        "clock", "flags", "forward_call", "frames", "id", "inputs", "inside", "keeps", "level", "name", "nth",
        "outputs", "path", "phase", "scalars", "step", "written",
    )  # fmt: skip

    def __init__(self, number: int, level: str, name: str) -> None:
        self.id, self.level, self.name = number, level, name
        self.path, self.phase, self.nth, self.step = "", "forward", 0, 0
        self.inside: int | None = None
        self.forward_call: int | None = None
        self.inputs: dict[str, Seen] = {}
        self.outputs: dict[str, Seen] = {}
        self.written: dict[str, Seen] = {}
        self.scalars: dict[str, Any] = {}
        self.frames: Frames | None = None
        self.flags: list[str] = []
        self.keeps = False
        self.clock: int | None = None
        """The count of writes when it was entered, where its values are recorded."""


class Recorder:
    """What one rank's capture holds between two flushes. `opened` makes the writer when there is something to write."""

    def __init__(self, settings: Settings, opened: Callable[[], TraceWriter]) -> None:
        self.settings = settings
        self.storages = Storages()
        self.lock = threading.RLock()
        self.step = 0
        self.calls = 0
        self._opened = opened
        self._writer: TraceWriter | None = None
        self._returned: list[Running] = []
        self._notes: list[str] = []
        self._stacks: dict[Frames, int] = {}
        self._noted: set[str] = set()
        self._counts: dict[tuple[str, str], int] = {}
        self._values = self._held = self._spent = 0
        self._due = time.monotonic() + SECONDS

    @property
    def is_on(self) -> bool:
        """Whether this step is recorded."""
        return self.settings.records(self.step)

    def entered(self, level: str, name: str, path: str, phase: str) -> Running:
        """A call that begins now."""
        call = Running(self.calls, level, name)
        self.calls += 1
        key = name, path
        call.nth = self._counts.get(key, 0)
        self._counts[key] = call.nth + 1
        call.path, call.phase, call.step = path, phase, self.step
        call.keeps = self.settings.saves(name, path)
        return call

    def returned(self, call: Running) -> None:
        """A call that has returned with all its values."""
        if call.keeps:
            for seen in (*call.inputs.values(), *call.outputs.values(), *call.written.values()):
                self._held += 0 if seen.kept is None else seen.kept.nbytes
        self._returned.append(call)
        if len(self._returned) >= CALLS or self._held >= HELD or time.monotonic() > self._due:
            self.flush()

    def see(self, tensor: torch.Tensor, *, born: bool = False, keep: bool = False, ahead: bool = False) -> Seen | None:
        """The value that a tensor holds now, None for what has no storage.

        `born`: an op has just made it. `keep`: its whole tensor is wanted. `ahead`: torch is about to count a write.
        """
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            self.note(f"values of layout {tensor.layout} on {tensor.device.type} have no digests")
            return None
        storage, version = self.storages.of(tensor), version_of(tensor) + ahead
        key = (version, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        seen = storage.values.get(key)
        if seen is None:
            seen = self._met(tensor, storage, version, born=born)
            remember(storage, key, seen)
        if keep:
            self._keep(seen, tensor)
        return seen

    def _met(self, tensor: torch.Tensor, storage: Storage, version: int, *, born: bool) -> Seen:
        primary = storage.primary
        if primary is not None and (primary.version != version or not covers(primary, tensor)):
            primary = None
        if primary is None and not born:
            whole = _in_memory_order(tensor)
            if whole is not tensor:
                primary = self.see(whole)
        seen = self._numbered(tensor, storage, version)
        seen.label = storage.label(tensor)
        if primary is not None:
            seen.base = primary
            return seen
        storage.primary = seen
        if seen.label != "unwritten":
            self._digest(seen, tensor)
        return seen

    def _numbered(self, tensor: torch.Tensor, storage: Storage, version: int) -> Seen:
        seen = Seen(tensor, self._values, storage.number, version)
        self._values += 1
        return seen

    def _digest(self, seen: Seen, tensor: torch.Tensor) -> None:
        try:
            seen.rows = row_digests(tensor)
            seen.stats = statistics(tensor) if self.settings.stats else None
        except (RuntimeError, NotImplementedError) as error:
            self.note(f"values of {tensor.dtype} on {tensor.device.type} have no digests: {str(error)[:100]}")
            return
        self._held += 8 * seen.rows.numel()

    def _keep(self, seen: Seen, tensor: torch.Tensor) -> None:
        base = seen.base
        if base is not None and base.extent[1] - base.extent[0] <= 4 * tensor.nbytes and base.dtype == seen.dtype:
            tensor, seen = tensor.detach().as_strided(base.shape, base.strides, base.offset), base
        if seen.kept is not None or seen.kept_already or seen.label == "unwritten":
            return
        if self._spent + tensor.nbytes > self.settings.budget:
            self.note(
                f"the budget of {self.settings.budget:,} bytes for whole tensors was used up in step {self.step}: "
                "none that was selected is kept from there on"
            )
            self._spent = self.settings.budget
            return
        self._spent += tensor.nbytes
        seen.kept = tensor.detach().clone(memory_format=torch.contiguous_format)
        seen.kept_already, seen.written = True, False

    def next_step(self) -> None:
        """A step has ended."""
        with self.lock:
            was_on = self.is_on
            self.step += 1
            self._counts.clear()
            if was_on and not self.is_on:
                self.storages.forget()

    def note(self, text: str) -> None:
        """A sentence for the reader, once."""
        if text not in self._noted:
            self._noted.add(text)
            self._notes.append(f"{text}.")

    def flush(self) -> None:
        """Write everything that has returned."""
        with self.lock:
            self._due = time.monotonic() + SECONDS
            if not self._returned and not self._notes:
                return
            writer = self._writer or self._opened()
            self._writer = writer
            _write(writer, self._returned, self._notes, self._stacks, rows=self.settings.rows)
            writer.flush()
            self._returned, self._notes, self._held = [], [], 0
            self.storages.forget_freed()

    def close(self, *, whole: bool) -> None:
        """The last flush, and the end of the trace where the program got there."""
        self.flush()
        if self._writer is not None:
            self._writer.close(whole=whole)
        self.storages.forget()


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor that was never seen is a view of: torch's own base, or its axes in the order of memory."""
    if tensor.is_contiguous():
        return tensor
    base = None if tensor.is_inference() else tensor._base
    if base is not None and base.is_contiguous() and base.dtype == tensor.dtype and version_of(base) == tensor._version:
        return base
    if not extent(tensor)[2]:
        return tensor
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: (strides[axis], tensor.shape[axis]), reverse=True)
    return tensor.detach().permute(order)


def _write(
    writer: TraceWriter, calls: list[Running], notes: list[str], stacks: dict[Frames, int], *, rows: bool
) -> None:
    values = _unwritten(calls)
    digested = [seen for seen in values if seen.rows is not None]
    digests = value_digests(
        [seen.rows for seen in digested if seen.rows is not None],
        [seen.shape for seen in digested],
        [_dtype(seen.dtype) for seen in digested],
    )
    for seen, digest in zip(digested, digests, strict=True):
        seen.digest = digest
    _tell_statistics(values)
    for text in notes:
        writer.note(text)
    for seen in values:
        _write_value(writer, seen, rows=rows)
    for call in calls:
        if call.frames is not None and call.frames not in stacks:
            stacks[call.frames] = writer.stack(lines(call.frames))
        _write_call(writer, call, None if call.frames is None else stacks[call.frames])


def _unwritten(calls: list[Running]) -> list[Seen]:
    """The values of calls that are not in the trace yet, a base before its views."""
    values: dict[int, Seen] = {}
    for call in calls:
        for slots in (call.inputs, call.outputs, call.written):
            for seen in slots.values():
                if seen.base is not None and not seen.base.written:
                    values[seen.base.id] = seen.base
                if not seen.written:
                    values[seen.id] = seen
    return list(values.values())


def _tell_statistics(values: list[Seen]) -> None:
    later = [seen for seen in values if isinstance(seen.stats, torch.Tensor)]
    if later:
        together = torch.stack([seen.stats for seen in later if isinstance(seen.stats, torch.Tensor)]).tolist()
        for seen, numbers in zip(later, together, strict=True):
            seen.stats = named(numbers)


def _write_value(writer: TraceWriter, seen: Seen, *, rows: bool) -> None:
    stats = seen.stats if isinstance(seen.stats, dict) else None
    value = Value(
        id=seen.id,
        dtype=_dtype(seen.dtype),
        shape=seen.shape,
        strides=seen.strides,
        offset=seen.offset,
        device=str(seen.device),
        storage=seen.storage,
        version=seen.version,
        base=None if seen.base is None else seen.base.id,
        digest=seen.digest,
        label=seen.label,
        stats=stats,
    )
    writer.value(value, rows=seen.rows if rows else None, tensor=seen.kept)
    seen.written, seen.kept = True, None


def _write_call(writer: TraceWriter, call: Running, stack: int | None) -> None:
    for name in ("nan", "inf"):
        if any(_holds(seen, name) for seen in (*call.outputs.values(), *call.written.values())) and not any(
            _holds(seen, name) for seen in call.inputs.values()
        ):
            call.flags.append(f"{name}_born")
    writer.call(
        Call(
            id=call.id,
            level=call.level,
            name=call.name,
            path=call.path,
            nth=call.nth,
            step=call.step,
            phase=call.phase,
            inside=call.inside,
            inputs={slot: seen.id for slot, seen in call.inputs.items()},
            outputs={slot: seen.id for slot, seen in call.outputs.items()},
            written={slot: seen.id for slot, seen in call.written.items()},
            scalars={slot: plain(value) for slot, value in call.scalars.items()},
            stack=stack,
            flags=tuple(call.flags),
            forward_call=call.forward_call,
        )
    )


def _holds(seen: Seen, name: str) -> bool:
    stats = (seen.base or seen).stats
    return isinstance(stats, dict) and stats.get(name, 0) > 0


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
