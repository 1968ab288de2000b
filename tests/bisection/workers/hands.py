"""A crew without processes: workers that answer in threads, late, out of order, not at all, or with another machine."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest.mock import patch

from moeparity.bisection.workers.crew import Crew, LostWorkerError, Worker
from moeparity.bisection.workers.serve import Server

Answer = Callable[["Hand", bytes], bytes]


class Hands(Crew):
    """So many workers, each of which answers as `answer` says; `at_hire` is called before one begins."""

    def __init__(self, answer: Answer, count: int = 2, at_hire: Callable[[], None] | None = None) -> None:
        super().__init__(count)
        self.answer, self.at_hire = answer, at_hire
        self.hired: list[Hand] = []
        self.dismissed = False

    def begin(self) -> Worker:
        if self.at_hire is not None:
            self.at_hire()
        self.hired.append(Hand(len(self.hired), self.answer))
        return self.hired[-1]

    def dismiss(self) -> None:
        super().dismiss()
        self.dismissed = True


@dataclass
class Hand:
    number: int
    answer: Answer
    messages: list[bytes] = field(default_factory=list)
    server: Server = field(default_factory=Server)
    ended: bool = False

    def ask(self, message: bytes, on_part: Callable[[float], None]) -> bytes:
        self.messages.append(message)
        on_part(0.5)
        return self.answer(self, message)

    def end(self) -> None:
        self.ended = True


class Shuffled:
    """Answers of real servers, handed over in another order: each batch of `hold` waits for its last, or its end."""

    def __init__(self, seed: int, *, losing: int | None = None) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.lock, self.count, self.losing = threading.Lock(), 0, losing

    def __call__(self, hand: Hand, message: bytes) -> bytes:
        # One at a time, as torch's settings are the process's.
        with self.lock:
            self.count += 1
            if self.count == self.losing:
                raise LostWorkerError("ended by signal 9")
            answer = hand.server.answer(message)
        threading.Event().wait(self.random.random() * 0.05)
        return answer


@contextmanager
def at_work(module: ModuleType, answer: Answer, count: int = 3) -> Iterator[Hands]:
    """What `--workers` stands for in a module is these hands."""
    hands = Hands(answer, count)

    @contextmanager
    def crew_of(wanted: Any, device: str) -> Iterator[Crew | None]:
        yield None if wanted is None else hands

    with patch.object(module, "crew_of", crew_of):
        yield hands
