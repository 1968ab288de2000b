"""The pads that an engine computed beside a sequence, as token files and logs of JSON lines have them under `pads`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Pads:
    """How many pads stand before and after (`behind`) a sequence, and the token id of each."""

    before: int
    behind: int
    id: int

    def as_json(self) -> dict[str, int]:
        """As a line has them."""
        return asdict(self)


def pads(value: Any) -> Pads:
    """What a line has under `pads`. Raises ValueError, which says what is expected."""
    numbers: dict[str, Any] = value if isinstance(value, dict) else {}
    if numbers.keys() != set(Pads.__slots__) or not all(type(n) is int and 0 <= n < 2**31 for n in numbers.values()):
        raise ValueError('expected {"before": NUMBER, "behind": NUMBER, "id": TOKEN}, whole numbers from 0')
    return Pads(**numbers)


def one_width(sequences: Sequence[tuple[int, Pads | None]]) -> bool:
    """Whether all sequences, each given as its number of tokens and its pads, have pads that fill rows of one width."""
    widths = {None if pads is None else pads.before + length + pads.behind for length, pads in sequences}
    return len(widths) == 1 and None not in widths
