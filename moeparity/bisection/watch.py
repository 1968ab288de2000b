"""`Watch` and `Search`: what observes the first pass for a measure, and what searches after it; also keys of the
results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trials
from moeparity.engine.view import NodeView

T = TypeVar("T")


class SectionObserver(ABC):
    """An observer of the first pass. By default the observer itself is what is kept, of a whole pass or of a shard."""

    __slots__ = ()

    @abstractmethod
    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""

    @property
    def result(self) -> Any:
        """What is kept of the pass."""
        return self

    def part(self, rows: slice) -> Any:
        """What was seen of the sequences `rows`, in the form that another observer's `join` takes."""
        return self.result

    def join(self, part: Any, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`, as if it had been seen here.

        Raises NotImplementedError in observers of users' functions, whose passes are not cut into shards.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class Watch(Generic[T]):
    """Makes an observer of the first pass whose result is a T.

    name: the key of the result in a file. observer: makes a SectionObserver, or None if there is nothing to see. state:
    the dataclasses of which a result consists, so that a finished pass can be written and read. bytes_per_token: the
    most that the observer keeps of each token.
    """

    name: str
    observer: Callable[[Study, Trials], SectionObserver | None]
    state: tuple[type, ...] = ()
    bytes_per_token: Callable[[Study], int] = lambda _: 0


@dataclass(frozen=True, slots=True, eq=False)
class Search(Generic[T]):
    """Searches in passes of its own, after the first pass. `search(plan, observed, progress, store)` gives a T, or None
    if there is nothing to search; each of its passes is kept until the run is done.
    """

    name: str
    search: Callable[..., T | None]
