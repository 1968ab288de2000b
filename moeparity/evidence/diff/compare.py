"""Two values held against each other: their bits, row by row and token by token; ids as sets and as slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from moeparity.evidence.alignment.rows import token_of_rows
from moeparity.evidence.diff.key_columns import KeyColumns, Part, Rows
from moeparity.evidence.diff.pass_pairs import RunPair
from moeparity.evidence.diff.side import Side
from moeparity.evidence.trace.digest import row_digests
from moeparity.evidence.trace.records import DIGEST, Value

Status = Literal["equal", "cast", "padding", "differ", "rounded", "apart", "unknown"]
"""`padding`: only rows of padding differ. Of two dtypes: `cast`, the same numbers; `rounded`, equal once both are
rounded to the narrower; `apart`, not even then. `unknown`: not compared.
"""

_INTEGERS = {"int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"}
_MOST_EXACT = 1 << 24
"""Elements of a value that are looked at for how far two values lie from each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """Rows of whole numbers: in how many the slots differ, in how many of these the sets."""

    slots: int
    sets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is known of a pair of values.

    rows, differing: how many rows were compared, and how many of them differ in bits (for `apart`: after rounding to
    the narrower dtype). tokens: the flat places in A of the tokens that differ; empty if rows are of no token.
    furthest: the largest relative error of a row, |a - b| / |a| in the 2-norm; None if whole values were not kept.
    bound: how large rounding to the narrower dtype makes that error at most. reason: why the pair was not compared.
    other_part: both are views, of different parts of what they look at, and so can't be compared. by_keys: columns were
    matched by the keys that they are of, so they stand elsewhere on the two sides.
    """

    status: Status
    rows: int = 0
    differing: int = 0
    tokens: tuple[int, ...] = ()
    furthest: float | None = None
    bound: float | None = None
    ids: Ids | None = None
    reason: str = ""
    other_part: bool = False
    by_keys: bool = False


class Comparer:
    """Compares values of a pair of passes."""

    def __init__(self, pair: RunPair) -> None:
        self.pair = pair
        self.a, self.b = pair.a.side, pair.b.side
        self.same_digests = self.a.head.digest == self.b.head.digest == DIGEST
        self._memo: dict[tuple[int, int], Comparison] = {}

    def compare(self, a: int, b: int) -> Comparison:
        """Two values by their ids. Raises TraceError for a trace that is damaged."""
        if (a, b) not in self._memo:
            self._memo[a, b] = self._compare(a, b)
        return self._memo[a, b]

    def _compare(self, a: int, b: int) -> Comparison:
        value_a, value_b = self.a.value(a), self.b.value(b)
        if value_a.shape == value_b.shape and 0 in value_a.shape:
            return Comparison(status="equal")
        reason = self._obstacle(value_a, value_b)
        if reason:
            return Comparison(status="unknown", reason=reason)
        if value_a.dtype != value_b.dtype and not (value_a.dtype in _INTEGERS and value_b.dtype in _INTEGERS):
            return self._of_two_dtypes(a, b)
        if self._whole_digests(value_a, value_b):
            if self.a.digest(a) == self.b.digest(b):
                return Comparison(status="equal", rows=torch.Size(value_a.shape[:-1]).numel())
            if self.a.rows(a) is None:
                return Comparison(status="differ", rows=torch.Size(value_a.shape[:-1]).numel())
            by_rows = self._by_rows(a, b)
            if by_rows.status == "equal":
                return Comparison(status="unknown", reason="digests of values and of their rows contradict each other")
            return by_rows
        return self._by_rows(a, b)

    def _obstacle(self, value_a: Value, value_b: Value) -> str:
        if self.pair.obstacle and not self._are_weights(value_a, value_b):
            return self.pair.obstacle
        is_other_work = self.pair.shared is not None and not self.pair.shared.alike
        for side, value in ((self.a, value_a), (self.b, value_b)):
            if is_other_work and side.root_of(value.id) in side.drawn:
                return "drawn at random, for other requests together"
            if value.id in side.apart:
                return "a rank's part, which the layout does not put together"
            if value.label in {"unwritten", "partly"}:
                return "allocated and not, or only partly, written"
        if len(value_a.shape) != len(value_b.shape) and self.pair.shared is None and value_a.shape != value_b.shape:
            same = torch.Size(value_a.shape).numel() == torch.Size(value_b.shape).numel()
            return "" if same and value_a.shape[-1:] == value_b.shape[-1:] else in_shapes(value_a, value_b)
        return ""

    def _whole_digests(self, value_a: Value, value_b: Value) -> bool:
        """Whether the digests of both whole values are known, and one row of the one is the same of the other."""
        if value_a.shape != value_b.shape or value_a.dtype != value_b.dtype or not self.same_digests:
            return False
        if self.pair.shared is not None and not self.pair.shared.alike and not self._are_weights(value_a, value_b):
            return False
        return self.a.digest(value_a.id) is not None and self.b.digest(value_b.id) is not None

    def _by_rows(self, a: int, b: int) -> Comparison:
        rows_a, rows_b = self._rows(self.a, a), self._rows(self.b, b)
        if rows_a is None or rows_b is None:
            return Comparison(status="unknown", reason=self._unread(a, b, rows_a, rows_b))
        places = self.places(a, b, len(rows_a), len(rows_b))
        if isinstance(places, str):
            alike = self.a.value(a).shape == self.b.value(b).shape and torch.equal(rows_a, rows_b)
            if alike:
                return Comparison(status="equal", rows=len(rows_a))
            return self._by_keys(a, b) or Comparison(status="unknown", reason=places)
        as_they_lie = self._paired_rows(a, b, rows_a, rows_b, places)
        if as_they_lie.status == "differ" and self._is_selected(a, b):
            return Comparison(status="unknown", reason="rows that were selected, in the order of the selection")
        by_keys = self._by_keys(a, b) if as_they_lie.status == "differ" else None
        # A row may be as wide by chance as there are keys: which of both it is, equal bits say.
        return by_keys if by_keys is not None and by_keys.differing < as_they_lie.differing else as_they_lie

    def _is_selected(self, a: int, b: int) -> bool:
        """Whether the rows of two values, of passes that are not alike, have an order that says nothing of tokens."""
        if self.pair.shared is None or self.pair.shared.alike:
            return False
        return any(side.root_of(number) in side.selected for side, number in ((self.a, a), (self.b, b)))

    def _paired_rows(
        self, a: int, b: int, rows_a: Tensor, rows_b: Tensor, places: tuple[Tensor, Tensor, Tensor | None]
    ) -> Comparison:
        """Rows by their digests, paired as `places` says."""
        left, right, tokens = places
        differs = rows_a[left] != rows_b[right]
        if not bool(differs.any()):
            return Comparison(status="equal", rows=len(left))
        status: Status = "differ"
        if tokens is not None and not bool((differs & (tokens >= 0)).any()):
            status = "padding"
        token_ids = () if tokens is None else tuple(sorted(set(tokens[differs & (tokens >= 0)].tolist())))
        furthest = self._furthest(a, b, left, right)
        ids = self._ids(a, b, left, right)
        return Comparison(
            status=status, rows=len(left), differing=int(differs.sum()), tokens=token_ids, furthest=furthest, ids=ids
        )

    def _by_keys(self, a: int, b: int) -> Comparison | None:
        """Rows with a column for each key, of passes that pad or cache otherwise, read in the way in which fewest
        differ; None if these are none such.
        """
        keyed = self._keyed(a, b)
        best = None if keyed is None else keyed[0].read(*keyed[1:])
        if best is None:
            return None
        status: Status = "differ" if best.differing else "equal"
        return Comparison(
            status=status, rows=best.rows, differing=best.differing, tokens=best.tokens, by_keys=True
        )  # fmt: skip

    def differing_by_keys(self, a: int, b: int) -> tuple[Part, Part] | None:
        """Of rows that are each of one token and have a column for each key, those that differ of two sequences; None
        where these are none such.
        """
        keyed = self._keyed(a, b)
        return None if keyed is None or keyed[2] is None else keyed[0].differing(keyed[1], keyed[2])

    def _keyed(self, a: int, b: int) -> tuple[KeyColumns, tuple[Tensor, Tensor], Rows | None] | None:
        """Two values of passes that pad or cache otherwise, with the keys of these and the rows of tokens that they
        share, if they have such; None for weights, and where they are not kept whole.
        """
        shared, ours, theirs = self.pair.shared, self.pair.a.tokens, self.pair.b.tokens
        value_a, value_b = self.a.value(a), self.b.value(b)
        if shared is None or shared.alike or ours is None or theirs is None or not value_a.shape or not value_b.shape:
            return None
        keys = KeyColumns(ours, theirs, (shared.a, shared.b))
        if self._are_weights(value_a, value_b) or not keys.axes((value_a.shape, value_b.shape)):
            return None
        x, y = self.a.tensor(a), self.b.tensor(b)
        if x is None or y is None or x.dtype != y.dtype:
            return None
        places = self._token_places(value_a, value_b)
        return keys, (x, y), None if isinstance(places, str) else places

    def _rows(self, side: Side, number: int) -> Tensor | None:
        """Digests of rows that the other side's can be held against: of ids their rows as 64-bit numbers."""
        value = side.value(number)
        if value.dtype in _INTEGERS or not self.same_digests:
            tensor = side.tensor(number)
            if tensor is not None:
                return row_digests(tensor.long() if value.dtype in _INTEGERS else tensor)
        return side.rows(number) if self.same_digests else None

    def _unread(self, a: int, b: int, rows_a: Tensor | None, rows_b: Tensor | None) -> str:
        if not self.same_digests:
            return f"digests of two kinds ({self.a.head.digest} and {self.b.head.digest}), and not kept whole"
        views = any(
            side.value(n).base is not None
            for side, n, rows in ((self.a, a, rows_a), (self.b, b, rows_b))
            if rows is None
        )
        return "a view that cuts rows, of a value that was not kept whole" if views else "no digests of rows were kept"

    def places(self, a: int, b: int, ours: int, theirs: int) -> tuple[Tensor, Tensor, Tensor | None] | str:
        """Which rows are compared with which, and to which token each belongs: -1 for padding, None if no token is
        known. If that can't be told, the reason.
        """
        shared, value_a, value_b = self.pair.shared, self.a.value(a), self.b.value(b)
        rows = torch.arange(ours)
        weights = self._are_weights(value_a, value_b)
        if not weights and shared is not None and not (shared.alike and value_a.shape == value_b.shape):
            return self._by_token(value_a, value_b)
        if ours != theirs:
            return in_shapes(value_a, value_b) + ("" if weights else ", and no ids of tokens to go by")
        tokens = self.pair.a.tokens
        of_row = None if weights or tokens is None else token_of_rows(value_a.shape, tokens)
        if tokens is None or of_row is None:
            return rows, rows, None
        return rows, rows, torch.where(tokens.real()[of_row], of_row, -1)

    def _are_weights(self, value_a: Value, value_b: Value) -> bool:
        return value_a.shape == value_b.shape and self.a.is_weight(value_a.id) and self.b.is_weight(value_b.id)

    def _by_token(self, value_a: Value, value_b: Value) -> tuple[Tensor, Tensor, Tensor | None] | str:
        places = self._token_places(value_a, value_b)
        if isinstance(places, str):
            return places
        if value_a.shape[-1:] != value_b.shape[-1:]:
            return in_shapes(value_a, value_b)
        return places[:3]

    def _token_places(self, value_a: Value, value_b: Value) -> tuple[Tensor, Tensor, Tensor, Tensor] | str:
        """The rows of either side that are of one token, and its flat places in A and in B, int64 [rows] each."""
        shared, ours, theirs = self.pair.shared, self.pair.a.tokens, self.pair.b.tokens
        assert shared is not None
        assert ours is not None
        assert theirs is not None
        rows = token_of_rows(value_a.shape, ours), token_of_rows(value_b.shape, theirs)
        if rows[0] is None or rows[1] is None:
            return "rows that are of no one token"
        shown = torch.isin(shared.a, rows[0]) & torch.isin(shared.b, rows[1])
        first, second = _rows_by_token(rows[0]), _rows_by_token(rows[1])
        if first.shape[1] != second.shape[1]:
            return in_shapes(value_a, value_b)
        left = first[torch.searchsorted(_tokens(rows[0]), shared.a[shown])]
        right = second[torch.searchsorted(_tokens(rows[1]), shared.b[shown])]
        of_a, of_b = (places[shown].unsqueeze(-1).expand(left.shape).reshape(-1) for places in (shared.a, shared.b))
        return left.reshape(-1), right.reshape(-1), of_a, of_b

    def _of_two_dtypes(self, a: int, b: int) -> Comparison:
        tensor_a, tensor_b = self.a.tensor(a), self.b.tensor(b)
        dtypes = f"{self.a.value(a).dtype} and {self.b.value(b).dtype}"
        if tensor_a is None or tensor_b is None:
            return Comparison(status="unknown", reason=f"two dtypes ({dtypes}), and not kept whole")
        if not tensor_a.is_floating_point() or not tensor_b.is_floating_point():
            return Comparison(status="unknown", reason=f"two kinds of numbers ({dtypes})")
        places = self.places(a, b, *(_row_count(x) for x in (tensor_a, tensor_b)))
        if isinstance(places, str):
            return Comparison(status="unknown", reason=places)
        left, right, tokens = places
        narrow = max(tensor_a.dtype, tensor_b.dtype, key=lambda dtype: torch.finfo(dtype).eps)
        wide = torch.promote_types(tensor_a.dtype, tensor_b.dtype)
        differs, inexact = (
            row_digests(tensor_a.to(dtype))[left] != row_digests(tensor_b.to(dtype))[right] for dtype in (narrow, wide)
        )
        if tokens is not None:
            differs, inexact = differs & (tokens >= 0), inexact & (tokens >= 0)
        status: Status = "apart" if bool(differs.any()) else "rounded" if bool(inexact.any()) else "cast"
        token_ids = () if tokens is None else tuple(sorted(set(tokens[differs].tolist())))
        return Comparison(
            status=status, rows=len(left), differing=int(differs.sum()),
            tokens=token_ids, furthest=self._furthest(a, b, left, right), bound=torch.finfo(narrow).eps / 2,
        )  # fmt: skip

    def _furthest(self, a: int, b: int, left: Tensor, right: Tensor) -> float | None:
        """The largest relative error of a row, where both were kept whole."""
        if torch.Size(self.a.value(a).shape).numel() > _MOST_EXACT:
            return None
        tensor_a, tensor_b = self.a.tensor(a), self.b.tensor(b)
        if tensor_a is None or tensor_b is None or not tensor_a.is_floating_point():
            return None
        x, y = (t.reshape(_row_count(t), -1).double()[rows] for t, rows in ((tensor_a, left), (tensor_b, right)))
        difference = (x - y).norm(dim=-1)
        error = torch.where((x == y).all(-1), 0.0, difference / x.norm(dim=-1)).nan_to_num(nan=float("inf"))
        return float(error.max()) if error.numel() else 0.0

    def _ids(self, a: int, b: int, left: Tensor, right: Tensor) -> Ids | None:
        """Of whole numbers, in how many rows slots and sets differ; None of anything else, and where not kept."""
        if self.a.value(a).dtype not in _INTEGERS:
            return None
        tensor_a, tensor_b = self.a.tensor(a), self.b.tensor(b)
        if tensor_a is None or tensor_b is None:
            return None
        x, y = (t.reshape(_row_count(t), -1).long()[rows] for t, rows in ((tensor_a, left), (tensor_b, right)))
        sets = (x.sort(-1).values != y.sort(-1).values).any(-1)
        return Ids(slots=int((x != y).any(-1).sum()), sets=int(sets.sum()))


def in_shapes(value_a: Value, value_b: Value) -> str:
    """`shapes [12, 5] in A and [12, 4] in B`."""
    return f"shapes {list(value_a.shape)} in A and {list(value_b.shape)} in B"


def _row_count(x: Tensor) -> int:
    return torch.Size(x.shape[:-1]).numel()


def _rows_by_token(tokens: Tensor) -> Tensor:
    """The rows of each token that has some, [tokens, rows of each], in their order."""
    return torch.argsort(tokens, stable=True).reshape(len(_tokens(tokens)), -1)


def _tokens(of_rows: Tensor) -> Tensor:
    """The tokens that rows are of, each once, ascending."""
    tokens: Tensor = of_rows.unique()  # type: ignore[no-untyped-call]
    return tokens
