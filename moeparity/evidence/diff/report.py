"""What a comparison of two traces found, as frozen plain data: what the terminal shows and what `--json` writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moeparity.output.json import to_json

SCHEMA = "moeparity.diff/2"
"""Grows when a field changes its meaning or goes; new fields may appear without it."""

Status = Literal["pass", "fail", "inconclusive"]
DiffVerdict = Literal["inside", "inside one way", "outside", "not told"]
_CODES: dict[Status, int] = {"pass": 0, "fail": 1, "inconclusive": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOutline:
    """One of the traces: where it lies, who made it, of how many ranks and calls; `whole` says that it was not cut."""

    path: str
    made_by: str
    ranks: int
    calls: int
    values: int
    whole: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncompared:
    """Why values were not compared, and how many; `example` is a place of one."""

    reason: str
    values: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was compared: how many of the `values` that calls of A gave and that have a partner, and with which result.

    equal, padding, differing: how many values were found to be so. If the two dtypes differ: `cast` are the same
    numbers, `rounded` are equal once both are rounded to the narrower dtype, `apart` are not. only_a, only_b: calls
    without a partner. uncovered: values of which neither they themselves nor anything made from them was compared.
    not_compared: why these were not.
    """

    values: int
    equal: int
    padding: int
    differing: int
    cast: int
    rounded: int
    apart: int
    only_a: int
    only_b: int
    uncovered: int
    not_compared: tuple[Uncompared, ...]

    @property
    def of_two_dtypes(self) -> int:
        """How many of those compared have another dtype in B."""
        return self.cast + self.rounded + self.apart

    @property
    def compared(self) -> int:
        """How many values were compared."""
        return self.equal + self.padding + self.differing + self.of_two_dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class LegalOrders:
    """Whether other orders of the same sums could give what B gave.

    verdict: `inside`, `inside one way`, `outside`, or `not told` with the reason. sums: whether anything is added up at
    all; if not, only implementations of functions are drawn. differing, outside: elements whose bits differ, and
    elements beyond the band of A's orders; furthest: how far at most, in ulps. error_a, error_b: relative errors
    against the same calls in fp64, None if not computed.
    """

    verdict: DiffVerdict
    reason: str = ""
    sums: bool = True
    elements: int = 0
    differing: int = 0
    outside: int = 0
    furthest: float = 0.0
    error_a: float | None = None
    error_b: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The place of the first token that differs, in A: which sequence of the pass, and which token of it, from 0.
    behind_cache: whether A's pass, and B's, continues what a cache holds.
    """

    sequence: int
    token: int
    behind_cache: tuple[bool, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A place where a difference begins.

    kind: `op` or `module` (inputs with equal bits, another output), `weight` (another weight is read), `input` (the
    program was given something else), `unseen` (made by something that was not recorded), `wiring` (other values are
    read), `behind` (what it reads differs already, and A's calls are compared on what B read). node: which value of a
    graph it is, by the program's map; empty if no shipped map says so. ops_a, ops_b: the calls between equal values and
    this one. slot, role: which value of the last call it is. rows, differing: rows compared, and rows with other bits;
    tokens, first_tokens: how many tokens, and the first of them. slots, sets: for ids, rows with other slots and rows
    with other sets. furthest: the largest relative error of a row. position: if a prefill is
    compared with decoding, the place of the first of these tokens; else None. shapes: in words, values of these calls
    that have other shapes, so that no numbers are compared. scalars: arguments that differ, as `name: a | b`. unread:
    inputs that were compared with nothing, such as values without a partner and other parts of a value.
    """

    kind: Literal["op", "module", "weight", "input", "unseen", "wiring", "behind"]
    path: str
    node: str
    ops_a: tuple[str, ...]
    ops_b: tuple[str, ...]
    slot: str
    role: str
    step: int
    phase: str
    passes: tuple[int, int]
    dtypes: tuple[str, str]
    shape: tuple[int, ...]
    rows: int
    differing: int
    tokens: int
    first_tokens: tuple[int, ...]
    slots: int | None
    sets: int | None
    furthest: float | None
    position: Position | None
    scalars: tuple[str, ...]
    shapes: tuple[str, ...]
    unread: int
    stack_a: tuple[str, ...]
    stack_b: tuple[str, ...]
    orders: LegalOrders
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """A call that made NaN or infinities of finite inputs, in one trace or in both."""

    side: Literal["A", "B", "both"]
    what: Literal["NaN", "inf"]
    path: str
    op: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGrowth:
    """What leaves a layer: its rows, how many of them differ (with two dtypes: by more than rounding), and the largest
    relative error of a row. Also that error in units of what rounding to the narrower dtype makes at most (None if both
    dtypes are the same).
    """

    layer: str
    rows: int
    differing: int
    furthest: float | None
    units: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffReport:
    """Two traces, compared. `beyond`: the first place where B gives something that no order of A's calls gives. It is a
    start, or lies behind one; None if there is no such place.
    """

    a: TraceOutline
    b: TraceOutline
    status: Status
    reason: str
    coverage: Coverage
    starts: tuple[Start, ...]
    beyond: Start | None
    padding_start: str
    ends: str
    other_scalars: tuple[str, ...]
    births: tuple[Birth, ...]
    growth: tuple[LayerGrowth, ...]
    ranks: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 equal bits wherever a program could see them; 1 they differ; 3 too little was compared to say so."""
        return _CODES[self.status]

    def to_json(self) -> str:
        """The report as JSON: strict, so that a number that is not finite is the word nan, inf or -inf."""
        return to_json(SCHEMA, self)
