"""The recorder of one rank: values and calls are gathered here, and written in flushes, each a whole piece.

Digests and statistics are begun when a value is seen, on its own device; what they came to is asked for in the flush.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from moeparity.evidence.capture.apart import Apart
from moeparity.evidence.capture.flush import Running, Sink, complete, let_go, write
from moeparity.evidence.capture.seen import SeenValue, Storage, Storages, covers, extent, problem, remember, version_of
from moeparity.evidence.capture.settings import CaptureSettings
from moeparity.evidence.capture.statistics import Tally, has_order, later
from moeparity.evidence.trace.digest import row_digests
from moeparity.evidence.trace.records import Batch

CALLS = 5000
HELD = 64 << 20
SECONDS = 2.0
"""A flush comes after so many calls, so many bytes of digests and tensors, or so long a time."""

SMALL = 1 << 20
"""Whole numbers of at most so many bytes, as ids are, are kept whatever is selected and whatever the budget."""

_WHOLE_NUMBERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

SOON = 100
"""After so many calls where a program is to stop at the first difference."""


class Recorder:
    """What one rank's capture holds between two flushes.

    `opened` makes the sinks when there is something to write, `ready` says whether it is known by then which rank this
    is, and `notices` is asked before each flush what a reader must know.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        opened: Callable[[], Sequence[Sink]],
        ready: Callable[[], bool],
        notices: Callable[[], Iterable[str]],
    ) -> None:
        self.settings = settings
        self.storages = Storages()
        self.lock = threading.RLock()
        self.step = 0
        self.calls = 0
        self._opened, self._ready, self._notices = opened, ready, notices
        self._sinks: Sequence[Sink] = ()
        self._off = False
        self._stopped: BaseException | None = None
        self._returned: list[Running] = []
        self._notes: list[str] = []
        self._batches: list[Batch] = []
        self.is_elsewhere = self._waits = False
        """Whether what counts is computed in other processes, and whether that will only be known later."""
        self._noted: set[str] = set()
        self._failures: set[tuple[str, str]] = set()
        self._counts: dict[tuple[str, str], int] = {}
        self._values = self._held_bytes = self._spent = 0
        self._due = time.monotonic() + SECONDS
        self.most_calls = CALLS
        """A flush comes after so many calls at the latest."""

    @property
    def is_on(self) -> bool:
        """Whether this step is recorded."""
        return not self._off and self.settings.records(self.step)

    def switch_off(self) -> None:
        """Record nothing from now on, as in a forked process."""
        self._off, self.lock = True, threading.RLock()

    def wait(self, *, elsewhere: bool) -> None:
        """Begin to write only when there is much, or by `release`; `elsewhere`: until then let go of everything.

        Where writing has begun it goes on.
        """
        self._waits = not self._sinks
        self.is_elsewhere = elsewhere and self._waits

    def release(self) -> None:
        """From now on what counts is computed here."""
        self._waits = self.is_elsewhere = False

    def laid_out(self, batch: Batch) -> None:
        """The rows that a server's model will be given."""
        with self.lock:
            if self.is_on:
                self._batches.append(batch)

    def stop_with(self, error: BaseException) -> None:
        """Let the program's next call end with an error."""
        self._stopped = error

    def entered(self, level: str, name: str, path: str, phase: str) -> Running:
        """A call that begins now."""
        if self._stopped is not None:
            error, self._stopped, self._off = self._stopped, None, True
            raise error
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
        self._returned.append(call)
        held_bytes = self._held_bytes + sum(sink.held_bytes for sink in self._sinks)
        if len(self._returned) >= self.most_calls or held_bytes >= HELD:
            self.flush()
        else:
            self.flush_if_due()

    def apart(self, label: str) -> Apart:
        """A context for what the capture does for itself when it handles what `label` says."""
        return Apart(self.lock, self._failed, label)

    def _failed(self, label: str, reason: str) -> None:
        """The capture failed at something: what it would have written to is not known any more."""
        self.storages.forget()
        kind = label, reason.partition(":")[0]
        if kind not in self._failures:
            self._failures.add(kind)
            self.note(f"{label} is not recorded, or in part: the capture failed there: {reason}")

    def may_have_changed(self, tensor: torch.Tensor) -> bool:
        """Whether nobody counts writes to a tensor: torch does not under inference mode, nor are ops seen."""
        return tensor.is_inference() and "op" not in self.settings.levels

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's bits can be looked at; if not, a note says so."""
        reason = problem(tensor)
        if reason is not None:
            self.note(f"values of {reason} have no digests")
        return reason is None

    def see(
        self,
        tensor: torch.Tensor,
        *,
        born: bool = False,
        keep: bool = False,
        index: bool = False,
        ahead: bool = False,
    ) -> SeenValue:
        """The value that a tensor, which `takes` has taken, holds now.

        `born`: an op has just made it. `keep`: its whole tensor is wanted. `index`: a module or an embedding is given
        it, so that whole numbers may be ids, a mask or positions, by which tokens are told. `ahead`: torch is about to
        count a write.
        """
        if tensor.is_conj() or tensor.is_neg():
            # Torch has only marked it, and its bytes are those of another value.
            tensor = tensor.detach().resolve_conj().resolve_neg()
        storage, version = self.storages.of(tensor), version_of(tensor) + ahead
        if self.may_have_changed(tensor):
            storage.unknown()
        key = (version, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        value = storage.values.get(key)
        if value is None:
            value = self._met(tensor, storage, version, born=born)
            remember(storage, key, value)
        if keep or (index and _is_small_index(tensor)):
            self._keep(value, tensor)
        return value

    def _met(self, tensor: torch.Tensor, storage: Storage, version: int, *, born: bool) -> SeenValue:
        primary = storage.primary
        if primary is not None and (primary.version != version or not covers(primary, tensor)):
            primary = None
        if primary is None and not born:
            whole = _in_memory_order(tensor)
            if whole is not tensor:
                primary = self.see(whole)
        value = self._numbered(tensor, storage, version)
        value.label = storage.label(tensor)
        if primary is not None:
            value.base = primary
            return value
        storage.primary = value
        if value.label != "unwritten":
            self._digest(value, tensor)
        return value

    def _numbered(self, tensor: torch.Tensor, storage: Storage, version: int) -> SeenValue:
        value = SeenValue(tensor, self._values, storage.number, version)
        self._values += 1
        return value

    def _digest(self, value: SeenValue, tensor: torch.Tensor) -> None:
        try:
            if not (self.settings.stats and has_order(tensor)):
                value.rows = row_digests(tensor)
            elif tensor.is_cpu:
                tally = Tally()
                value.rows = row_digests(tensor, tally.saw)
                value.stats = tally.by_name(tensor.numel())
            else:
                value.rows, value.stats = row_digests(tensor), later(tensor)
        except (RuntimeError, NotImplementedError) as error:
            self.note(f"values of {tensor.dtype} on {tensor.device.type} have no digests: {str(error)[:100]}")
            return
        self._held_bytes += 8 * value.rows.numel()

    def _keep(self, value: SeenValue, tensor: torch.Tensor) -> None:
        base = value.base
        if base is not None and base.extent[1] - base.extent[0] <= 4 * tensor.nbytes and base.dtype == value.dtype:
            tensor, value = tensor.detach().as_strided(base.shape, base.strides, base.offset), base
        if value.bits is not None or value.kept_already or value.label == "unwritten":
            return
        if not _is_small_index(tensor) and self._spent + tensor.nbytes > self.settings.budget:
            self.note(
                f"the budget of {self.settings.budget:,} bytes for whole tensors was used up in step {self.step}: "
                "none that was selected is kept from there on"
            )
            self._spent = self.settings.budget
            return
        self._spent += 0 if _is_small_index(tensor) else tensor.nbytes
        value.kept_already, value.written = True, False
        if tensor.device.type == "cpu" and self._may_open():
            with self._writing():
                for sink in self._opened_sinks():
                    number = sink.keep(value.id, tensor)
                    value.file = number if number is not None else value.file
        else:
            value.bits = tensor.detach().clone(memory_format=torch.contiguous_format)
            self._held_bytes += tensor.nbytes

    def _opened_sinks(self) -> Sequence[Sink]:
        self._sinks = self._sinks or self._opened()
        return self._sinks

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Where a trace can't be written any more, the program goes on: its trace ends there, without an end."""
        try:
            yield
        except OSError as error:
            self._off = True
            sys.stderr.write(f"moeparity capture: the trace ends here: {error}\n")

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
        with self.apart("what came before this note"):
            self._due = time.monotonic() + SECONDS
            for text in self._notices():
                self.note(text)
            if not self._returned and not self._notes:
                return
            calls, notes, batches = self._returned, self._notes, self._batches
            self._returned, self._batches, self._held_bytes = [], [], 0
            if self.is_elsewhere:
                return
            self._notes = []
            with self._writing():
                complete(calls)
                for sink in self._opened_sinks():
                    write(sink, calls, notes, batches, rows=self.settings.rows)
            let_go(calls)
            self.storages.forget_freed()

    def flush_if_due(self) -> None:
        """Write what has returned, where the last flush was long ago."""
        if time.monotonic() > self._due and self._may_open():
            self.flush()

    def _may_open(self) -> bool:
        return bool(self._sinks) or (self._ready() and not self._waits)

    def close(self, *, whole: bool) -> None:
        """The last flush, and the end of the trace where the program got there."""
        self.flush()
        for sink in self._sinks:
            sink.close(whole=whole and not self._off)
        self.storages.forget()


def _is_small_index(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _WHOLE_NUMBERS and tensor.nbytes <= SMALL


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
