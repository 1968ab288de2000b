"""Two fingerprints of weights compared, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from moeparity.evidence.census.outcome import Derived, faults
from moeparity.output.json import to_json

SCHEMA = "moeparity.weights/1"

Sort = Literal["differs", "missing", "only in B", "shape", "doubled", "replicas", "dtype", "incomplete", "overlap"]
"""What is wrong with a tensor."""
UNDECIDED: Final[tuple[Sort, ...]] = ("dtype", "incomplete", "overlap")
"""What keeps a tensor from being compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about a tensor of one side or of both. rows: which of its rows, as `0:8, 12`; empty where all are, or
    none.
    """

    tensor: str
    sort: Sort
    side: str
    rows: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSide:
    """One side: a checkpoint, or the ranks of a program. formats: those of a checkpoint's quantised weights."""

    source: str
    checkpoint: bool
    ranks: int
    missing_ranks: tuple[int, ...]
    cast: str
    tensors: int
    formats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsReport:
    """Two sides compared tensor by tensor, or one alone (`b` is None).

    compared: tensors that both hold all of, in one dtype and shape. equal: those with the same bits. rounded: weights
    that one side has as codes and the other as numbers, of which each code is the nearest to its number. constant:
    matrices that hold one number only, on both sides. aside: what one side has and no comparison could want: buffers
    that no checkpoint keeps, second names of a tensor. derived: of two censuses of one program, what became in B of
    tensors that were made of weights in A.
    """

    a: WeightsSide
    b: WeightsSide | None
    compared: int
    equal: int
    findings: tuple[Finding, ...]
    constant: tuple[str, ...]
    aside: tuple[str, ...]
    derived: tuple[Derived, ...] = ()
    rounded: int = 0

    @property
    def exit_code(self) -> int:
        """0 where all bits are equal and nothing was left out, 1 where some are not, 3 where that can't be told."""
        if any(finding.sort not in UNDECIDED for finding in self.findings) or faults(self.derived):
            return 1
        if any(derived.outcome == "apart" for derived in self.derived):
            return 3
        if self.only_derived:
            return 0
        nothing = not (self.compared or self.rounded)
        lacking = self.a.missing_ranks or (self.b is not None and (self.b.missing_ranks or nothing))
        return 3 if self.findings or lacking else 0

    @property
    def only_derived(self) -> bool:
        """Whether both sides hold a census and no fingerprint, as a capture writes them."""
        return bool(self.derived) and self.b is not None and not self.a.tensors and not self.b.tensors

    def to_json(self) -> str:
        """The report as strict JSON."""
        return to_json(SCHEMA, self)
