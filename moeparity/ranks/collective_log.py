"""Logs the collectives of a rank in the order of their calls, by process group. The logs of ranks are compared with
each other, and show where a job hangs.

Calls from Python are seen at the methods of ProcessGroup, for any backend. Calls by C++ itself (the buckets of
DistributedDataParallel) and functional collectives (DTensor) are seen at their operators, below autograd. Functional
collectives of tensors made in inference mode are not seen.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from moeparity.ranks.notes import Notes

KEPT = 64
"""This many of the last collectives of each group are kept, to find the first that differs."""

METHODS = (
    "allreduce", "allreduce_coalesced", "broadcast", "allgather", "allgather_into_tensor_coalesced",
    "_allgather_base", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "gather", "scatter", "alltoall", "alltoall_base", "barrier",
)  # fmt: skip
"""Methods of ProcessGroup that all ranks of a group call. Sends and receives concern two ranks only."""

_OPERATORS = ("allreduce_", "allreduce_coalesced_", "broadcast_", "_allgather_base_", "_reduce_scatter_base_")
_FUNCTIONAL = (
    "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast",
)  # fmt: skip
_KEYS = ("AutogradCPU", "AutogradCUDA")
_OURS = (str(Path(__file__).parent), str(Path(torch.__file__).parent))


@dataclass(slots=True)
class GroupLog:
    """The collectives of one group.

    count: how many were called. history: a digest of all of them, in order. last: of each of the last collectives its
    number, what it is, and where it was called (line and call). running: the same of the collective that has not
    returned, and the time of its call.
    """

    ranks: tuple[int, ...]
    count: int = 0
    history: bytes = b""
    last: deque[tuple[int, str, str]] = field(default_factory=lambda: deque(maxlen=KEPT))
    running: tuple[int, str, str, float] | None = None


class CollectiveLog:
    """Logs every collective of this process while it is entered; `before`, if given, is called before each.

    place: says where in its calls the process is. Only one log can be entered in a process.
    """

    active: ClassVar[CollectiveLog | None] = None

    def __init__(
        self, before: Callable[[str, str, int], None] | None = None, place: Callable[[], str] | None = None
    ) -> None:
        self.groups: dict[str, GroupLog] = {}
        self.notes: Notes | None = None
        self._before, self._place = before, place
        self._inside = threading.local()
        self._originals: dict[str, Any] = {}
        self._libraries: list[torch.library.Library] = []

    def __enter__(self) -> Self:
        if CollectiveLog.active is not None:
            raise RuntimeError("a log of collectives is entered already")
        CollectiveLog.active = self
        for name in METHODS:
            # Taken from the class's own dict: what getattr gives would not be bound to a group once it is put back.
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
        """`collectives.GROUP` -> how many collectives there were and a digest of them; {} outside of the log."""
        if CollectiveLog.active is not self:
            return {}
        return {
            f"collectives.{name}": f"{log.count} calls, history {log.history.hex()}"
            for name, log in self._all().items()
        }

    def tails(self) -> dict[str, str]:
        """`collectives.GROUP` -> the last collectives, one a line: number, what, where."""
        return {
            f"collectives.{name}": "\n".join(f"{number}\t{call}\t{where}" for number, call, where in list(log.last))
            for name, log in self._all().items()
        }

    def _all(self) -> dict[str, GroupLog]:
        """The groups that this rank is in, including those in which it has called nothing yet."""
        return {name: GroupLog(ranks) for name, ranks in _own_groups()} | self.groups

    def running(self) -> tuple[str, str, float] | None:
        """The collective that has not returned: `collectives.GROUP`, words, and since when by the monotonic clock."""
        for name, log in list(self.groups.items()):
            running = log.running
            if running is not None:
                number, call, site, since = running
                return f"collectives.{name}", f"in collective {number} of {name}, {call} at {site}", since
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
        call_text = f"{op}({', '.join(_signature(args))})"
        site = _site()
        number = log.count
        if self._before is not None:
            self._inside.depth = 1
            try:
                self._before(group, f"{call_text} at {site}", number)
            finally:
                self._inside.depth = 0
        log.count += 1
        log.history = blake2b(log.history + call_text.encode(), digest_size=8).digest()
        where = site if self._place is None else f"{site}, {self._place()}"
        log.last.append((number, call_text, where))
        if self.notes is not None:
            self.notes.write(group, number, call_text, where)
        log.running = (number, call_text, site, time.monotonic())
        self._inside.depth = 1
        try:
            work = call()
        finally:
            self._inside.depth = 0
            log.running = None
        return _watched(work, log, (number, call_text, site))


def _signature(args: tuple[Any, ...]) -> Iterator[str]:
    """Dtypes and shapes of tensors, and the operation."""
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
    """Wrap a work so that waiting for it is noted; the work that Python gets has a `wait`, which blocks."""
    wait = getattr(work, "wait", None)
    if wait is None:
        return work
    return _Work(work, log, entry)


class _Work:
    """A collective under way, which counts as `running` while somebody waits for it; all else is the backend's own
    work.
    """

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
    return dict(_own_groups()).get(group, tuple(range(dist.get_world_size())))


def _own_groups() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and ranks of the groups of this process; torch stores a group that it is not in as a number."""
    for process_group, ranks in _world.pg_group_ranks.items():
        if isinstance(process_group, dist.ProcessGroup):
            yield process_group.group_name, tuple(sorted(ranks))


def _site() -> str:
    """The first frame of the stack that is neither torch's nor moeparity's."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OURS) and not name.startswith("<"):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "C++"
