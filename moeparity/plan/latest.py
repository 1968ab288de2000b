"""A small cache of results made from immutable objects."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """A cache of the `most` results that were asked for last.

    Graphs and profiles are keyed by identity (`id`), since comparing their contents would take as long as using them.
    The cache holds on to the key objects, so that no other object can get the same id.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._results: dict[tuple[tuple[int, ...], Hashable], tuple[Sequence[object], T]] = {}

    def of(self, things: Sequence[object], words: Hashable, make: Callable[[], T]) -> T:
        """The result of `make` for these same objects (`things`) and equal `words`: cached, or made now. Errors are not
        cached.
        """
        key = tuple(map(id, things)), words
        # Put back at the end, so that the first one is always the one that was asked for longest ago.
        entry = self._results.pop(key, None) or (things, make())
        if len(self._results) >= self._most:
            del self._results[next(iter(self._results))]
        self._results[key] = entry
        return entry[1]
