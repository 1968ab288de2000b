"""Computes independent pieces of work, here or by workers; a lost worker is replaced."""

from __future__ import annotations

import json
import logging
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from moeparity import errors
from moeparity.bisection.workers.message import DONE, FAILED, REFUSED
from moeparity.errors import MoeparityError, counted
from moeparity.progress import Callback, Progress

LOSSES = 3
"""A piece that has lost so many workers is given up: most likely the piece itself ends them."""
_log = logging.getLogger("moeparity")


class Piece(Protocol):
    """One piece of work, whose result depends on nothing but the piece."""

    @property
    def name(self) -> str:
        """Its name in messages, such as `point 3 of 8`."""
        ...

    def compute(self) -> Any:
        """The result, computed here. Raises MoeparityError."""
        ...

    def message(self) -> bytes:
        """The task for a worker."""
        ...

    def read(self, data: bytes) -> Any:
        """The result from the bytes that a worker wrote."""
        ...


class LostWorkerError(Exception):
    """A worker ended, or can't be reached any more; the message says which."""


class Worker(Protocol):
    """A process that computes one task at a time."""

    def ask(self, message: bytes, on_part: Callable[[float], None]) -> bytes:
        """The answer to a task; `on_part` is told how much of it is done, from 0 to 1. Raises LostWorkerError."""
        ...

    def end(self) -> None:
        """End the worker, whatever it is doing; a caller that waits for its answer gets LostWorkerError."""
        ...


class Crew(ABC):
    """At most `count` workers (1 or more) at once, each started when it is first needed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.workers: list[Worker] = []
        self._idle: list[Worker] = []
        self._lock, self._over = threading.Lock(), False

    @abstractmethod
    def begin(self) -> Worker:
        """A new worker. Raises MoeparityError if none can be had."""

    def hire(self) -> Worker:
        """An idle worker, or a new one. Raises LostWorkerError after `dismiss`, MoeparityError if none can be had."""
        with self._lock:
            if self._over:
                raise LostWorkerError("not begun, since all were dismissed")
            if self._idle:
                return self._idle.pop()
            self.workers.append(self.begin())
            return self.workers[-1]

    def release(self, worker: Worker) -> None:
        """Take back a worker that has finished its task."""
        with self._lock:
            self._idle.append(worker)

    def dismiss(self) -> None:
        """End all workers for good, busy or not."""
        self._over = True
        for worker in self.workers:
            worker.end()


@dataclass(frozen=True, slots=True)
class _Event:
    """What happened to a piece: `done` (value: the answer), `part` (of it done), its worker `lost`, `refused`,
    `unhired`.
    """

    kind: str
    number: int
    value: Any


def computed(
    pieces: Iterable[Piece], crew: Crew | None, unit: str, total: int, progress: Callback | None = None
) -> Iterator[tuple[int, Any]]:
    """The numbers of the pieces with their results, in the order in which they are finished. If a user's mistake ended
    a piece, the MoeparityError stands in place of its result.

    Without a crew the pieces are computed here, in turn. `pieces` is asked for the next one as soon as a worker is
    free.
    unit, total: what the pieces are called, and how many there are, for `progress`.

    Raises MoeparityError if every worker refuses to compute, and if a piece loses `LOSSES` workers. The crew is
    dismissed if anything is raised, or if the caller stops before the last result.
    """
    if crew is None:
        for number, piece in enumerate(pieces):
            yield number, _attempt(piece.compute)
        return
    office = _Office(crew, min(crew.count, total), unit, total, progress)
    try:
        yield from office.results(iter(pieces))
    except BaseException:
        crew.dismiss()
        raise
    finally:
        office.close()


def _attempt(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except MoeparityError as error:
        return error


class _Office:
    """Hands pieces to workers; each worker has a thread that waits for it."""

    def __init__(self, crew: Crew, count: int, unit: str, total: int, progress: Callback | None) -> None:
        self.crew, self.unit, self.total, self.progress = crew, unit, total, progress
        self.pieces: dict[int, Piece] = {}
        self.parts: dict[int, float] = {}
        self.losses: Counter[int] = Counter()
        self.waiting: SimpleQueue[int | None] = SimpleQueue()
        self.events: SimpleQueue[_Event] = SimpleQueue()
        self.messages: dict[int, bytes] = {}
        self.hired, self.finished = max(count, 1), 0
        self.closed = False
        self.threads = [threading.Thread(target=self._serve, name="worker", daemon=True) for _ in range(self.hired)]
        for thread in self.threads:
            thread.start()

    def results(self, source: Iterator[Piece]) -> Iterator[tuple[int, Any]]:
        """The numbers of the pieces with their results."""
        is_open = True
        while True:
            # One piece more than workers, so that no worker waits for its next task.
            while is_open and len(self.pieces) <= self.hired:
                number = self.finished + len(self.pieces)
                piece = next(source, None)
                if piece is None:
                    is_open = False
                    break
                self.pieces[number] = piece
                self.messages[number] = piece.message()
                self.waiting.put(number)
            if not self.pieces:
                return
            event = self.events.get()
            if event.kind == "done":
                yield event.number, self._result(event)
            else:
                self._heed(event)

    def close(self) -> None:
        """Let the threads end, and wait for those that only have to give their worker back."""
        self.closed = True
        for _ in self.threads:
            self.waiting.put(None)
        if not self.pieces:
            for thread in self.threads:
                thread.join()

    def _serve(self) -> None:
        """The thread of one worker: hires it when there is a piece, and another in its place if it is lost."""
        worker: Worker | None = None
        while (number := self.waiting.get()) is not None:
            try:
                worker = worker or self.crew.hire()
                answer = worker.ask(self.messages[number], partial(self._post, "part", number))
            except LostWorkerError as error:
                worker = None
                self._post("lost", number, str(error))
            except Exception as error:  # noqa: BLE001  it is raised again where the command waits
                self._post("unhired", number, error)
                return
            else:
                if answer[:1] == REFUSED:
                    self._post("refused", number, answer[1:].decode())
                    return
                self._post("done", number, answer)
        if worker is not None:
            self.crew.release(worker)

    def _post(self, kind: str, number: int, value: Any) -> None:
        if not self.closed:
            self.events.put(_Event(kind, number, value))

    def _result(self, event: _Event) -> Any:
        piece = self.pieces.pop(event.number)
        del self.messages[event.number]
        self.parts.pop(event.number, None)
        self.finished += 1
        self._tell(f"{piece.name} done")
        if event.value[:1] == FAILED:
            return _raised(piece, *json.loads(event.value[1:]))
        assert event.value[:1] == DONE
        return piece.read(event.value[1:])

    def _heed(self, event: _Event) -> None:
        """Raises MoeparityError if the run can't go on after this event."""
        piece = self.pieces[event.number]
        if event.kind == "part":
            self.parts[event.number] = event.value
            self._tell(piece.name)
            return
        if event.kind == "unhired":
            raise event.value
        if event.kind == "lost":
            self.losses[event.number] += 1
            if self.losses[event.number] == LOSSES:
                raise MoeparityError(
                    f"--workers: {piece.name} has ended {LOSSES} workers, the last {event.value}. By signal 9 the "
                    "system ends what takes too much memory: give fewer workers, or each a --memory-limit. What was "
                    "finished is kept under --run."
                )
            _log.warning("%s: its worker was lost, %s; another begins it anew", piece.name, event.value)
        else:
            self.hired -= 1
            _log.warning("a worker was refused: %s", event.value)
            if not self.hired:
                raise MoeparityError(f"--workers: no worker may compute for this run. The last: {event.value}")
        self.parts.pop(event.number, None)
        self.waiting.put(event.number)

    def _tell(self, at: str) -> None:
        if self.progress is not None:
            done = self.finished + sum(self.parts.values())
            whole = int(done)
            self.progress(
                Progress(
                    step=counted(self.hired, "worker"),
                    at=at,
                    done=whole,
                    total=self.total,
                    work=done,
                    unit=f"{self.unit}s",
                    part=done - whole,
                )
            )


def _raised(piece: Piece, kind: str, message: str) -> Exception:
    """The error that ended a piece, if a user caused it; raises anything else."""
    cls = getattr(errors, kind, None)
    if isinstance(cls, type) and issubclass(cls, MoeparityError):
        return cls(message)
    raise RuntimeError(f"the worker of {piece.name}: {kind}: {message}")
