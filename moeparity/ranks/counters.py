"""Finds calls that a rank skipped or repeated, by fields of the envelope that count calls."""

from __future__ import annotations

import re
from collections.abc import Mapping

from moeparity.output.words import quantity
from moeparity.ranks.differing_fields import Records, difference, ranks_in_words

ENVELOPE = "envelope."
_CALL_ID = "envelope.call_id"
"""A field that the guard counts itself, and that is compared as the moment of a call."""
_WHOLE = re.compile(r"-?\d+")


class Counters:
    """The envelopes of the last two calls, on which all ranks agreed. A field that grows by the same amount in each
    call tells in which call a rank is.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[int, Mapping[str, int]]] = []

    def agreed(self, call: int, record: Mapping[str, str]) -> None:
        """Note that all ranks had this record at a call."""
        if numbers := _numbers(record):
            self._calls = [*self._calls[-1:], (call, numbers)]

    def apart(self, call: int, records: Records) -> str | None:
        """Which ranks are how many calls ahead or behind at this call, in words. None if envelopes don't tell: no field
        counts calls, or two such fields contradict each other.
        """
        if len(self._calls) < 2:
            return None
        shifts = {rank: self._shift(call, _numbers(record)) for rank, record in records.items()}
        ranks: dict[int, list[int]] = {}
        for rank, shift in shifts.items():
            if shift is None:
                return None
            ranks.setdefault(shift, []).append(rank)
        if len(ranks) < 2 or 0 not in ranks:
            return None
        who = "; ".join(f"{ranks_in_words(ranks[shift])} {_moved(call, shift)}" for shift in sorted(ranks) if shift)
        envelopes = {rank: {name: record[name] for name in _numbers(record)} for rank, record in records.items()}
        return f"{who}: {difference(envelopes)}"

    def _shift(self, call: int, numbers: Mapping[str, int]) -> int | None:
        """How many calls these numbers are ahead of the ones expected at this call."""
        (first, before), (last, latest) = self._calls
        shifts: set[float] = set()
        for name in before.keys() & latest.keys() & numbers.keys():
            step = (latest[name] - before[name]) / (last - first)
            if step:
                shifts.add((numbers[name] - latest[name]) / step - (call - last))
        shift = shifts.pop() if len(shifts) == 1 else 0.5
        return int(shift) if shift == int(shift) else None


def _numbers(record: Mapping[str, str]) -> dict[str, int]:
    return {
        name: int(value)
        for name, value in record.items()
        if name.startswith(ENVELOPE) and name != _CALL_ID and _WHOLE.fullmatch(value)
    }


def _moved(call: int, shift: int) -> str:
    count = quantity(abs(shift), "call")
    if shift > 0:
        calls = f"call {call}" if shift == 1 else f"calls {call}-{call + shift - 1}"
        return f"{count} ahead, as if {calls} had been skipped"
    return f"{count} behind, as if call {call + shift} came again"
