"""The recorded side of a verification, read along with the program, whose calls may come in another order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from moeparity.evidence.trace.reader import RankTrace
from moeparity.evidence.trace.records import Call, CallKey, End, Record, Stack, Value

_AHEAD = 20_000
"""So many recorded calls are read ahead of the program where theirs come in another order."""
_VALUES = 200_000
"""So many values are remembered on each side."""


class Values(OrderedDict[int, Value]):
    """The values met last, by their numbers."""

    def keep(self, value: Value) -> None:
        """Enter a value; the oldest goes where there are many."""
        self[value.id] = value
        self.move_to_end(value.id)
        if len(self) > _VALUES:
            self.popitem(last=False)


class Recorded:
    """The recorded side. `is_whole`: whether its end was met; `has_ops`: whether ops are recorded."""

    def __init__(self, trace: RankTrace) -> None:
        self.tensor = trace.tensor
        self.values = Values()
        self.stacks: dict[int, tuple[str, ...]] = {}
        self.is_whole = False
        self.has_ops = "op" in trace.head.levels
        self._records: Iterator[Record] = trace.records()
        self._waiting: OrderedDict[CallKey, Call] = OrderedDict()

    def of(self, key: CallKey) -> Call | None:
        """The recorded call of that step, phase, level, name, path and number; None where there is none."""
        call = self._waiting.pop(key, None)
        while call is None and len(self._waiting) < _AHEAD:
            following = self._next()
            if following is None:
                return None
            if following.key == key:
                return following
            self._waiting[following.key] = following
        return call

    def unmet(self, step: int | None) -> list[Call]:
        """Calls of the steps before, which no call of the program was; of all where `step` is None."""
        if step is None:
            while (call := self._next()) is not None:
                self._waiting[call.key] = call
        unmet = [call for call in self._waiting.values() if step is None or call.step < step]
        for call in unmet:
            del self._waiting[call.key]
        return unmet

    def _next(self) -> Call | None:
        for record in self._records:
            if isinstance(record, Call):
                return record
            if isinstance(record, Value):
                self.values.keep(record)
            elif isinstance(record, Stack):
                self.stacks[record.id] = record.frames
            elif isinstance(record, End):
                self.is_whole = True
        return None


def base_of(value: Value, values: Values) -> Value | None:
    """The value that one is a view of; None for what is none, and where that is not remembered any more."""
    return None if value.base is None else values.get(value.base)
