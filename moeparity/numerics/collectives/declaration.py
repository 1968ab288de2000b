"""What a simulated collective states: its order map, what messages it takes, and where the knowledge comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moeparity.numerics.dtypes import CHECKPOINT_NAMES
from moeparity.numerics.order_map import Message, OrderMap

Level = Literal["verified", "verified: ptx", "verified: trace", "read", "inferred", "opaque"]
"""The surest first."""

Average = Literal["scaled_inputs", "divided", "scaled_fp32"]
"""How AVG is formed: each input times 1/n, both rounded to the message's dtype; the rounded sum divided by n; the fp32
sum times fl(1/n) before the one rounding."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """How sure the declaration is and what it rests on.

    `verified`: equal to the real thing bit for bit in this project's tests, with the versions named. `verified: ptx`:
    so to a run of what a compiler made of its CUDA source, before the assembler. `verified: trace`: it gives the values
    that a program was recorded to compute, bit for bit, and no other value of a stated list does. `read`: from the
    source named. `inferred`: concluded, not read. `opaque`: the hardware does not say; what is run is a stand-in.
    """

    level: Level
    source: str


@dataclass(frozen=True, slots=True)
class Collective:
    """One algorithm of one library. `worlds`, where given, and `dtypes` are all that is known of it.

    `granule` is the number of bytes a message must be a multiple of. A reduce-scatter (`scatters`) leaves block r of
    the reduced message on rank r; an all-reduce leaves all of it on every rank.
    """

    name: str
    order_map: OrderMap
    evidence: Evidence
    scatters: bool = False
    average: Average | None = None
    worlds: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = CHECKPOINT_NAMES
    granule: int = 1

    def __str__(self) -> str:
        return f"{self.name}: {self.order_map}\n  {self.evidence.level}: {self.evidence.source}"

    def check(self, message: Message, dtype: str) -> None:
        """ValueError where the library would not take this message, or is not known in `dtype` (as in `bf16`)."""
        if self.worlds and message.ranks not in self.worlds:
            raise ValueError(f"{self.name} runs on {list(self.worlds)} ranks, not on {message.ranks}")
        if dtype not in self.dtypes:
            raise ValueError(f"{self.name} is known for {list(self.dtypes)}, not for {dtype}")
        if message.bytes % self.granule:
            raise ValueError(f"{self.name} takes multiples of {self.granule} bytes, not {message.bytes}")
