"""The collectives of a rank in the order in which they were called, by process group: compared, and looked at in a
hang.

What Python calls is seen at the methods of ProcessGroup, whatever the backend. What C++ calls by itself (the buckets of
DistributedDataParallel) and functional collectives (DTensor) are seen at their operators, below autograd. Functional
collectives of tensors that were made in inference mode are not seen.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from moeparity.ranks.difference import Records, ranks_in_words

KEPT = 64
"""Of each group so many of the last collectives are kept, to find the first that differs."""

METHODS = (
    "allreduce", "allreduce_coalesced", "broadcast", "allgather", "allgather_into_tensor_coalesced",
    "_allgather_base", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "gather", "scatter", "alltoall", "alltoall_base", "barrier",
)  # fmt: skip
"""Methods of ProcessGroup that all ranks of the group call. Sends and receives are of two ranks only."""

_OPERATORS = ("allreduce_", "allreduce_coalesced_", "broadcast_", "_allgather_base_", "_reduce_scatter_base_")
_FUNCTIONAL = (
    "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast",
)  # fmt: skip
_KEYS = ("AutogradCPU", "AutogradCUDA")
_OURS = (str(Path(__file__).parent), str(Path(torch.__file__).parent))


@dataclass(slots=True)
class GroupLog:
    """The collectives of one group.

    count: how many were called. history: a digest of all of them, in order. last: number, what, and where it was
    called, of the last. running: that of one which has not returned, and since when.
    """

    ranks: tuple[int, ...]
    count: int = 0
    history: bytes = b""
    last: deque[tuple[int, str, str]] = field(default_factory=lambda: deque(maxlen=KEPT))
    running: tuple[int, str, str, float] | None = None


class CollectiveLog:
    """While it is entered, every collective of this process is noted; `before` is asked first, where one is given.

    One log at a time can be entered in a process.
    """

    active: ClassVar[CollectiveLog | None] = None

    def __init__(self, before: Callable[[str, str, int], None] | None = None) -> None:
        self.groups: dict[str, GroupLog] = {}
        self._before = before
        self._inside = threading.local()
        self._originals: dict[str, Any] = {}
        self._libraries: list[torch.library.Library] = []

    def __enter__(self) -> Self:
        if CollectiveLog.active is not None:
            raise RuntimeError("a log of collectives is entered already")
        CollectiveLog.active = self
        for name in METHODS:
            # As it lies in the class: what getattr gives would not be bound to a group once put back.
            if name in vars(dist.ProcessGroup):
                self._originals[name] = vars(dist.ProcessGroup)[name]
                setattr(dist.ProcessGroup, name, self._method(name, getattr(dist.ProcessGroup, name)))
        for space, names in (("c10d", _OPERATORS), ("_c10d_functional", _FUNCTIONAL)):
            self._libraries.append(library := torch.library.Library(space, "IMPL"))  # type: ignore[no-untyped-call]
            for name in names:
                self._operator(library, space, name)
        return self

    def __exit__(self, *error: object) -> None:
        for name, original in self._originals.items():
            setattr(dist.ProcessGroup, name, original)
        for library in self._libraries:
            library._destroy()  # type: ignore[no-untyped-call]  # noqa: SLF001
        self._originals, self._libraries = {}, []
        CollectiveLog.active = None

    def record(self) -> dict[str, str]:
        """By `collectives.GROUP`, how many collectives there were, with a digest of what they were."""
        return {
            f"collectives.{name}": f"{log.count} calls, history {log.history.hex()}"
            for name, log in self.groups.items()
            if log.count
        }

    def tails(self) -> dict[str, str]:
        """By `collectives.GROUP`, the last collectives, one a line: number, what, where."""
        return {
            f"collectives.{name}": "\n".join(f"{number}\t{what}\t{site}" for number, what, site in log.last)
            for name, log in list(self.groups.items())
        }

    def running(self) -> tuple[str, float] | None:
        """The collective that has not returned, in words, and since when by the monotonic clock."""
        for name, log in list(self.groups.items()):
            running = log.running
            if running is not None:
                number, what, site, since = running
                return f"in collective {number} of {name}, {what} at {site}", since
        return None

    def _method(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "depth", 0):
                return original(group, *args, **kwargs)
            return self._noted(group.group_name, name.strip("_"), args, lambda: original(group, *args, **kwargs))

        return noted

    def _operator(self, library: torch.library.Library, space: str, name: str) -> None:
        packet = getattr(getattr(torch.ops, space), name, None)
        if packet is None:
            return
        operator = packet.default

        def noted(*args: Any) -> Any:
            def call() -> Any:
                with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001
                    return operator(*args)

            if getattr(self._inside, "depth", 0):
                return call()
            return self._noted(_group_name(args), name.strip("_"), args, call)

        for key in _KEYS:
            library.impl(name, noted, key)  # type: ignore[no-untyped-call]

    def _noted(self, group: str, op: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        log = self.groups.get(group)
        if log is None:
            log = self.groups[group] = GroupLog(_ranks(group))
        what = f"{op}({', '.join(_signature(args))})"
        site = _site()
        number = log.count
        if self._before is not None:
            self._inside.depth = 1
            try:
                self._before(group, f"{what} at {site}", number)
            finally:
                self._inside.depth = 0
        log.count += 1
        log.history = blake2b(log.history + what.encode(), digest_size=8).digest()
        log.last.append((number, what, site))
        log.running = (number, what, site, time.monotonic())
        self._inside.depth = 1
        try:
            work = call()
        finally:
            self._inside.depth = 0
            log.running = None
        return _watched(work, log, (number, what, site))


def first_disagreement(tails: Records) -> str | None:
    """Of the last collectives of all ranks, the first number at which those of one group are not the same, in words."""
    for group in dict.fromkeys(name for record in tails.values() for name in record):
        lines = {rank: _parsed(record[group]) for rank, record in sorted(tails.items()) if group in record}
        first = max((min(own, default=0) for own in lines.values()), default=0)
        last = max((max(own, default=-1) for own in lines.values()), default=-1)
        for number in range(first, last + 1):
            called = {rank: own.get(number) for rank, own in lines.items()}
            if len({what and what[0] for what in called.values()}) > 1:
                return f"{group}: the first that differs is number {number}: " + "; ".join(_callers(called))
    return None


def _callers(called: Mapping[int, tuple[str, str] | None]) -> Iterator[str]:
    by_what: dict[tuple[str, str] | None, list[int]] = {}
    for rank, what in called.items():
        by_what.setdefault(what, []).append(rank)
    for what, ranks in by_what.items():
        yield f"{ranks_in_words(ranks)} " + ("none" if what is None else f"{what[0]} at {what[1]}")


def _parsed(lines: str) -> dict[int, tuple[str, str]]:
    entries = (line.split("\t") for line in lines.splitlines())
    return {int(number): (what, site) for number, what, site in entries}


def _signature(args: tuple[Any, ...]) -> Iterator[str]:
    """Dtypes and shapes of tensors, and what is done with them."""
    for value in args:
        if isinstance(value, torch.Tensor):
            yield f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        elif isinstance(value, list | tuple) and value and not isinstance(value[0], int):
            yield from _signature(tuple(value))
        elif isinstance(value, str) and not value.isdigit():
            yield value
        else:
            op, root = getattr(value, "reduceOp", None), getattr(value, "rootRank", None)
            if op is not None:
                yield str(getattr(op, "op", op)).rpartition(".")[2].lower()
            if root is not None:
                yield f"root {root}"


def _watched(work: Any, log: GroupLog, entry: tuple[int, str, str]) -> Any:
    """Note how long somebody waits for it; work that Python gets has a `wait`, which blocks."""
    wait = getattr(work, "wait", None)
    if wait is None:
        return work
    return _Work(work, log, entry)


class _Work:
    """A collective under way, which is `running` while somebody waits for it; all else is the backend's own."""

    __slots__ = ("_entry", "_log", "_work")

    def __init__(self, work: Any, log: GroupLog, entry: tuple[int, str, str]) -> None:
        self._work, self._log, self._entry = work, log, entry

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        self._log.running = (*self._entry, time.monotonic())
        try:
            return self._work.wait(*args, **kwargs)
        finally:
            self._log.running = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _group_name(args: tuple[Any, ...]) -> str:
    for value in args:
        if isinstance(value, torch.ScriptObject):
            try:
                return str(dist.ProcessGroup.unbox(value).group_name)
            except (RuntimeError, TypeError):
                continue
    return next((value for value in reversed(args) if isinstance(value, str)), "default")


def _ranks(group: str) -> tuple[int, ...]:
    for known, ranks in _world.pg_group_ranks.items():
        # Groups that this rank is not in stand there as a number.
        if getattr(known, "group_name", None) == group:
            return tuple(sorted(ranks))
    return tuple(range(dist.get_world_size()))


def _site() -> str:
    """The first frame that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OURS) and not name.startswith("<"):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "C++"
