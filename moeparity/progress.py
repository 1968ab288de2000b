"""A long step as the outside sees it: how far it is, and what a signal that ends it leaves to do and to say.

Nothing here prints or handles signals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One report of a long step.

    step: what is being done, for people; a step that starts over begins with a smaller `done`. Steps may take turns,
        such as a pass and its waiting for weights.
    at: where it is, such as a segment's name.
    done, total: parts of about equal length, such as bytes, or nodes times waves of sequences; 0 where it begins.
    part: how much of the next part is done, from 0 to 1, where it takes long.
    work, unit: what has been done since the step began, in a unit that makes a rate, such as op evaluations.
    """

    step: str
    at: str
    done: int
    total: int
    work: float
    unit: str
    part: float = 0.0


@dataclass(slots=True)
class Stop:
    """When a long step ends with what it knows: `seconds` after it began, or once that `is_asked`, of it or of the step
    that it is `within`.
    """

    seconds: float = math.inf
    is_asked: bool = False
    begun: float = field(default_factory=time.monotonic)
    within: Stop | None = None

    @property
    def is_due(self) -> bool:
        """Whether it is time to end."""
        is_over = self.is_asked or time.monotonic() - self.begun >= self.seconds
        return is_over or (self.within is not None and self.within.is_due)


class StoppedError(Exception):
    """A long step ended before its end, since it was to stop."""


Callback = Callable[[Progress], None]
"""Called often, from the thread that computes: it has to be quick."""


@dataclass(slots=True)
class _Listener:
    """Tells `on_part` which fraction of a step is done. A loop in it is the part of the step from `begins` on, and
    `size` long, both from 0 to 1.
    """

    on_part: Callable[[float], None]
    begins: float = 0.0
    size: float = 1.0
    most: float = 0.0

    def tell(self, part: float) -> None:
        """So much of what is now gone through is done, from 0 to 1; never less than was told before."""
        self.most = max(self.most, self.begins + self.size * part)
        self.on_part(self.most)


_listener: _Listener | None = None
"""Of the one thread that computes."""


@contextmanager
def telling(on_part: Callable[[float], None] | None) -> Iterator[None]:
    """While the context lasts, `on_part` hears how much is done of what is gone `through` in it, from 0 to 1."""
    global _listener  # noqa: PLW0603
    before, _listener = _listener, None if on_part is None else _Listener(on_part)
    try:
        yield
    finally:
        _listener = before


def through(items: Iterable[Item], lengths: Sequence[int]) -> Iterator[Item]:
    """The items in turn, each taking as long as its length says; what is gone through within one is a part of it."""
    listener = _listener
    if listener is None:
        yield from items
        return
    begins, size, whole, done = listener.begins, listener.size, max(sum(lengths), 1), 0
    try:
        for item, length in zip(items, lengths, strict=True):
            listener.tell(done / whole)
            listener.begins, listener.size = begins + size * done / whole, size * length / whole
            yield item
            listener.begins, listener.size, done = begins, size, done + length
    finally:
        listener.begins, listener.size = begins, size


Act = Callable[[], str | None]
"""Tidies up after an interruption, and may return a sentence for the user."""

_acts: list[Act] = []


@contextmanager
def on_interruption(act: Act) -> Iterator[None]:
    """While the context lasts, an interruption calls `act`: it tidies up, and may return a sentence for the user.

    It is called between any two instructions of the main thread, in imports and in the midst of a statement too:
    whatever it relies on has to be whole at every moment.
    """
    _acts.append(act)
    try:
        yield
    finally:
        _acts.remove(act)


def tidy_up() -> list[str]:
    """Do what is left to do, newest first, and return what there is to say.

    An act that fails says nothing and keeps no other from its turn: the process is about to end.
    """
    answers = []
    for act in reversed(_acts):
        with suppress(Exception):
            answers.append(act())
    return [sentence for sentence in answers if sentence]
