"""Where a rank is at any moment; its watching thread asks, and others are told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from moeparity.ranks.collective_log import CollectiveLog
from moeparity.ranks.notes import Note, Notes


class Whereabouts:
    """The place at which a rank is, in words, and the last call that it finished (None: none); written to the job's
    `notes`.
    """

    def __init__(self) -> None:
        self.place = "starting"
        self.last: int | None = None
        self.notes: Notes | None = None
        self._moves, self._waits, self._since = 0, False, time.monotonic()

    @property
    def note(self) -> Note:
        """Where the rank is, in the form in which others are told."""
        return Note(self._moves, self.last, self.place)

    def at(self, place: str) -> None:
        """Note that the rank comes to a place."""
        self.place, self._since = place, time.monotonic()
        self._moves += 1
        if self.notes is not None:
            self.notes.at(self.note)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context in which this rank waits for others, at its current place."""
        self._waits, self._since = True, time.monotonic()
        try:
            yield
        finally:
            self._waits, self._since = False, time.monotonic()

    def position(self, log: CollectiveLog) -> tuple[int, int | None, str, bool, str, float]:
        """Number of places, last call, place, whether it waits, in which group's collective, and for how long; see
        `Beat`.
        """
        moves, within, place, since = self._moves, "", self.place, self._since
        running = log.running()
        if running is not None:
            within, words, since = running
            place = f"{place}, {words}"
        return moves, self.last, place, self._waits or running is not None, within, time.monotonic() - since
