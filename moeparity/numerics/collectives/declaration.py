"""`Collective`: an algorithm of a library with its order map, the messages it takes, and the source of this
knowledge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moeparity.numerics.dtypes import CHECKPOINT_NAMES
from moeparity.numerics.order_map import Message, OrderMap

Level = Literal["verified", "verified: vectors", "verified: ptx", "verified: trace", "read", "inferred", "opaque"]
"""Levels of evidence, the surest first."""

Average = Literal["scaled_inputs", "divided", "scaled_fp32"]
"""How AVG is formed. scaled_inputs: each input times 1/n, both rounded to the message's dtype. divided: the rounded sum
divided by n. scaled_fp32: the fp32 sum times fl(1/n), then rounded once."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """How sure the declaration is, and on what it rests.

    verified: this project's tests find it equal to the real library, bit for bit, with the versions named. verified:
    vectors: equal to outputs that a GPU recorded. verified: ptx: equal to a run of the PTX that a compiler made of the
    CUDA source. verified: trace: it gives the values that a program was recorded to compute, bit for bit, and no other
    value of a stated list does. read: from the named source. inferred: concluded, not read. opaque: the hardware does
    not say, and a stand-in is run.
    """

    level: Level
    source: str


@dataclass(frozen=True, slots=True)
class Collective:
    """One algorithm of one library. worlds, dtypes: the numbers of ranks (if given) and dtypes for which it is known.

    granule: a message must be a multiple of so many bytes. scatters: it is a reduce-scatter, which leaves block r of
    the reduced message on rank r; an all-reduce leaves all of it on every rank. by_token: a token's sum is left on the
    rank that has the token, so its bits do not depend on whether tokens are scattered over ranks.
    """

    name: str
    order_map: OrderMap
    evidence: Evidence
    scatters: bool = False
    by_token: bool = False
    average: Average | None = None
    worlds: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = CHECKPOINT_NAMES
    granule: int = 1

    def __str__(self) -> str:
        return f"{self.name}: {self.order_map}\n  {self.evidence.level}: {self.evidence.source}"

    def check(self, message: Message, dtype: str) -> None:
        """Raises ValueError if the library would not take this message, or is not known for `dtype` (such as
        `bf16`).
        """
        if self.worlds and message.ranks not in self.worlds:
            raise ValueError(f"{self.name} runs on {list(self.worlds)} ranks, not on {message.ranks}")
        if dtype not in self.dtypes:
            raise ValueError(f"{self.name} is known for {list(self.dtypes)}, not for {dtype}")
        if message.bytes % self.granule:
            raise ValueError(f"{self.name} takes multiples of {self.granule} bytes, not {message.bytes}")
