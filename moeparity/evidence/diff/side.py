"""One of the two traces that are compared: its calls in order, what made each value, and what is known of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from moeparity.errors import TraceError, Where
from moeparity.evidence.maps.module_map import ModuleMap, map_of
from moeparity.evidence.trace.digest import row_digests, value_digest
from moeparity.evidence.trace.reader import Contents, RankTrace
from moeparity.evidence.trace.records import Call, Head, Value

OWN = "weight "
"""Begins the slots of a module's own weights among what it reads, where no ops were recorded that show them."""

WHOLE = frozenset({"int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"})
"""Dtypes that hold no fractions."""
_SELECTIONS = ("nonzero", "argsort", "sort")
"""Ops that give places in an order of their own; `sort` and `argsort` where they put a whole list in order."""
_TAKE = ("index", "index_select")
_PUT_BACK = ("index_add", "index_put", "index_copy", "scatter")
"""Ops that bring selected rows back to where they were selected from."""
MOST_VIEWS = 100
"""Views of views that are followed: more are a circle."""


class Store(Protocol):
    """Where whole values and the digests of rows are read from."""

    def rows(self, value: Value) -> Tensor | None:
        """The digests of a value's rows, int64 [rows]; None where none were kept."""

    def tensor(self, value: Value) -> Tensor | None:
        """The whole value; None where it was not kept."""


@dataclass(frozen=True)
class Side:
    """A trace as it is compared: the calls and values of one rank, or of several ranks put together.

    `folder` is where it lies, `name` is A or B. `apart`: ids of values that are not whole, such as the partial sums of
    a rank.
    """

    name: str
    folder: str
    head: Head
    contents: Contents
    store: Store
    apart: frozenset[int] = frozenset()
    _zero_rows: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def calls(self) -> tuple[Call, ...]:
        """In the order in which they returned."""
        return self.contents.calls

    def value(self, number: int) -> Value:
        """The value of that id. Raises TraceError where the trace has none: lines of it are lost."""
        try:
            return self.contents.values[number]
        except KeyError:
            raise TraceError(
                f"{self.folder}: a call names value {number}, which is not in the trace: lines of it are lost. Record "
                "it anew."
            ) from None

    @cached_property
    def by_id(self) -> Mapping[int, Call]:
        """Calls by their ids."""
        return {call.id: call for call in self.calls}

    @cached_property
    def producers(self) -> Mapping[int, Call]:
        """What made each value: the op, or where none was recorded the innermost module that gave it. Of what was
        written part by part it is the last of these calls, with what all of them read.
        """
        makers: dict[int, Call] = {}
        parts: dict[int | None, list[Call]] = {}
        for call in self.calls:
            inputs = set(call.inputs.values())
            for root in map(self.root_of, inputs):
                writers = parts.get(self.value(root).storage)
                if writers and root not in makers:
                    read = chain.from_iterable(writer.inputs.values() for writer in writers)
                    makers[root] = replace(writers[-1], inputs={str(place): n for place, n in enumerate(read)})
            for number in (*call.outputs.values(), *call.written.values()):
                if number not in inputs:
                    makers.setdefault(number, call)
            for number in call.written.values():
                parts.setdefault(self.value(number).storage, []).append(call)
        return makers

    @cached_property
    def module_map(self) -> ModuleMap | None:
        """The shipped map that the modules fit."""
        calls = (call for call in self.calls if call.level == "module" and call.phase == "forward")
        try:
            return map_of(calls, Where(Path(self.folder)))
        except TraceError:
            return None

    @cached_property
    def node_values(self) -> Mapping[int, str]:
        """By what each value looks at, the graph's value that it is, where a shipped map fits the modules."""
        calls = [call for call in self.calls if call.phase == "forward"]
        names = {} if self.module_map is None else self.module_map.names(calls)
        return {self.root_of(number): name for number, name in names.items()}

    @cached_property
    def _of_modules(self) -> frozenset[int]:
        """What modules were given and gave."""
        calls = (call for call in self.calls if call.level == "module")
        slots = (entry for call in calls for entry in (*call.inputs.items(), *call.outputs.items()))
        return frozenset(self.root_of(number) for slot, number in slots if not slot.startswith(OWN))

    def is_weight(self, number: int) -> bool:
        """Whether no call made it and no module was given it: ops alone read it, such as weights and buffers. In a
        server it is also read in several steps, since its own kernels write values that no recorded op made.
        """
        root = self.root_of(number)
        is_unmade = root not in self.producers and root not in self._of_modules
        return is_unmade and (len(self.contents.batches) < 2 or root in self._read_again)

    @cached_property
    def _read_again(self) -> frozenset[int]:
        """What ops of more than one step read."""
        first_steps: dict[int, int] = {}
        again = set()
        for call in self.calls:
            for root in {self.root_of(number) for number in call.inputs.values()}:
                if first_steps.setdefault(root, call.step) != call.step:
                    again.add(root)
        return frozenset(again)

    @cached_property
    def bookkeeping(self) -> frozenset[int]:
        """Of a server, the whole numbers that are made of no floating-point number and that no module is given: handles
        of packed weights, counters, block tables, the scheduler's plans and the buffers that these lie in. They go by
        what else the process serves, and by where its memory lies, so they are no values of the model.
        """
        if not self.contents.batches:
            return frozenset()
        computed: set[int] = set()
        for call in self.calls:
            if call.level == "op" and any(self._is_computed(number, computed) for number in call.inputs.values()):
                computed.update(self.root_of(number) for number in (*call.outputs.values(), *call.written.values()))
        modules = (call for call in self.calls if call.level == "module")
        handed = {number for call in modules for number in (*call.inputs.values(), *call.outputs.values())}
        return frozenset(
            number
            for number, value in self.contents.values.items()
            if number not in handed and value.label != "random" and not self._is_computed(number, computed)
        )

    def _is_computed(self, number: int, computed: Collection[int]) -> bool:
        """Whether a value is of floating-point numbers, or made of such."""
        return self.value(number).dtype not in WHOLE or self.root_of(number) in computed

    @cached_property
    def drawn(self) -> frozenset[int]:
        """Of a server, tokens that were drawn at random, and what is looked up by them outside all modules."""
        drawn: set[int] = set()
        for call in self.calls if self.contents.batches else ():
            inputs = [self.root_of(number) for number in call.inputs.values()]
            if call.level == "op" and any(root in drawn or self.value(root).label == "random" for root in inputs):
                results = {self.root_of(number) for number in (*call.outputs.values(), *call.written.values())}
                drawn.update(root for root in results if not call.path or self.value(root).dtype in WHOLE)
        return frozenset(drawn)

    @cached_property
    def selected(self) -> frozenset[int]:
        """Values whose rows were selected by other values, such as the tokens of one expert: their order is that of the
        selection, also where there are as many rows as tokens.
        """
        selected: set[int] = set()
        for call in self.calls:
            op = call.name.removeprefix("aten.").partition(".")[0].rstrip("_")
            if call.level != "op" or op.startswith(_PUT_BACK):
                continue
            inputs = [self.value(number) for number in call.inputs.values()]
            rows = {value.shape[:1] for value in inputs if self.root_of(value.id) in selected}
            if op in _TAKE and inputs and self.root_of(inputs[0].id) in selected:
                rows = set()  # Selected rows of selected ones: the inverse of an order, which ends it.
            for number in call.outputs.values():
                shape = self.value(number).shape
                is_new = op == "nonzero" or (op in _SELECTIONS and len(shape) == 1)
                if shape and (is_new or shape[:1] in rows):
                    selected.add(self.root_of(number))
        return frozenset(selected)

    @cached_property
    def weights(self) -> Mapping[str | None, bool]:
        """The digests of all weights."""
        roots = {self.root_of(number) for call in self.calls for number in call.inputs.values()}
        return {self.value(root).digest: True for root in roots if self.is_weight(root) and self.value(root).digest}

    def root_digest(self, number: int) -> str | None:
        """The digest of what a value looks at, or of itself."""
        return self.value(self.root_of(number)).digest

    @cached_property
    def _returns(self) -> tuple[Mapping[int, int], list[int]]:
        """The place of each call in the order of returns, and the greatest id up to each place."""
        return (
            {call.id: place for place, call in enumerate(self.calls)},
            list(accumulate((call.id for call in self.calls), max)),
        )

    def returned(self, call: Call) -> tuple[int, int]:
        """When a call returned, to be compared with other times."""
        return self._returns[0][call.id], 1

    def entered(self, call: Call) -> tuple[int, int]:
        """When a call was entered: before the first return of a call with an id that is not below its own."""
        return bisect_left(self._returns[1], call.id), 0

    def tensor(self, number: int) -> Tensor | None:
        """The whole value, where it was kept."""
        return self.store.tensor(self.value(number))

    def rows(self, number: int) -> Tensor | None:
        """The digests of a value's rows, int64 [rows]. A view that leaves the rows of its base whole has the digests of
        its base.
        """
        value = self.value(number)
        if value.rows:
            return self.store.rows(value)
        tensor = self.store.tensor(value)
        if tensor is not None:
            return row_digests(tensor)
        return self.rows_of_view(value)

    def rows_of_view(self, value: Value) -> Tensor | None:
        """The digests of a view's rows, taken of those of what it looks at; None where it cuts them, or is none."""
        if value.base is None:
            return None
        base = self.value(value.base)
        if not value.shape or not base.shape or value.dtype != base.dtype or value.shape[-1] != base.shape[-1]:
            return None
        width, offset = base.shape[-1], value.offset - base.offset
        steps = value.strides[:-1]
        if not width or not base.is_contiguous or (width > 1 and value.strides[-1] != 1):
            return None
        if offset % width or any(step % width for step in steps):
            return None
        rows = self.rows(base.id)
        if rows is None:
            return None
        places = torch.tensor(offset // width)
        for size, step in zip(value.shape[:-1], steps, strict=True):
            places = places.unsqueeze(-1) + torch.arange(size) * (step // width)
        places = places.reshape(-1)
        return rows[places] if not len(places) or int(places.max()) < len(rows) else None

    def digest(self, number: int) -> str | None:
        """The digest of a value; made of its rows' where none was taken of itself, or zeros alone stand there."""
        value = self.value(number)
        if value.digest is not None and value.digest.strip("0"):
            return value.digest
        rows = self.rows(number)
        return None if rows is None else value_digest(rows, value.shape, value.dtype)

    def root_of(self, number: int) -> int:
        """The value whose bytes a view, or a view of a view, looks at; of anything else itself."""
        for _ in range(MOST_VIEWS):
            base = self.value(number).base
            if base is None:
                return number
            number = base
        raise TraceError(f"{self.folder}: value {number} is a view of itself. Record the trace anew.")

    def is_zero(self, number: int) -> bool:
        """Whether every element is known to be zero."""
        value = self.value(number)
        count = torch.Size(value.shape).numel()
        if value.stats is not None and "absmax" in value.stats:
            return count > 0 and value.stats["absmax"] == 0 and not {"nan", "inf"} & value.stats.keys()
        if value.digest is None or not count:
            return False
        width = value.shape[-1] if value.shape else 1
        key = value.dtype, width
        if key not in self._zero_rows:
            dtype = getattr(torch, value.dtype, None)
            zero = torch.zeros(1, width, dtype=dtype) if isinstance(dtype, torch.dtype) else torch.zeros(0, width)
            self._zero_rows[key] = int(row_digests(zero)[0]) if len(zero) else 0
        rows = torch.full((count // width,), self._zero_rows[key])
        return value_digest(rows, value.shape, value.dtype) == value.digest


def side_of(name: str, rank: RankTrace) -> Side:
    """One rank's trace as a side. Raises TraceError."""
    calls = tuple(_reading_weights(call) if call.weights else call for call in rank.contents.calls)
    return Side(name, str(Where(rank.folder)), rank.head, replace(rank.contents, calls=calls), rank)


def _reading_weights(call: Call) -> Call:
    """A module's call with its own weights among what it reads."""
    own_weights = {f"{OWN}{slot}": number for slot, number in call.weights.items()}
    return replace(call, inputs={**call.inputs, **own_weights}, weights={})
