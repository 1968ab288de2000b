"""Computes independent pieces of work, here or by workers; a lost worker is replaced."""

from __future__ import annotations

import json
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from moeparity import errors
from moeparity.bisection.resume.codec import Codec
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.workers.message import DONE, FAILED, REFUSED, unpacked
from moeparity.errors import MoeparityError, counted
from moeparity.progress import Callback, Progress

LOSSES = 3
"""A piece that has lost this many workers is given up: most likely the piece itself ends them."""
_log = logging.getLogger("moeparity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece(ABC):
    """One piece of work, whose result depends on nothing but the piece.

    name: in messages, such as `point 3 of 8`. place: its number, from 0. key: the name under which `store` keeps the
    result (None: it is not kept). codec: reads the bytes of a worker.
    """

    name: str
    place: int
    key: str
    store: PieceStore | None
    codec: Codec

    @abstractmethod
    def compute(self) -> Any:
        """The result, computed here. Raises MoeparityError."""

    @abstractmethod
    def message(self) -> bytes:
        """The task for a worker."""

    def read(self, data: bytes) -> Any:
        """The result from the bytes that a worker wrote."""
        return unpacked(self.codec, data)

    def stored(self) -> Any | None:
        """The result that an earlier run kept; None if there is none."""
        return None if self.store is None else self.store.load(self.key)

    def keep(self, result: Any) -> None:
        """Keep the result for a later run."""
        if self.store is not None:
            self.store.save(self.key, result)


P = TypeVar("P", bound=Piece)


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
        self.count = self.places = count
        self.workers: list[Worker] = []
        self._idle: list[Worker] = []
        self._busy, self._over = 0, False
        self._changed = threading.Condition()

    @abstractmethod
    def begin(self) -> Worker:
        """A new worker. Raises MoeparityError if none can be had."""

    def answer_to(self, piece: Piece, message: bytes, on_part: Callable[[float], None]) -> bytes:
        """The answer of some worker to a piece's task; one that is lost is replaced, one that refuses gets no other.

        Raises MoeparityError if the piece loses `LOSSES` workers, if all refuse, and if none can be had;
        LostWorkerError after `dismiss`.
        """
        losses = 0
        while True:
            worker = self._hired()
            try:
                answer = worker.ask(message, on_part)
            except LostWorkerError as error:
                self._release()
                losses += 1
                if losses == LOSSES:
                    raise MoeparityError(
                        f"--workers: {piece.name} has ended {LOSSES} workers, the last {error}. By signal 9 the "
                        "system ends what takes too much memory: give fewer workers, or each a --memory-limit. What "
                        "was finished is kept under --run."
                    ) from None
                if not self._over:
                    _log.warning("%s: its worker was lost, %s; another begins it anew", piece.name, error)
            else:
                if answer[:1] != REFUSED:
                    self._release(worker)
                    return answer
                self._refuse(answer[1:].decode())
            on_part(0.0)

    def dismiss(self) -> None:
        """End all workers for good, busy or not."""
        self._over = True
        for worker in self.workers:
            worker.end()
        with self._changed:
            self._changed.notify_all()

    def _hired(self) -> Worker:
        """An idle worker, or a new one, as soon as there is a place."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._busy < self.places)
            if self._over:
                raise LostWorkerError("not begun, since all were dismissed")
            if not self._idle:
                self._idle.append(self.begin())
                self.workers.append(self._idle[-1])
            self._busy += 1
            return self._idle.pop()

    def _release(self, *idle: Worker) -> None:
        """Give a place back, with the worker that has finished its task, if it has."""
        with self._changed:
            self._busy -= 1
            self._idle += idle
            self._changed.notify_all()

    def _refuse(self, reason: str) -> None:
        """Give up the place of a worker that computes nothing. Raises MoeparityError if it was the last."""
        _log.warning("a worker was refused: %s", reason)
        self.places -= 1
        self._release()
        if not self.places:
            raise MoeparityError(f"--workers: no worker may compute for this run. The last: {reason}")


def computed(
    pieces: Iterable[P], crew: Crew | None, unit: str, total: int, progress: Callback | None = None
) -> Iterator[tuple[P, Any]]:
    """The pieces with their results, in the order in which they are finished. What an earlier run kept is not computed
    again, and every other result is kept. If a user's mistake ended a piece, the MoeparityError stands in place of its
    result.

    Without a crew the pieces are computed here, in turn. `pieces` is asked for the next one as soon as a worker is
    free.
    unit, total: what the pieces are called, and how many there are, for `progress`.

    Raises MoeparityError if every worker refuses to compute, and if a piece loses `LOSSES` workers. The crew is
    dismissed if anything is raised, or if the caller stops before the last result.
    """
    if crew is None:
        for piece in pieces:
            stored = piece.stored()
            yield piece, _computed_here(piece) if stored is None else stored
        return
    crew.places = min(crew.count, total)
    try:
        yield from _handed_out(iter(pieces), crew, _Tally(crew, unit, total, progress))
    except BaseException:
        crew.dismiss()
        raise


def _handed_out(source: Iterator[P], crew: Crew, tally: _Tally) -> Iterator[tuple[P, Any]]:
    """The pieces with their results; each worker has a thread that waits for it."""
    running: dict[Future[bytes], P] = {}
    answers: SimpleQueue[Future[bytes]] = SimpleQueue()
    pool = ThreadPoolExecutor(max(crew.places, 1), "worker")
    try:
        while True:
            # One piece more than workers, so that no worker waits for its next task.
            while len(running) <= crew.places and (piece := next(source, None)) is not None:
                stored = piece.stored()
                if stored is not None:
                    tally.finish(piece)
                    yield piece, stored
                    continue
                future = pool.submit(crew.answer_to, piece, piece.message(), partial(tally.note, piece))
                running[future] = piece
                future.add_done_callback(answers.put)
            if not running:
                return
            future = answers.get()
            piece = running.pop(future)
            answer = future.result()
            tally.finish(piece)
            yield piece, _result(piece, answer)
    finally:
        pool.shutdown(wait=not running, cancel_futures=True)


def _result(piece: Piece, answer: bytes) -> Any:
    """What a worker answered: the result, which is kept, or the error of a user's mistake; raises any other error."""
    if answer[:1] == FAILED:
        return _raised(piece, *json.loads(answer[1:]))
    assert answer[:1] == DONE
    result = piece.read(answer[1:])
    piece.keep(result)
    return result


def _computed_here(piece: Piece) -> Any:
    try:
        result = piece.compute()
    except MoeparityError as error:
        return error
    piece.keep(result)
    return result


class _Tally:
    """Tells how far all pieces together are; it is told by several threads."""

    def __init__(self, crew: Crew, unit: str, total: int, progress: Callback | None) -> None:
        self.crew, self.unit, self.total, self.progress = crew, unit, total, progress
        self.parts: dict[str, float] = {}
        self.finished = 0
        self.lock = threading.Lock()

    def note(self, piece: Piece, part: float) -> None:
        """How much of a piece is done, from 0 to 1."""
        with self.lock:
            self.parts[piece.name] = part
            self._tell(piece.name)

    def finish(self, piece: Piece) -> None:
        """The result of a piece is there."""
        with self.lock:
            self.parts.pop(piece.name, None)
            self.finished += 1
            self._tell(f"{piece.name} done")

    def _tell(self, at: str) -> None:
        if self.progress is not None:
            done = self.finished + sum(self.parts.values())
            whole = int(done)
            self.progress(
                Progress(
                    step=counted(self.crew.places, "worker"),
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
