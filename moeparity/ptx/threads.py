"""Threads in flight: their registers, where each stands, and which go next.

All threads of all resident blocks are one vector. If threads stand at different places, those at the smallest place go
on. That brings threads that parted together again as early as possible. An instruction that waits for a warp is run
when the threads of its mask have come. With a seed each step draws which place goes on, and which of its threads: any
interleaving that a device may take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moeparity.ptx.barriers import Barriers
from moeparity.ptx.formats import Array
from moeparity.ptx.spaces import Memory
from moeparity.ptx.special import SPECIAL, WARP, Shape
from moeparity.ptx.syntax import PtxError
from moeparity.ptx.table import Sync

Active = slice | Array
"""The threads that go: all of them as a slice, or their numbers."""
ThreadStep = Callable[["Machine", Active], None]
_ALL = slice(None)
_SHARES = (0.2, 0.5, 0.9)
"""How many of the threads that could go on do, under a seed."""
_ENDED = 1 << 30
_WAITING = _ENDED - 1
_PATIENCE = 1024
"""Steps after which another place goes first, each in its turn, so that no thread waits forever for what others do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Steps without a wait in between, then a jump, an exit or the next segment."""

    line: int
    steps: tuple[ThreadStep, ...]
    next: int
    instructions: int = 0
    sync: Sync = Sync.NOBODY
    mask: Callable[[Machine, Active], Array] | None = None
    """The lanes waited for, where it waits for a warp."""
    guard: Callable[[Machine, Active], Array] | None = None
    """Whether a thread takes part in the one instruction of a segment that waits."""
    late: ThreadStep | None = None
    jump_guard: Callable[[Machine, Active], Array] | None = None
    targets: tuple[int, ...] = ()
    selector: Callable[[Machine, Active], Array] | None = None
    ends: bool = False
    fails: str = ""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The threads that an instruction is run for."""

    machine: Machine
    index: Array

    @property
    def block(self) -> Array:
        """Which of the resident blocks each is of."""
        return self.machine.block[self.index]

    @property
    def rank(self) -> Array:
        """Which of the ranks each is of; one 0 for all where there is one."""
        return self.machine.rank[self.index] if self.machine.ranks > 1 else np.zeros(1, np.int64)

    def mate(self, number: Array) -> Array:
        """Of the resident blocks each one's own where `number` is 0, or block `number` - 1 of its cluster; -1: none."""
        own_block, mates = self.block, self.machine.shape.mates
        return np.where(number == 0, own_block, np.where(number <= mates, own_block // mates * mates + number - 1, -1))

    def order(self) -> Any:
        """In which order they reach memory: as numbered, or as the seed has it."""
        rng = self.machine.rng
        return slice(None) if rng is None else rng.permutation(self.index.size)

    def some(self, chosen: Array) -> Lanes:
        """Those at some positions."""
        return Lanes(self.machine, self.index[chosen])

    def name_of(self, at: int) -> str:
        """One of them as an error names it."""
        return self.machine.name_of(int(self.index[at]))


class Machine:
    """The resident blocks of a launch, from their first instruction to their last."""

    def __init__(
        self, shape: Shape, memory: Memory, registers: Sequence[Array], rng: np.random.Generator | None
    ) -> None:
        self.shape, self.memory, self.registers, self.rng = shape, memory, registers, rng
        blocks, threads = shape.resident.size, shape.threads
        self.lanes = blocks * threads
        self.every = np.arange(self.lanes)
        self.block = self.every // threads
        self.assumed: set[str] = set()
        self.instructions = 0
        self.rank = shape.resident[self.block] // shape.blocks
        self.ranks = int(self.rank.max()) + 1
        self.barriers = Barriers(self.block, blocks, shape.mates)
        x, y, z = shape.block
        self._place = np.where(self.every % threads < x * y * z, 0, _ENDED).astype(np.int64)
        self._resume = np.zeros(self.lanes, np.int64)
        self._line = 0
        self._ahead = _ENDED
        self._specials: dict[str, Array] = {}
        self._pace = np.ones(self.lanes // WARP) if rng is None else self._paces(rng)

    def _paces(self, rng: np.random.Generator) -> Array:
        """How often a warp goes on: some are far behind the others, and some ranks."""
        of_rank = rng.choice([1.0, 0.3, 0.03], self.ranks)[self.rank[::WARP]]
        return np.asarray(rng.choice([1.0, 0.3, 0.03], self.lanes // WARP) * of_rank)

    def index(self, active: Active) -> Array:
        """Numbers of the active threads."""
        return self.every if isinstance(active, slice) else active

    def name_of(self, lane: int) -> str:
        """`Line 12, block (0, 0, 0), thread (3, 0, 0)`."""
        of = [
            tuple(int(self.special(f"%{name}.{axis}", np.array([lane]))[0]) for axis in "xyz")
            for name in ("ctaid", "tid")
        ]
        return f"Line {self._line}, block {of[0]}, thread {of[1]}"

    def special(self, name: str, active: Active) -> Array:
        """A special register of the active threads."""
        if name not in self._specials:
            self._specials[name] = SPECIAL[name](self.shape, self.every)
        values = self._specials[name]
        return values if values.size == 1 else values[active]

    def run(self, segments: Sequence[Segment], limit: int) -> None:
        """All threads to their end. Raises PtxError where they wait for each other, or after `limit` steps."""
        steps = 0
        while True:
            place, active = self._next(segments, steps)
            if place < 0:
                return
            following: int | None = place
            # A set that stays together goes on without looking at the others, as far as it stays behind them.
            while following is not None and (following == place or following < self._ahead):
                place, steps = following, steps + 1
                following = self._go(segments, place, active)
                alone = self.rng is None and steps % _PATIENCE < _PATIENCE - 1
                if not alone or (following is not None and segments[following].sync is not Sync.NOBODY):
                    break
            if following is not None:
                self._place[active] = following
            if steps > limit:
                raise PtxError(f"Line {self._line}: {limit:,} steps were taken and threads still run (`limit`).")

    def _next(self, segments: Sequence[Segment], steps: int) -> tuple[int, Active]:
        """The place that goes on and its threads; -1 when all have ended."""
        places, waits = self._places(steps), None
        for place in places:
            standing = self._place == place
            if self.rng is None:
                self._ahead = min((next_place for next_place in places if next_place > place), default=_ENDED)
            if self.rng is None and standing.all() and segments[place].sync is not Sync.WARP:
                return place, _ALL
            active = standing.nonzero()[0]
            if segments[place].sync is Sync.WARP:
                active = self._met(segments[place], active)
                if self.rng is None and active.size == self.lanes:
                    return place, _ALL
            if active.size and self.rng is not None:
                # Someone has to go on: of those that came first some warp, where none is drawn.
                waits = waits or (place, active, active[self.rng.integers(active.size)] // WARP)
                active = self._drawn(active, segments[place])
            if active.size:
                return place, active
        if waits is not None:
            place, active, warp = waits
            return place, active[active // WARP == warp]
        if (self._place == _ENDED).all():
            return -1, _ALL
        raise PtxError(self._deadlock(segments))

    def _places(self, steps: int) -> list[int]:
        lowest, highest = int(self._place.min()), int(self._place.max())
        places = [lowest] if lowest == highest else np.unique(self._place).tolist()
        places = [place for place in places if place < _WAITING]
        if self.rng is not None:
            return list(self.rng.permutation(places)) if places else []
        if steps % _PATIENCE < _PATIENCE - 1 or not places:
            return places
        first = steps // _PATIENCE % len(places)
        return [*places[first:], *places[:first]]

    def _met(self, segment: Segment, active: Array) -> Array:
        """Of threads at an instruction of a warp, those whose mask has come."""
        assert segment.mask is not None
        joins = None if segment.guard is None else np.broadcast_to(segment.guard(self, active), active.shape)
        mask = segment.mask(self, active).astype(np.int64)
        apart = (mask >> (active % WARP)) & 1 == 0
        if joins is not None:
            apart &= joins
        if apart.any():
            self._line = segment.line
            raise PtxError(
                f"{self.name_of(int(active[apart.argmax()]))}: "
                "the mask of an instruction of the warp has not the thread itself."
            )
        absent = self._place != _ENDED
        absent[active if joins is None else active[joins]] = False
        come = mask & _bits(absent.reshape(-1, WARP))[active // WARP] == 0
        return active[come if joins is None else come | ~joins]

    def _drawn(self, active: Array, segment: Segment) -> Array:
        """Under a seed: some of the threads, whole warps of them where the instruction waits for warps; or none."""
        assert self.rng is not None
        warps = active // WARP
        goes = self.rng.random(self._pace.size) < self._pace * _SHARES[self.rng.integers(len(_SHARES))]
        some = active[goes[warps]]
        if segment.sync is Sync.WARP or self.rng.random() < 0.75:
            return some
        return some[self.rng.random(some.size) < 0.5]

    def _go(self, segments: Sequence[Segment], place: int, active: Active) -> int | None:
        """Runs a segment; where all its threads go next, or None where they part, end or wait (that is then noted)."""
        segment = segments[place]
        self._line = segment.line
        for step in segment.steps:
            step(self, active)
        self.instructions += segment.instructions * self.index(active).size
        if segment.sync is Sync.BLOCK:
            self._wait(segments, segment, active)
            return None
        if segment.targets or segment.ends or segment.fails:
            return self._jump(segments, segment, active)
        return segment.next

    def _jump(self, segments: Sequence[Segment], segment: Segment, active: Active) -> int | None:
        goes = np.ones(1, bool) if segment.jump_guard is None else segment.jump_guard(self, active)
        if not goes.any():
            return segment.next
        if segment.fails:
            lane = int(self.index(active)[np.flatnonzero(np.broadcast_to(goes, self.index(active).shape))[0]])
            raise PtxError(f"{segment.fails} ({self.name_of(lane)}).")
        if len(segment.targets) == 1 and goes.all():
            return segment.targets[0]
        target = self._target(segment, active)
        self._place[active] = np.where(goes, target, segment.next)
        if segment.ends:
            self._open(segments)
        return None

    def _target(self, segment: Segment, active: Active) -> Array:
        if segment.ends:
            return np.array([_ENDED])
        if segment.selector is None:
            return np.array(segment.targets)
        selected = segment.selector(self, active)
        if (selected >= len(segment.targets)).any():
            raise PtxError(f"Line {segment.line}: `brx.idx` beyond its {len(segment.targets)} targets.")
        return np.array(segment.targets)[selected]

    def _wait(self, segments: Sequence[Segment], segment: Segment, active: Active) -> None:
        """Threads that came to a barrier wait; the others, which only arrived or took no part, go on."""
        waits = self.barriers.waiting[self.index(active)] >= 0
        self._resume[active] = segment.next
        self._place[active] = np.where(waits, _WAITING, segment.next)
        self._open(segments)

    def _open(self, segments: Sequence[Segment]) -> None:
        released = self.barriers.opened(self._place != _ENDED)
        if released.size == 0:
            return
        self._place[released] = self._resume[released]
        for place in np.unique(self._resume[released]).tolist():
            late = segments[place - 1].late
            if late is not None:
                late(self, released[self._resume[released] == place])

    def _deadlock(self, segments: Sequence[Segment]) -> str:
        stuck = np.flatnonzero(self._place != _ENDED)
        lane = int(stuck[0])
        place = int(self._place[lane])
        self._line = segments[int(self._resume[lane]) - 1 if place == _WAITING else place].line
        place_words = "at a barrier" if place == _WAITING else "at an instruction of its warp"
        return (
            f"{self.name_of(lane)} waits {place_words} for threads that never come; {stuck.size} threads wait in all."
        )


def chosen(machine: Machine, active: Active, goes: Array) -> Array:
    """Those of the active threads for which something is true."""
    index = machine.index(active)
    return index[np.broadcast_to(goes, index.shape)]


def _bits(true: Array) -> Array:
    packed = np.packbits(true, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view(np.uint32)[..., 0]
