"""Signs of life: a thread that says where its rank is, watches others, and ends the job when one of them is lost."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore

from moeparity.ranks.collectives import first_disagreement
from moeparity.ranks.difference import Records
from moeparity.ranks.exchange import REACHED
from moeparity.ranks.journal import Journal

EXIT_CODE = 1
"""Of a process that the watchdog ends: the ranks are not in step."""

_BEAT, _VERDICT, _TAIL = "beat", "verdict", "tail"
_LOST = {"gone": "was killed", "stopped": "is stopped"}
_PAUSE_S = 0.02
_GRACE_S = 1.0
"""So long ranks have to read the verdict and write their journals before a stopped one is killed."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One sign of life. `place`: where the rank is, in words. `waits`: it waits for others there. `since`: for how many
    seconds. `call`: the last call it finished.
    """

    count: int
    call: int | None
    place: str
    waits: bool
    since: float
    host: str
    pid: int
    closed: bool = False


@dataclass(slots=True)
class Seen:
    """A peer's last sign of life, and when it came."""

    beat: Beat
    at: float


class Watch:
    """Beats every `heartbeat_s`; a rank that gave no sign for `watchdog_s`, or that others waited for so long, ends the
    job: one rank says why on standard error and all of them leave with EXIT_CODE, also from inside a collective.

    `position` tells where this rank is: the last call it finished, the place, whether it waits. Rank 0 looks at all
    ranks; every other one at rank 0, which may hold the store, and at the next. A rank that is stopped can't end
    itself: on the same host it is killed.
    """

    def __init__(
        self,
        store: PrefixStore,
        rank: int,
        ranks: int,
        journal: Journal,
        position: Callable[[], tuple[int | None, str, bool, float]],
        tails: Callable[[], Mapping[str, str]],
        heartbeat_s: float,
        watchdog_s: float,
    ) -> None:
        self._store: PrefixStore = store.clone()  # type: ignore[attr-defined]
        self._rank, self._ranks, self._journal = rank, ranks, journal
        self._position, self._tails = position, tails
        self._heartbeat_s, self._watchdog_s = heartbeat_s, watchdog_s
        self._patience_s = max(1.0, min(5.0, watchdog_s / 3))
        self._store.set_timeout(timedelta(seconds=self._patience_s))
        self._has_store = True
        self._watched = range(ranks) if rank == 0 else sorted({0, (rank + 1) % ranks} - {rank})
        self._seen: dict[int, Seen] = {}
        self._count, self._closed = 0, threading.Event()
        self._answered = time.monotonic()
        self.verdict: str | None = None
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._run, self._guard_store)]

    def start(self) -> None:
        """Begin to beat and to watch. When this returns, the first sign of life of every rank that is watched is here,
        or did not come within the watchdog's time: who has given none can't be named, nor ended.
        """
        until = time.monotonic() + self._watchdog_s
        self._beat()
        while not self._seen.keys() >= set(self._watched) and time.monotonic() < until:
            time.sleep(_PAUSE_S)
            self._beat()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """The last sign of life says that this rank is done; nobody waits for it any more.

        Both threads end first: one that is inside the store while the interpreter ends aborts the process.
        """
        self._closed.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(self._heartbeat_s + self._watchdog_s + 2 * self._patience_s)

    def ended(self) -> str | None:
        """Why the job has been ended, if it has."""
        return self.verdict

    def _run(self) -> None:
        while not self._closed.wait(self._heartbeat_s):
            try:
                self._turn()
            except (DistNetworkError, DistStoreError) as error:
                self._lost_store(str(error))
        with suppress(DistNetworkError, DistStoreError):
            self._beat(closed=True)

    def _turn(self) -> None:
        self._beat()
        self._answered, self._has_store = time.monotonic(), True
        verdict = self._told()
        if verdict is not None:
            self._leave(verdict)
        reason = self._lost_rank() or (self._hang() if self._rank == 0 else None)
        if reason is not None:
            self._leave(self._elected(reason))

    def _beat(self, *, closed: bool = False) -> None:
        call, place, waits, since = self._position()
        if waits and since > self._watchdog_s / 2:
            self._store.set(f"{_TAIL}/{self._rank}", json.dumps(dict(self._tails())))
        self._count += 1
        beat = Beat(self._count, call, place, waits, since, platform.node(), os.getpid(), closed)
        self._store.set(f"{_BEAT}/{self._rank}", json.dumps(asdict(beat)))
        now = time.monotonic()
        keys = [f"{_BEAT}/{rank}" for rank in self._watched]
        there = [(rank, key) for rank, key in zip(self._watched, keys, strict=True) if self._store.check([key])]
        for (rank, _), text in zip(
            there, self._store.multi_get([key for _, key in there]) if there else (), strict=True
        ):
            peer = Beat(**json.loads(text))
            if rank not in self._seen or self._seen[rank].beat.count != peer.count:
                self._seen[rank] = Seen(peer, now)

    def lost(self, patience_s: float) -> str | None:
        """A rank that has gone or stands still, in words, as far as this rank sees one within so many seconds. For a
        collective that failed: the failure names a connection, not a rank.
        """
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            verdict = self._told()
            if verdict is not None:
                return verdict
            for rank, seen in list(self._seen.items()):
                state = _state(seen.beat)
                if rank != self._rank and not seen.beat.closed and state in _LOST:
                    return self._elected(f"rank {rank} {_LOST[state]}. {self._where(rank)}")
            time.sleep(self._heartbeat_s / 2)
        return None

    def _lost_rank(self) -> str | None:
        """A rank that gives no sign of life: it was killed, stopped, or can't be reached. One that others wait for is
        lost after half the time.
        """
        now = time.monotonic()
        waits, since = self._position()[2:]
        allowed = self._watchdog_s / 2 if waits and since > self._watchdog_s / 2 else self._watchdog_s
        for rank, seen in self._seen.items():
            if seen.beat.closed or rank == self._rank:
                continue
            state, silent = _state(seen.beat), now - seen.at
            if state == "gone" or silent > allowed:
                return f"rank {rank} {_LOST.get(state, 'gives no sign of life')}. {self._where(rank)}"
        return None

    def _hang(self) -> str | None:
        """Ranks that wait for longer than the watchdog's time, and what they wait for."""
        live = {rank: seen.beat for rank, seen in self._seen.items() if not seen.beat.closed}
        waiting = {rank: beat for rank, beat in live.items() if beat.waits and beat.since > self._watchdog_s}
        if not waiting:
            return None
        words = first_disagreement(self._all_tails())
        if words is not None:
            return f"control flow diverged. {words}"
        late = {rank: beat for rank, beat in live.items() if not beat.waits}
        if late:
            rank, beat = next(iter(late.items()))
            where = f"{beat.place} for {beat.since:.0f} s, {self._last(rank, beat)}"
            return f"rank {rank} is slow or stuck: {where}. {self._others(rank)}"
        return f"all ranks wait. {self._others(None)}"

    def _all_tails(self) -> Records:
        """What each rank last wrote of its collectives."""
        keys = [f"{_TAIL}/{rank}" for rank in range(self._ranks)]
        return {rank: json.loads(self._store.get(key)) for rank, key in enumerate(keys) if self._store.check([key])} | {
            self._rank: dict(self._tails())
        }

    def _guard_store(self) -> None:
        """The watching thread may itself hang where the store's process is stopped."""
        while not self._closed.wait(self._heartbeat_s):
            if time.monotonic() - self._answered > self._watchdog_s + 2 * self._patience_s:
                self._lost_store("it does not answer")

    def _lost_store(self, error: str) -> None:
        """The store is gone or silent: who held it, as far as can be told."""
        self._has_store = False
        seen = self._seen.get(0)
        silent = time.monotonic() - self._answered
        state = _state(seen.beat) if seen is not None else "unknown"
        if self._closed.is_set() or (silent < self._watchdog_s and state != "gone"):
            return
        if seen is None or state in ("running", "unknown"):
            self._leave(f"the job's store does not answer for {silent:.0f} s: {error}")
            return
        self._leave(f"rank 0 {_LOST[state]}. {self._where(0)}")

    def _told(self) -> str | None:
        """What another rank ended the job for."""
        try:
            return self._store.get(_VERDICT).decode() if self._store.check([_VERDICT]) else None
        except (DistNetworkError, DistStoreError):
            return None

    def _elected(self, reason: str) -> str:
        """The verdict all ranks tell: the first that was put into the store."""
        try:
            verdict: bytes = self._store.compare_set(_VERDICT, "", reason)
        except (DistNetworkError, DistStoreError):
            return reason
        return verdict.decode()

    def _leave(self, verdict: str) -> None:
        """Say it, and end this process, whatever it is in; then what can't end itself."""
        self.verdict = verdict
        self._journal.write("difference", text=verdict)
        lowest = min((rank for rank in range(self._ranks) if self._can_speak(rank)), default=self._rank)
        if self._rank == lowest:
            sys.stderr.write(f"moeparity ranks: {verdict}\n")
            sys.stderr.flush()
        time.sleep(_GRACE_S)
        for rank, seen in self._seen.items():
            if rank != self._rank and _state(seen.beat) == "stopped":
                with suppress(OSError):
                    os.kill(seen.beat.pid, signal.SIGKILL)
        self._journal.close()
        os._exit(EXIT_CODE)

    def _can_speak(self, rank: int) -> bool:
        seen = self._seen.get(rank)
        return rank == self._rank or (seen is not None and _state(seen.beat) == "running")

    def _where(self, rank: int) -> str:
        """Where a rank was when it last said so, and where the others are."""
        beat = self._seen[rank].beat
        return f"Its last sign of life: {beat.place}; {self._last(rank, beat)}. {self._others(rank)}"

    def _others(self, but: int | None) -> str:
        place, call = self._position()[1], self._position()[0]
        words = [
            f"rank {rank}: {seen.beat.place}, {self._last(rank, seen.beat)}"
            for rank, seen in sorted(self._seen.items())
            if rank not in (but, self._rank)
        ]
        own = "no call finished" if call is None else f"finished call {call}"
        return "; ".join([*words, f"rank {self._rank}: {place}, {own}"])

    def _last(self, rank: int, beat: Beat) -> str:
        """The last call that a rank finished by its last sign of life, and how far it came since."""
        words = "no call finished" if beat.call is None else f"finished call {beat.call}"
        key, reached = f"{REACHED}/{rank}", ""
        with suppress(DistNetworkError, DistStoreError):
            if self._has_store and self._store.check([key]):
                reached = self._store.get(key).decode()
        return f"{words}, reached {reached}" if reached else words


def _state(beat: Beat) -> str:
    """Whether the process of a peer on this host runs, is stopped or gone; `unknown` on another host."""
    if beat.host != platform.node():
        return "unknown"
    try:
        text = Path(f"/proc/{beat.pid}/stat").read_text("utf-8")
    except OSError:
        return "gone" if Path("/proc/self/stat").exists() else "unknown"
    state = text.rpartition(")")[2].split()[0]
    return {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}.get(state, "running")
