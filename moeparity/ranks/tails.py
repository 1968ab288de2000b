"""The last collectives of all ranks, from the store and from notes on this host, and the first that differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore

from moeparity.ranks.collective_log import CollectiveLog
from moeparity.ranks.differing_fields import Records, ranks_in_words
from moeparity.ranks.notes import Notes

_TAIL = "tail"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Where a rank waits, in words. within: the group in whose collective it waits (`collectives.GROUP`)."""

    place: str
    within: str = ""


class Tails:
    """The last collectives of all ranks. `log` has this rank's own, which it also writes to the notes of the job."""

    def __init__(self, store: PrefixStore, job: str, rank: int, ranks: int, log: CollectiveLog) -> None:
        self._store, self._rank, self._ranks, self._log = store, rank, ranks, log
        self._latest = ""
        self.notes = log.notes = Notes(job, rank)

    def tell(self) -> None:
        """Tell the others this rank's last collectives, if there are new ones."""
        tail = json.dumps(self._log.tails())
        if tail != self._latest:
            self._store.set(f"{_TAIL}/{self._rank}", tail)
            self._latest = tail

    def diverged(self, waiting: Mapping[int, Waiting], *, has_store: bool = True) -> str | None:
        """Where control flow diverged, in words: the first collective that ranks called differently. For ranks that
        wait, what they have not called counts as well. has_store: False for a store whose process is stopped, which
        must not be asked.
        """
        tails_of = self._of_store() if has_store else {}
        words = first_disagreement(self.notes.read() | {self._rank: self._log.tails()})
        words = (
            words
            or first_disagreement(tails_of)
            or first_disagreement({rank: tails for rank, tails in tails_of.items() if rank in waiting}, waiting)
        )
        return f"control flow diverged. {words}" if words else None

    def _of_store(self) -> Records:
        """What ranks have told; it may be out of date."""
        tails_of = {self._rank: self._log.tails()}
        with suppress(DistNetworkError, DistStoreError):
            for rank in range(self._ranks):
                if rank != self._rank and self._store.check([f"{_TAIL}/{rank}"]):
                    tails_of[rank] = json.loads(self._store.get(f"{_TAIL}/{rank}"))
        return tails_of


def first_disagreement(tails: Records, waiting: Mapping[int, Waiting] | None = None) -> str | None:
    """The first number at which the last collectives of one group are not the same on all ranks, in words.

    That a rank has not called something counts only if the rank is known to wait outside this group; else its tail may
    be out of date, or it is delayed and will call it. If ranks wait for each other in several groups, all are named.
    """
    groups = list(dict.fromkeys(name for record in tails.values() for name in record))
    words = [text for group in groups if (text := _first(group, tails, {}))]
    for group in groups if not words else ():
        places = {rank: at.place for rank, at in (waiting or {}).items() if at.within != group}
        words += [text] if (text := _first(group, tails, places)) else []
    return ". ".join(words) or None


def _first(group: str, tails: Records, places: Mapping[int, str]) -> str | None:
    lines = {rank: _parsed(record[group]) for rank, record in sorted(tails.items()) if group in record}
    first = max((min(calls, default=0) for calls in lines.values()), default=0)
    last = max((max(calls, default=-1) for calls in lines.values()), default=-1)
    for number in range(first, last + 1):
        called = {rank: calls.get(number) for rank, calls in lines.items() if rank in places or number in calls}
        if len({call and call[0] for call in called.values()}) > 1:
            return f"{group}: the first that differs is number {number}: " + "; ".join(_callers(called, places))
    return None


def _callers(called: Mapping[int, tuple[str, str] | None], places: Mapping[int, str]) -> Iterator[str]:
    by_words: dict[str, list[int]] = {}
    for rank, call in called.items():
        by_words.setdefault(f"none, {places[rank]}" if call is None else f"{call[0]} at {call[1]}", []).append(rank)
    for words, ranks in by_words.items():
        yield f"{ranks_in_words(ranks)} {words}"


def _parsed(lines: str) -> dict[int, tuple[str, str]]:
    entries = (line.split("\t") for line in lines.splitlines())
    return {int(number): (call, site) for number, call, site in entries}
