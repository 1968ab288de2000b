"""The guard of one rank: what it compares at start and at each call, and where it is at any moment."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from secrets import token_hex
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.utils.hooks import RemovableHandle

from moeparity.errors import RankError
from moeparity.evidence.weights.layout import WeightLayout
from moeparity.ranks import environment, fingerprint, rng
from moeparity.ranks.canonical import flat, manifest, named_tensors
from moeparity.ranks.collectives import CollectiveLog
from moeparity.ranks.difference import Records, difference, ranks_in_words
from moeparity.ranks.exchange import Exchange
from moeparity.ranks.journal import Journal
from moeparity.ranks.settings import settings
from moeparity.ranks.tails import Waiting, first_disagreement
from moeparity.ranks.watch import Watch

_LONGEST = 200
"""Characters of an error's words that other ranks are told."""

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Guard:
    """Holds the ranks of a job to each other; a context around a loop, with a `call` around each step of it.

    modules: whose weights are watched; `sharded` and `replicated` are globs of names of which each rank has its own
    part, or all. generators: those the program draws from, by name, beside torch's and Python's. extra: what else of
    the environment must be alike, in words. pin: switches are set as on rank 0 instead of refused. weights: how the
    weights lie; then a fingerprint for `moeparity weights` is written at start and after every update, into
    `folder/weights`. Further keywords are those of `Settings`.

    What differs ends in RankError on all ranks, with the same words. Without torch.distributed, or with one rank,
    weights are still watched.
    """

    entered: ClassVar[int] = 0
    """How many were entered in this process: all ranks enter them in the same order."""

    def __init__(
        self,
        *modules: nn.Module,
        sharded: Sequence[str] = (),
        replicated: Sequence[str] = (),
        generators: Mapping[str, torch.Generator] | None = None,
        extra: Mapping[str, str] | None = None,
        pin: bool = False,
        weights: WeightLayout | None = None,
        **given: Any,
    ) -> None:
        self.settings = settings(given)
        self.modules, self._sharded, self._replicated = modules, sharded, replicated
        self._layout = weights
        if weights is not None and self.settings.folder is None:
            raise RankError("weights=: expected a folder too, where fingerprints are written. Give folder=.")
        self._generators, self._extra, self._pin = dict(generators or {}), dict(extra or {}), pin
        self._live = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self._live else 0
        self.ranks = dist.get_world_size() if self._live else 1
        self.last: int | None = None
        self._next, self._place, self._waits, self._since = 0, "starting", False, time.monotonic()
        self._updated, self._looked = False, 0
        self._cache: dict[str, str] = {}
        self._held: dict[str, fingerprint.Held] = {}

    def __enter__(self) -> Self:
        self._journal = Journal(self.settings.folder, self.rank, self.ranks)
        self._log = CollectiveLog(self._checked if self.settings.collectives == "check" else None, lambda: self._place)
        self._exchange: Exchange | None = None
        self._watch: Watch | None = None
        # A thread that is inside the store while the interpreter ends aborts the process.
        atexit.register(self._at_exit, os.getpid())
        try:
            if self.ranks > 1:
                self._meet()
            self._start()
        except BaseException as error:
            self._fail(error)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if error is not None:
            self._fail(error)
            return
        try:
            self._end()
        except BaseException as failure:
            self._fail(failure)
            raise
        self._journal.write("end", last=self.last)
        self.close("at the end")

    def close(self, how: str) -> None:
        """This rank is done, `how` says in which way: nobody waits for it any more. Once closed, it stays so."""
        atexit.unregister(self._at_exit)
        if self._exchange is not None:
            self._exchange.close(how)
        if self._watch is not None:
            self._at(f"left {how}")
            self._watch.close()
        if CollectiveLog.active is self._log:
            self._log.__exit__()
        self._journal.close()
        if self._exchange is not None:
            self._exchange.part(min(5.0, max(1.0, self.settings.watchdog_s / 3)))
        self._exchange = self._watch = None

    @contextmanager
    def call(self, tensors: object = None, *, call_id: int | None = None, **envelope: object) -> Iterator[None]:
        """One call: its envelope (plain values: chunk, action, init_cache, cache_epoch ...) and its tensors, in any
        nest, are compared before it begins. `call_id` grows from call to call; they are counted where it is left out.

        Raises RankError where ranks differ, and where call_id does not grow.
        """
        number = self._next if call_id is None else call_id
        if number < self._next:
            raise RankError(f"call_id={number}: expected {self._next} or more, since call {self.last} was the last.")
        self._next = number + 1
        self._guarded(number, {"call_id": number, **envelope}, tensors)
        self._at(f"in call {number}")
        yield
        self.last = number
        self._journal.write("done", call=number)
        self._at(f"between calls, after {number}")

    def attach(self, module: nn.Module, name: str = "forward") -> list[RemovableHandle]:
        """Guard every forward of a module as a call, with its tensors as payload: no change in the loop."""
        running: list[Any] = []

        def before(_: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
            context = self.call({**{str(place): held for place, held in enumerate(args)}, **kwargs}, action=name)
            context.__enter__()
            running.append(context)

        def after(*_: object) -> None:
            running.pop().__exit__(None, None, None)

        return [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, always_call=False),
        ]

    def guarded(self, function: Callable[Given, Result]) -> Callable[Given, Result]:
        """A function of which each call is guarded: the tensors among its arguments are payload, the rest envelope."""

        @wraps(function)
        def called(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            given = {**{str(place): held for place, held in enumerate(args)}, **kwargs}
            tensors = named_tensors(given)
            plain = {name: held for name, held in given.items() if not named_tensors({name: held})}
            with self.call(tensors, action=function.__name__, arguments=plain):
                return function(*args, **kwargs)

        return called

    @contextmanager
    def update(self) -> Iterator[None]:
        """Weights may change in here (an optimizer's step, a weight update); afterwards they are looked at anew."""
        yield
        self._updated = True

    def cache(self, **fields: object) -> None:
        """Where the KV cache is in its life: epoch, start, recompute, steps, sampled indices. Compared every
        `cache_every` calls, and at once where the epoch is another than before.
        """
        before = self._cache.get("cache.cache_epoch")
        self._cache = flat(fields, "cache")
        if before is not None and before != self._cache.get("cache.cache_epoch") and self.modules:
            self._weights(f"call {self._next}, at a new cache epoch")

    def _meet(self) -> None:
        """From now on other ranks see this one, and it sees them."""
        Guard.entered += 1
        store = PrefixStore(f"moeparity.ranks/{Guard.entered}", _get_default_store())
        # Asked first over the connection that is there: where the store is gone, a new one waits for minutes.
        job: bytes = store.compare_set("job", "", token_hex(8))
        if self.settings.collectives != "off":
            self._log.__enter__()
        heartbeat_s, watchdog_s = self.settings.heartbeat_s, self.settings.watchdog_s
        self._watch = Watch(
            store,
            job.decode(),
            self.rank,
            self.ranks,
            self._journal,
            self._position,
            self._log,
            heartbeat_s,
            watchdog_s,
        )
        self._exchange = Exchange(store, self.rank, self.ranks, self._watch.ended, 2 * watchdog_s + 20)
        self._watch.start()

    def _end(self) -> None:
        """All ranks end alike: after as many calls and the same collectives."""
        self._at("at the end")
        self._agree(self._log.record(), "the end", self._judge)

    def _fail(self, error: BaseException) -> None:
        """This rank leaves by an error. Raises RankError where another rank is why: a collective that failed names a
        connection, not a rank.
        """
        words = None
        if isinstance(error, RuntimeError) and self._watch is not None:
            words = self._watch.lost(3 * self.settings.heartbeat_s)
        if words is None and isinstance(error, DistNetworkError | DistStoreError):
            words = f"{self._place}: the job's store is gone, and the process that held it: {error}"
        if words is not None:
            self._journal.write("difference", text=words)
        lines = str(error).splitlines()
        self.close(f"{self._place} by {type(error).__name__}{f': {lines[0][:_LONGEST]}' if lines else ''}")
        if words is not None:
            raise RankError(words) from error

    def _at_exit(self, process: int) -> None:
        if os.getpid() == process:
            self.close("at the end of its program, without leaving its guard")

    def _start(self) -> None:
        fields = environment.report(self.modules, self._extra)
        if self._exchange is not None:
            records = self._gathered(fields, "at start, to pin switches")
            if self._pin:
                self._journal.write("pinned", switches=environment.pin(records))
                fields = environment.report(self.modules, self._extra)
            self._agree(fields, "at start", environment.unequal)
        self._journal.write("environment", fields=fields)
        self._baseline("at start")
        self._at("before the first call")

    def _baseline(self, at: str) -> None:
        """What this rank holds of the model from now on, and that all parts are where they should be."""
        if not self.modules or not self.settings.weights_every:
            return
        self._held = fingerprint.fingerprint(
            self.modules, self.rank, sharded=self._sharded, replicated=self._replicated
        )
        self._looked = self._next
        if self._layout is not None and self.settings.folder is not None:
            moment = self.settings.folder / "weights" / at.replace(" ", "-")
            self._layout.write(moment, self.modules, self.rank, self.ranks)
        self._journal.write("weights", fields={name: held.bits for name, held in self._held.items()})
        words = fingerprint.misplaced(self._gathered(fingerprint.bits_of(self._held), f"{at}, looking at weights anew"))
        if words is not None:
            self._differ(f"{at}: {words}.")

    def _guarded(self, number: int, envelope: Mapping[str, object], tensors: object) -> None:
        at = f"call {number}"
        self._at(f"at the guard of call {number}")
        if self._updated:
            self._updated = False
            self._baseline(at)
        elif self._held and number - self._looked >= self.settings.weights_every:
            self._weights(at)
            self._looked = number
        fields = self._record(number, envelope, tensors)
        self._journal.write("call", call=number, fields=fields)
        if fields:
            self._agree(fields, at, self._judge)

    def _record(self, number: int, envelope: Mapping[str, object], tensors: object) -> dict[str, str]:
        """What is compared at this call."""
        # What came first comes first: a draw too many makes other inputs, and what was called before makes either.
        fields = self._log.record()
        if self.settings.rng == "lockstep":
            fields |= rng.digests(rng.states(self._generators))
        if self.settings.inputs_every and number % self.settings.inputs_every == 0:
            fields |= flat(envelope, "envelope") | manifest(named_tensors(tensors), self.settings.sample_bytes)
        if self.settings.cache_every and number % self.settings.cache_every == 0:
            fields |= self._cache
        return fields

    def _weights(self, at: str) -> None:
        """That this rank's weights are those of the baseline; all ranks hear of it where one's are not."""
        now = fingerprint.fingerprint(self.modules, self.rank, sharded=self._sharded, replicated=self._replicated)
        names = fingerprint.changed(self._held, now)
        bits = {f"weights.{name}": f"changed to {now[name].bits}" if name in now else "gone" for name in names}
        self._agree(bits, at, difference)
        if names:
            self._differ(f"{at}: weights.{names[0]} changed on all ranks outside an update, and {len(names) - 1} more.")

    def _agree(
        self, fields: Mapping[str, str], at: str, judge: Callable[[Records], str | None], place: str | None = None
    ) -> None:
        if self._exchange is None:
            return
        try:
            with self._waiting():
                self._exchange.agree(fields, at, judge, place)
        except RankError as error:
            self._journal.write("difference", text=str(error))
            raise

    def _gathered(self, fields: Mapping[str, str], at: str) -> Records:
        if self._exchange is None:
            return {self.rank: fields}
        with self._waiting():
            return self._exchange.gathered(fields, at)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Where this rank is, it waits for others meanwhile."""
        self._waits, self._since = True, time.monotonic()
        try:
            yield
        finally:
            self._waits, self._since = False, time.monotonic()

    def _judge(self, records: Records) -> str | None:
        """What differs at a call; of generators by how many draws, of collectives the first that is another."""
        words = difference(records)
        assert self._exchange is not None, "ranks are compared over an exchange"
        name = (words or "").partition(":")[0]
        if name.startswith("rng."):
            own = {name: state.hex() for name, state in rng.states(self._generators).items()}
            states = self._exchange.gathered(own, "generators")
            kind = name.removeprefix("rng.")
            return rng.apart(kind, {rank: bytes.fromhex(record[kind]) for rank, record in states.items()})
        if name.startswith("collectives."):
            tails = self._exchange.gathered(self._log.tails(), "collectives")
            return first_disagreement(tails, dict.fromkeys(tails, Waiting(self._place))) or words
        return words

    def _checked(self, group: str, what: str, number: int) -> None:
        """Before a collective runs: that all ranks of the job are about to run the same. Groups of some ranks are
        compared at the guards.
        """
        if self._exchange is None or len(self._log.groups[group].ranks) != self.ranks:
            return
        exchange, place = self._exchange, self._place
        self._at(f"{place}, before collective {number} of {group}")
        op, _, site = what.rpartition(" at ")

        def judge(records: Records) -> str | None:
            # A rank that skipped it may have left the call in which others are.
            callers: dict[str, list[int]] = {}
            for rank, record in exchange.gathered({"site": f"at {site} {place}"}, "call sites").items():
                callers.setdefault(record["site"], []).append(rank)
            called = "; ".join(f"{ranks_in_words(ranks)} {where}" for where, ranks in callers.items())
            return f"{difference(records)}; called by {called}"

        at = f"collective {number} of {group}"
        self._agree({"collective": f"{number} {op}"}, at, judge, f"{place}, {at}")
        self._at(place)

    def _differ(self, words: str) -> None:
        self._journal.write("difference", text=words)
        raise RankError(words)

    def _at(self, place: str) -> None:
        self._place, self._since = place, time.monotonic()

    def _position(self) -> tuple[int | None, str, bool, str, float]:
        """Where this rank is; asked by the watching thread: see `Beat`."""
        within, place, since = "", self._place, self._since
        running = self._log.running()
        if running is not None:
            within, words, since = running
            place = f"{place}, {words}"
        return self.last, place, self._waits or running is not None, within, time.monotonic() - since
