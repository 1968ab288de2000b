"""Lets ranks tell each other, over the job's store, what they are about to do; they go on only if it is the same."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore

from moeparity.errors import RankError
from moeparity.ranks.canonical import digest
from moeparity.ranks.differing_fields import GROUPED, Records, difference
from moeparity.ranks.notes import Note

Judge = Callable[[Records], str | None]
"""Gives what differs among all ranks' records, in words; None if they agree."""

_SLICE_S = 0.5
"""A waiting rank checks in this interval whether the job has ended."""

_PAUSES = (0.0001, 0.01)
"""Seconds between two checks whether the others are there: at first, and at most."""

_EQUAL, _OTHER = "=", "!"
_CLOSED, _PARTED = "closed", "parted"
REACHED = "reached"
"""The beginning of the keys under which ranks say where they are."""


class Exchange:
    """Compares all ranks' records of one moment: first digests, then the records themselves if these differ.

    Rank 0 gathers the digests and publishes the result. A waiting rank is in no collective. ended: tells why the job
    has been ended in the meantime, if it has. patience_s: how long a rank without a store waits for its watchdog to end
    the process.
    """

    def __init__(
        self, store: PrefixStore, rank: int, ranks: int, ended: Callable[[], str | None], patience_s: float
    ) -> None:
        self._store: PrefixStore = store.clone()  # type: ignore[attr-defined]
        self.rank, self.ranks = rank, ranks
        self._ended, self._patience_s = ended, patience_s
        self._number = 0

    def agree(self, record: Mapping[str, str], at: str, judge: Judge = difference, place: str | None = None) -> None:
        """Return on all ranks if all records are equal. Else raise RankError, with the same words on all: where, and
        what differs. at: identifies the moment, and is compared; place: says more about it in words.
        """
        self._same(record, at, judge, place or at)

    def reached(self, own_note: Note) -> None:
        """Tell the others where this rank is, since they may see no further sign of life of it."""
        self._store.set(f"{REACHED}/{self.rank}", str(own_note))

    def gathered(self, record: Mapping[str, str], at: str) -> Records:
        """All ranks' records, on every rank. Raises RankError if they are not at the same moment."""
        self._same({}, at, difference, at)
        moment = f"moment/{self._number}"
        self._number += 1
        return self._records(moment, at, record)

    def _same(self, record: Mapping[str, str], at: str, judge: Judge, place: str) -> None:
        moment = f"moment/{self._number}"
        self._number += 1
        self._store.set(f"{moment}/{self.rank}", json.dumps(_summary({**record, "at": at})))
        if self.rank == 0:
            keys = [f"{moment}/{rank}" for rank in range(self.ranks)]
            self._wait(keys, at)
            summaries = dict(enumerate(map(json.loads, self._store.multi_get(keys))))
            self._store.set(f"{moment}/all", _EQUAL if difference(summaries) is None else _OTHER)
            self._forget(self._number - 3)
        self._wait([f"{moment}/all"], at)
        if self._store.get(f"{moment}/all").decode() == _EQUAL:
            return
        records = self._records(f"{moment}/whole", at, record)
        moments = self._records(f"{moment}/places", at, {"at": at, "place": place})
        if len({moment["at"] for moment in moments.values()}) > 1:
            words = difference({rank: {"at": moment["place"]} for rank, moment in moments.items()})
        else:
            words = judge(records)
        words = words or "Their records differ in no field that is compared."
        raise RankError(f"{moments[0]['place']}: ranks are not in step. {words}")

    def close(self, how: str) -> None:
        """Tell the others that this rank will not come any more, and how it left."""
        with suppress(DistStoreError, DistNetworkError):
            self._store.set(f"{_CLOSED}/{self.rank}", how)

    def part(self, seconds: float) -> None:
        """Declare that this rank uses the store no more. Rank 0, whose process may hold the store, waits until all
        ranks have declared it, or for `seconds`.
        """
        keys, until = [f"{_PARTED}/{rank}" for rank in range(self.ranks)], time.monotonic() + seconds
        with suppress(DistStoreError, DistNetworkError):
            self._store.set(keys[self.rank], "")
            while self.rank == 0 and time.monotonic() < until and not self._store.check(keys):
                time.sleep(_PAUSES[1])

    def _records(self, moment: str, at: str, record: Mapping[str, str]) -> dict[int, dict[str, str]]:
        self._store.set(f"{moment}/{self.rank}", json.dumps(dict(record)))
        keys = [f"{moment}/{rank}" for rank in range(self.ranks)]
        self._wait(keys, at)
        return {rank: json.loads(text) for rank, text in enumerate(self._store.multi_get(keys))}

    def _wait(self, keys: list[str], at: str) -> None:
        """Wait until all keys are there, or until a rank will no longer write its key.

        It polls, since a wait of the store's own that runs out writes a warning each time.
        """
        pause, begun = _PAUSES[0], time.monotonic()
        while not self._present(keys, at):
            if time.monotonic() - begun > _SLICE_S:
                begun = time.monotonic()
                reason = self._ended() or self._departure(keys, at)
                if reason is not None:
                    raise RankError(reason)
            time.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])

    def _present(self, keys: list[str], at: str) -> bool:
        try:
            return bool(self._store.check(keys))
        except (DistNetworkError, DistStoreError) as error:
            # The watching thread finds out what became of the process with the store, and ends this one.
            time.sleep(self._patience_s)
            raise RankError(f"{at}: the job's store is gone, and the process that held it: {error}.") from None

    def _departure(self, keys: list[str], at: str) -> str | None:
        """Why a rank that has not written its key never will; None if it may."""
        for rank in range(self.ranks):
            missing = f"{keys[0].rpartition('/')[0]}/{rank}" in keys and not self._store.check([keys[rank]])
            if (missing or keys[0].endswith("/all")) and self._store.check([f"{_CLOSED}/{rank}"]):
                how = self._store.get(f"{_CLOSED}/{rank}").decode()
                if rank != self.rank:
                    return f"{at}: rank {rank} is not there any more: it left {how}."
        return None

    def _forget(self, number: int) -> None:
        if number >= 0:
            with suppress(DistStoreError):
                for name in (*range(self.ranks), "all"):
                    self._store.delete_key(f"moment/{number}/{name}")


def _summary(record: Mapping[str, str]) -> dict[str, str]:
    """A record in short: one digest of what all ranks have, and a digest for each process group, which only its
    ranks have.
    """
    common = {name: value for name, value in record.items() if not name.startswith(GROUPED)}
    return {"": digest(common)} | {name: digest({name: record[name]}) for name in record.keys() - common.keys()}
