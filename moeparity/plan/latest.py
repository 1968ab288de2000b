"""What was made lately of things that never change, so that it is not made again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """The results of the `most` calls whose results were made last.

    A graph or a profile is known by which object it is: comparing all that it holds would take as long as using it. It
    is kept together with what was made of it, so that no other object gets its id.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._results: dict[tuple[tuple[int, ...], Hashable], tuple[Sequence[object], T]] = {}

    def of(self, things: Sequence[object], words: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns for these very things and equal words, kept or new; what it raises is not kept."""
        key = tuple(map(id, things)), words
        if key not in self._results:
            result = make()
            if len(self._results) >= self._most:
                del self._results[next(iter(self._results))]
            self._results[key] = things, result
        return self._results[key][1]
