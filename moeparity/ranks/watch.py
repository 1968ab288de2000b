"""The watchdog: a thread that says where its rank is, watches others, and ends the job when one of them is lost."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore

from moeparity.ranks.beat import LOST, Beat, Clock, Sighting, state
from moeparity.ranks.collective_log import CollectiveLog
from moeparity.ranks.differing_fields import ranks_in_words
from moeparity.ranks.exchange import REACHED
from moeparity.ranks.journal import Journal
from moeparity.ranks.notes import Note, finished, note
from moeparity.ranks.tails import Tails, Waiting

EXIT_CODE = 1
"""The exit code of a process that the watchdog ends, which says that ranks are not in step."""

_BEAT, _VERDICT = "beat", "verdict"
_PAUSE_S = 0.02
_GRACE_S = 1.0
"""Ranks have this many seconds to read the verdict and write their journals; then stopped ranks are killed and notes
removed.
"""


class Watch:
    """Gives a sign of life every `heartbeat_s`. The job is ended if a rank gave none for `watchdog_s`, or if others
    waited for it that long: one rank says why on standard error, and all leave with EXIT_CODE, even from inside a
    collective.

    position: tells where this rank is: the last call that it finished, its place, whether it waits. The first rank that
    is in its guard leads, and looks at all ranks. Every other rank looks at those up to the leader, of which rank 0 may
    hold the store, and at the next rank. A stopped rank can't end itself; on the same host it is killed.
    """

    def __init__(
        self,
        store: PrefixStore,
        job: str,
        rank: int,
        ranks: int,
        journal: Journal,
        position: Callable[[], tuple[int, int | None, str, bool, str, float]],
        log: CollectiveLog,
        heartbeat_s: float,
        watchdog_s: float,
    ) -> None:
        self._store: PrefixStore = store.clone()  # type: ignore[attr-defined]
        self._rank, self._ranks, self._journal = rank, ranks, journal
        self._position = position
        self._heartbeat_s, self._watchdog_s = heartbeat_s, watchdog_s
        self._patience_s = max(1.0, min(5.0, watchdog_s / 3))
        self._store.set_timeout(timedelta(seconds=self._patience_s))
        self._has_store = True
        self._sightings: dict[int, Sighting] = {}
        self._clock = Clock(watchdog_s / 4)
        self._tails = Tails(self._store, job, rank, ranks, log)
        self._count, self._closed = 0, threading.Event()
        self._leaving = threading.Lock()
        self._begun = self._answered = time.monotonic()
        self.verdict: str | None = None
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._run, self._guard_store)]

    def start(self) -> None:
        """Begin to give signs of life and to watch. Returns when every watched rank's first sign of life is there, or
        did not come within `watchdog_s`; a rank that has given none can't be ended.
        """
        until = time.monotonic() + self._watchdog_s
        while True:
            # A store that answers slowly, as under load, is asked again.
            with suppress(DistStoreError):
                self._beat()
            if self._sightings.keys() >= set(self._watched()) or time.monotonic() >= until:
                break
            time.sleep(_PAUSE_S)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Give a last sign of life, which says that this rank is done, so that nobody waits for it any more.

        Both threads end before that, since one that is inside the store while the interpreter ends would abort the
        process.
        """
        self._closed.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(self._heartbeat_s + self._watchdog_s + 2 * self._patience_s)
        if self.verdict is not None:
            time.sleep(_GRACE_S)
            self._clear()
        self._tails.notes.close()

    def ended(self) -> str | None:
        """Why the job has been ended, if it has, by this rank or another."""
        return self.verdict or self._verdict_of_others()

    def _leads(self) -> int:
        """The first rank that is in its guard, as far as this rank knows."""
        awaited = time.monotonic() - self._begun < self._watchdog_s
        for rank in range(self._rank):
            if not self._sightings[rank].beat.closed if rank in self._sightings else awaited:
                return rank
        return self._rank

    def _watched(self) -> Iterable[int]:
        leader = self._leads()
        if leader == self._rank:
            return range(self._ranks)
        return sorted({*range(leader + 1), (self._rank + 1) % self._ranks} - {self._rank})

    def _run(self) -> None:
        while not self._closed.wait(self._heartbeat_s):
            try:
                self._turn()
            except (DistNetworkError, DistStoreError) as error:
                self._lost_store(str(error))
        with suppress(DistNetworkError, DistStoreError):
            self._beat(closed=True)

    def _turn(self) -> None:
        self._clock.turn()
        self._beat()
        verdict = self._verdict_of_others()
        if verdict is None:
            reason = self._lost_rank() or (self._hang() if self._leads() == self._rank else None)
            verdict = None if reason is None else self._elected(reason)
        if verdict is not None:
            self._leave(verdict)

    def _beat(self, *, closed: bool = False) -> None:
        self._tails.tell()
        self._count += 1
        beat = Beat(self._count, *self._position(), platform.node(), os.getpid(), closed)
        self._store.set(f"{_BEAT}/{self._rank}", json.dumps(asdict(beat)))
        there = [rank for rank in self._watched() if self._store.check([f"{_BEAT}/{rank}"])]
        texts = self._store.multi_get([f"{_BEAT}/{rank}" for rank in there]) if there else []
        for rank, text in zip(there, texts, strict=True):
            peer = Beat(**json.loads(text))
            before = self._sightings.get(rank)
            if before is None or before.beat.count != peer.count:
                stays = before is not None and before.waits is not None and before.beat.since <= peer.since
                began = before.waits if before is not None and stays else self._clock.seconds
                self._sightings[rank] = Sighting(peer, self._clock.seconds, began if peer.waits else None)
        self._answered, self._has_store = time.monotonic(), True

    def lost(self, patience_s: float) -> str | None:
        """Why a collective failed on this rank, in words, as far as it becomes known within `patience_s` seconds:
        control flow that diverged, or a rank that is gone, stands still or has left.
        """
        begun, allowed = time.monotonic(), max(patience_s, self._patience_s)
        with suppress(DistNetworkError, DistStoreError):
            self._tails.tell()
        while (waited := time.monotonic() - begun) < allowed:
            verdict = self._verdict_of_others() or self._parted()
            for rank, watched in list(self._sightings.items()) if verdict is None else ():
                # Other ranks get some time to say what they have called.
                if rank != self._rank and waited > patience_s * 2 / 3:
                    if watched.beat.closed:
                        verdict = f"rank {rank} is not there any more: it {watched.beat.place}. {self._others(rank)}"
                    elif (fate := state(watched.beat)) in LOST:
                        verdict = f"rank {rank} {LOST[fate]}. {self._where(rank)}"
            if verdict is not None:
                self.verdict = self._elected(verdict)
                return self.verdict
            time.sleep(self._heartbeat_s / 2)
        return None

    def _lost_rank(self) -> str | None:
        """A rank that gives no sign of life, in words: it was killed, stopped, or can't be reached. A stopped rank that
        others wait for is lost after half of `watchdog_s`. The backend may have killed it because of what others
        called.
        """
        now_s, (*_, waits, _, since) = self._clock.seconds, self._position()
        half = self._watchdog_s / 2
        # Others' signs of life are not read any more, or not yet.
        watched = {rank: self._sightings[rank] for rank in self._watched() if rank in self._sightings}
        for rank, member in watched.items():
            if member.beat.closed or rank == self._rank:
                continue
            how = state(member.beat)
            if how == "gone":
                member.gone = now_s if member.gone is None else member.gone
                if now_s - member.gone > 2 * self._heartbeat_s:
                    return self._parted() or f"rank {rank} {LOST[how]}. {self._where(rank)}"
            elif now_s - member.at > (half if how == "stopped" and waits and since > half else self._watchdog_s):
                return f"rank {rank} {LOST.get(how, 'gives no sign of life')}. {self._where(rank)}"
        return None

    def _hang(self) -> str | None:
        """Ranks that have waited for longer than `watchdog_s`, and for what, in words."""
        live = {rank: member.beat for rank, member in self._sightings.items() if not member.beat.closed}
        ago = {
            rank: self._clock.seconds - member.waits
            for rank, member in self._sightings.items()
            if member.waits is not None
        }
        if not any(min(ago.get(rank, 0), beat.since) > self._watchdog_s for rank, beat in live.items()):
            return None
        missing = set(range(self._ranks)) - self._sightings.keys()
        if missing:
            return f"{ranks_in_words(missing)} gave no sign of life: not in the guard yet. {self._others(None)}"
        # Half of `watchdog_s` is longer than a heartbeat, so these ranks have told all their collectives.
        half = self._watchdog_s / 2
        still = {rank: beat for rank, beat in live.items() if beat.waits and beat.since > half}
        if words := self._tails.diverged({rank: Waiting(beat.place, beat.within) for rank, beat in still.items()}):
            return words
        for rank, member in self._sightings.items():
            if member.beat.closed:
                return f"rank {rank} is not there any more: it {member.beat.place}. {self._others(rank)}"
        late = {rank: beat for rank, beat in live.items() if not beat.waits}
        if late:
            rank, beat = next(iter(late.items()))
            where = f"{beat.place} for {beat.since:.0f} s, {finished(beat.call)}"
            return f"rank {rank} is slow or stuck: {where}. {self._others(rank)}"
        return f"all ranks wait. {self._others(None)}"

    def _parted(self) -> str | None:
        """Where control flow diverged, if it did; the backend may have ended a rank because of that."""
        words = self._tails.diverged({}, has_store=self._has_store)
        gone = [
            rank for rank, member in self._sightings.items() if not member.beat.closed and state(member.beat) == "gone"
        ]
        return f"{words}. {ranks_in_words(gone)} was killed" if words and gone else words

    def _guard_store(self) -> None:
        """Watch the store itself, and end this process if it does not answer: then the watching thread may hang too."""
        clock, answered, heard = Clock(self._watchdog_s / 4), self._answered, 0.0
        while not self._closed.wait(self._heartbeat_s):
            clock.turn()
            if self._answered != answered:
                answered, heard = self._answered, clock.seconds
            elif (verdict := self._tails.notes.verdict()) is not None:
                self._leave(verdict)
            if clock.seconds - heard > self._watchdog_s + 2 * self._patience_s:
                self._lost_store("it does not answer")

    def _lost_store(self, error: str) -> None:
        """The store is gone or silent: end the job, and say which process held it, as far as that is known."""
        self._has_store = False
        member = self._sightings.get(0)
        silent = time.monotonic() - self._answered
        how = state(member.beat) if member is not None else "unknown"
        if self._closed.is_set() or (self._verdict_of_others() is None and silent < self._watchdog_s and how != "gone"):
            return
        if member is None:
            reason = f"the job's store has not answered for {silent:.0f} s, and rank 0 was not in its guard: {error}"
        elif member.beat.closed:
            reason = f"rank 0 is not there any more, nor is the job's store: it {member.beat.place}. {self._others(0)}"
        elif how in LOST:
            reason = self._parted() or f"rank 0 {LOST[how]}. {self._where(0)}"
        else:
            reason = f"the job's store has not answered for {silent:.0f} s: {error}"
        self._leave(self._elected(reason))

    def _verdict_of_others(self) -> str | None:
        """The reason for which another rank ended the job; None if none did."""
        with suppress(DistNetworkError, DistStoreError):
            if self._has_store:
                return self._store.get(_VERDICT).decode() if self._store.check([_VERDICT]) else None
        return self._tails.notes.verdict()

    def _elected(self, reason: str) -> str:
        """The verdict that all ranks tell: the first one put into the store, and into notes for ranks that find the
        store gone.
        """
        with suppress(DistNetworkError, DistStoreError):
            if self._has_store:
                reason = self._store.compare_set(_VERDICT, "", reason).decode()
        return self._tails.notes.elected(reason)

    def _leave(self, verdict: str) -> None:
        """Print the verdict and end this process, whatever it is doing; then those that can't end themselves. One
        thread does it.
        """
        if not self._leaving.acquire(blocking=False):
            return
        self.verdict = verdict
        self._journal.write("difference", text=verdict)
        lowest = min((rank for rank in range(self._ranks) if self._can_speak(rank)), default=self._rank)
        if self._rank == lowest:
            sys.stderr.write(f"moeparity ranks: {verdict}\n")
            sys.stderr.flush()
        time.sleep(_GRACE_S)
        self._clear()
        if self._closed.is_set():
            # The rank's own thread has been told, or has failed because of it, and ends by itself.
            return
        self._tails.notes.close()
        self._journal.close()
        os._exit(EXIT_CODE)

    def _clear(self) -> None:
        """Remove notes of stopped ranks on this host, which can neither end nor clean up, while they can be told from
        ranks that are leaving; then kill them.
        """
        self._tails.notes.clear()
        for rank, member in self._sightings.items():
            if rank != self._rank and not member.beat.closed and state(member.beat) == "stopped":
                with suppress(OSError):
                    os.kill(member.beat.pid, signal.SIGKILL)

    def _can_speak(self, rank: int) -> bool:
        member = self._sightings.get(rank)
        return rank == self._rank or (member is not None and state(member.beat) == "running")

    def _where(self, rank: int) -> str:
        """Where a rank was when it last said so, and where the others are, in words."""
        last = self._last_place(rank)
        return f"Its last sign of life: {last.place}; {finished(last.call)}. {self._others(rank)}"

    def _last_place(self, rank: int) -> Note:
        """Where a rank was by its last sign of life, or by something later: what it told those who wait at a guard, or
        its notes, which ranks on its host can read.
        """
        beat, key = self._sightings[rank].beat, f"{REACHED}/{rank}"
        notes = [Note(beat.moves, beat.call, beat.place), self._tails.notes.places().get(rank)]
        with suppress(DistNetworkError, DistStoreError):
            if self._has_store and self._store.check([key]):
                notes.append(note(self._store.get(key).decode()))
        # For one place the sign of life tells most: in which collective the rank is there.
        return max((each for each in notes if each is not None), key=lambda each: each.moves)

    def _others(self, but: int | None) -> str:
        _, call, place = self._position()[:3]
        last_notes = {rank: self._last_place(rank) for rank in sorted(self._sightings.keys() - {but, self._rank})}
        words = [f"rank {rank}: {last.place}, {finished(last.call)}" for rank, last in last_notes.items()]
        return "; ".join([*words, f"rank {self._rank}: {place}, {finished(call)}"])
