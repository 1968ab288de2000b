"""The guard of one rank: what it compares at the start and at each call, and where the rank is at any moment."""

from __future__ import annotations

import atexit
import os
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
from moeparity.evidence.census.outcome import Derived, faults, in_words, summed
from moeparity.evidence.census.watch import DerivedWatch
from moeparity.evidence.weights.weight_layout import WeightLayout
from moeparity.output.words import few
from moeparity.ranks import environment, parameter_digests, rng
from moeparity.ranks.canonical import flat, manifest, named_tensors
from moeparity.ranks.collective_log import CollectiveLog
from moeparity.ranks.comparison import Comparison
from moeparity.ranks.differing_fields import difference, first_finding
from moeparity.ranks.exchange import Exchange
from moeparity.ranks.journal import Journal
from moeparity.ranks.settings import settings
from moeparity.ranks.watch import Watch
from moeparity.ranks.watched_weights import WatchedWeights
from moeparity.ranks.whereabouts import Whereabouts

_LONGEST = 200
"""At most this many characters of an error's message are told to other ranks."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Guard:
    """Compares the ranks of a job with each other. It is a context around a loop, with a `call` around each step.

    modules: their weights are watched. sharded, replicated: globs of names of parameters; each rank holds its own part
    of a sharded one, and all of a replicated one. generators: from which the program draws, by name, besides torch's
    and Python's. extra: further parts of the environment that must be alike, in words. pin: set switches as on rank 0
    instead of refusing. weights: the layout of the weights; then a fingerprint for `moeparity weights` is written to
    `folder/weights` at the start and after every update. snapshots: globs of paths of tensors that hold earlier weights
    on purpose. Further keywords are those of `Settings`.

    A difference raises RankError on all ranks, with the same words. Without torch.distributed, or with one rank, only
    weights are watched.
    """

    entered: ClassVar[int] = 0
    """How many guards were entered in this process; all ranks enter them in the same order."""

    def __init__(
        self,
        *modules: nn.Module,
        sharded: Sequence[str] = (),
        replicated: Sequence[str] = (),
        generators: Mapping[str, torch.Generator] | None = None,
        extra: Mapping[str, str] | None = None,
        pin: bool = False,
        weights: WeightLayout | None = None,
        snapshots: Sequence[str] = (),
        **arguments: Any,
    ) -> None:
        self.settings = settings(arguments)
        self._layout = weights
        if weights is not None and self.settings.folder is None:
            raise RankError("weights=: expected a folder too, where fingerprints are written. Give folder=.")
        self._generators, self._extra, self._pin = dict(generators or {}), dict(extra or {}), pin
        self._live = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self._live else 0
        self.ranks = dist.get_world_size() if self._live else 1
        self._whereabouts, self._next = Whereabouts(), 0
        self._weights = WatchedWeights(modules, self.rank, self.settings.weights_every, sharded, replicated)
        self._derived = DerivedWatch(self.settings.weights_every if modules else 0)
        self._snapshots = snapshots
        self._cache: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._journal = Journal(self.settings.folder, self.rank, self.ranks)
        self._comparison = Comparison(self.rank, self.ranks, self._journal, self._whereabouts, self._generators)
        checked = self._comparison.collective if self.settings.collectives == "check" else None
        self._log = self._comparison.log = CollectiveLog(checked, lambda: self._whereabouts.place)
        self._watch: Watch | None = None
        # A thread that is inside the store while the interpreter ends would abort the process.
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
        self._journal.write("end", last=self._whereabouts.last)
        self.close("at the end")

    def close(self, how: str) -> None:
        """Declare that this rank is done, and in which way (`how`), so that nobody waits for it. A closed guard
        stays closed.
        """
        atexit.unregister(self._at_exit)
        exchange = self._comparison.exchange
        if exchange is not None:
            exchange.close(how)
        if self._watch is not None:
            self._whereabouts.at(f"left {how}")
            self._watch.close()
        if CollectiveLog.active is self._log:
            self._log.__exit__()
        self._journal.close()
        if exchange is not None:
            exchange.part(min(5.0, max(1.0, self.settings.watchdog_s / 3)))
        self._comparison.exchange = self._watch = None

    @contextmanager
    def call(self, tensors: object = None, *, call_id: int | None = None, **envelope: object) -> Iterator[None]:
        """Guard one call: its envelope (plain values: chunk, action, init_cache, cache_epoch ...) and its tensors,
        nested in any way, are compared before it begins. `call_id` grows from call to call; without it, calls are
        counted.

        Raises RankError if ranks differ, and if call_id does not grow.
        """
        number = self._next if call_id is None else call_id
        if number < self._next:
            last = self._whereabouts.last
            raise RankError(f"call_id={number}: expected {self._next} or more, since call {last} was the last.")
        self._next = number + 1
        self._guarded(number, {"call_id": number, **envelope}, tensors)
        self._whereabouts.at(f"in call {number}")
        yield
        self._whereabouts.last = number
        self._follow(self._derived.called(self._weights.modules), f"behind call {number}")
        self._journal.write("done", call=number)
        self._whereabouts.at(f"between calls, after {number}")

    def attach(self, module: nn.Module, name: str = "forward") -> list[RemovableHandle]:
        """Guard every forward of a module as a call, with its tensors as payload, without a change in the loop."""
        running: list[Any] = []

        def before(_: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
            context = self.call({**{str(place): value for place, value in enumerate(args)}, **kwargs}, action=name)
            context.__enter__()
            running.append(context)

        def after(*_: object) -> None:
            running.pop().__exit__(None, None, None)

        return [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, always_call=False),
        ]

    def guarded(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """The function with each call guarded: tensors among its arguments are payload, the other arguments the
        envelope.
        """

        @wraps(function)
        def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            by_name = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
            tensors = named_tensors(by_name)
            plain = {name: value for name, value in by_name.items() if not named_tensors({name: value})}
            with self.call(tensors, action=function.__name__, arguments=plain):
                return function(*args, **kwargs)

        return called

    @contextmanager
    def update(self) -> Iterator[None]:
        """A context in which weights may change (an optimizer's step, a weight update); they are looked at anew
        afterwards.
        """
        yield
        self._weights.updated = True
        self._derived.updated()

    def cache(self, **fields: object) -> None:
        """State where the KV cache is in its life: epoch, start, recompute, steps, sampled indices. It is compared
        every `cache_every` calls, and at once if the epoch changes.
        """
        before = self._cache.get("cache.cache_epoch")
        self._cache = flat(fields, "cache")
        if before is not None and before != self._cache.get("cache.cache_epoch") and self._weights.modules:
            self._unchanged(f"call {self._next}, at a new cache epoch")

    def _meet(self) -> None:
        """Join the other ranks: from now on each sees the others' signs of life."""
        Guard.entered += 1
        store = PrefixStore(f"moeparity.ranks/{Guard.entered}", _get_default_store())
        # Asked over the existing connection first: if the store is gone, a new connection would wait for minutes.
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
            lambda: self._whereabouts.position(self._log),
            self._log,
            heartbeat_s,
            watchdog_s,
        )
        self._whereabouts.notes = self._log.notes
        self._comparison.exchange = Exchange(store, self.rank, self.ranks, self._watch.ended, 2 * watchdog_s + 20)
        self._watch.start()

    def _end(self) -> None:
        """Check that all ranks end alike: after the same number of calls and the same collectives."""
        self._whereabouts.at("at the end")
        self._follow(self._derived.ended(self._weights.modules), "at the end")
        self._comparison.agree(self._log.record(), "the end", self._comparison.judge)

    def _fail(self, error: BaseException) -> None:
        """This rank leaves by an error. Raises RankError if another rank is the cause: a collective that failed names a
        connection, not a rank.
        """
        words = None
        if isinstance(error, RuntimeError) and self._watch is not None:
            words = self._watch.lost(3 * self.settings.heartbeat_s)
        if words is None and isinstance(error, DistNetworkError | DistStoreError):
            words = f"{self._whereabouts.place}: the job's store is gone, and the process that held it: {error}"
        if words is not None:
            self._journal.write("difference", text=words)
        lines = str(error).splitlines()
        how = f"{self._whereabouts.place} by {type(error).__name__}{f': {lines[0][:_LONGEST]}' if lines else ''}"
        if words is None and not isinstance(error, RankError):
            self._journal.write("left", text=how)
        self.close(how)
        if words is not None:
            raise RankError(words) from error

    def _at_exit(self, process: int) -> None:
        if os.getpid() == process:
            self.close("at the end of its program, without leaving its guard")

    def _start(self) -> None:
        fields = environment.report(self._weights.modules, self._extra)
        if self._comparison.exchange is not None:
            records = self._comparison.gathered(fields, "at start, to pin switches")
            if self._pin:
                self._journal.write("pinned", switches=environment.pin(records))
                fields = environment.report(self._weights.modules, self._extra)
            self._comparison.agree(fields, "at start", environment.unequal)
        self._journal.write("environment", fields=fields)
        self._baseline("at start")
        self._derived.begin(self._weights.modules)
        self._whereabouts.at("before the first call")

    def _baseline(self, at: str) -> None:
        """Take what this rank holds of the model as the new baseline, and check that all parts are where they should
        be.
        """
        if not self._weights.watched:
            return
        baseline = self._weights.take(self._next)
        if self._layout is not None and self.settings.folder is not None:
            moment = self.settings.folder / "weights" / at.replace(" ", "-")
            self._layout.write(moment, self._weights.modules, self.rank, self.ranks)
        bits = {name: tensor.bits for name, tensor in baseline.items()}
        self._journal.write("weights", fields=bits, undeclared=[name for name in bits if not baseline[name].part])
        records = self._comparison.gathered(parameter_digests.bits_of(baseline), f"{at}, looking at weights anew")
        words = parameter_digests.misplaced(records)
        if words is not None:
            self._comparison.differ(f"{at}: {words}.")

    def _guarded(self, number: int, envelope: Mapping[str, object], tensors: object) -> None:
        at = f"call {number}"
        self._whereabouts.at(f"at the guard of call {number}")
        if self._weights.updated:
            self._baseline(at)
        elif self._weights.due(number):
            self._unchanged(at)
        fields = self._record(number, envelope, tensors)
        self._journal.write("call", call=number, fields=fields)
        if fields:
            self._comparison.call(fields, number)

    def _record(self, number: int, envelope: Mapping[str, object], tensors: object) -> dict[str, str]:
        """The fields that are compared at this call."""
        # Causes come first: an additional draw changes inputs, and an earlier collective may change either.
        fields = self._log.record()
        if self.settings.rng == "lockstep":
            fields |= rng.digests(rng.states(self._generators))
        if self.settings.inputs_every and number % self.settings.inputs_every == 0:
            fields |= flat(envelope, "envelope") | manifest(named_tensors(tensors), self.settings.sample_bytes)
        if self.settings.cache_every and number % self.settings.cache_every == 0:
            fields |= self._cache
        return fields

    def _follow(self, results: Sequence[Derived] | None, at: str) -> None:
        """Check that tensors made of weights followed these; all ranks are told of those that did not on one rank."""
        if results is None:
            return
        self._journal.write("derived", at=at, summary=summed(results))
        stale = {each.path: in_words(each) for each in faults(results, self._snapshots)}
        records = self._comparison.gathered(stale, f"{at}, looking at what was made of weights")
        words = first_finding(records)
        if words is not None:
            self._comparison.differ(f"{at}: {words}.")

    def _unchanged(self, at: str) -> None:
        """Check that this rank's weights are those of the baseline; all ranks are told if one rank's are not."""
        changes = self._weights.changes()
        self._comparison.agree(changes, at, difference)
        if changes:
            self._comparison.differ(f"{at}: {few(list(changes), 1)} changed on all ranks outside an update.")
