"""The reader of a trace: strict about what is damaged, plain about what is not there yet."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from moeparity import paths
from moeparity.errors import TraceError, Where
from moeparity.evidence.trace.records import KINDS, SCHEMA, Batch, Call, End, Head, Note, Record, Stack, Value
from moeparity.evidence.trace.writer import EVENTS, HEAD, ROWS, TENSORS

RecordKind = TypeVar("RecordKind")


@dataclass(frozen=True, slots=True)
class Contents:
    """All records of a rank's trace in memory.

    `calls` are in the order in which they returned. `whole`: whether the program got to the end of its recording.
    `batches`: of a server, the rows of each step, by step.
    """

    calls: tuple[Call, ...]
    values: Mapping[int, Value]
    stacks: Mapping[int, Stack]
    notes: tuple[str, ...]
    whole: bool
    batches: Mapping[int, Batch] = field(default_factory=dict)


class RankTrace:
    """One rank's part of a trace, `TRACE/rank-N`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.head = _head(folder / HEAD)

    def records(self) -> Iterator[Record]:
        """The records in the order of the file, one at a time; a last line that is not whole is left out.

        Raises TraceError for a line that is no record.
        """
        path = self.folder / EVENTS
        longest = paths.limit(paths.LIMITS["line of a trace"])
        try:
            with paths.opened(path) as file:
                number = 0
                while line := file.readline(longest + 1):
                    number += 1
                    if not line.endswith(b"\n"):
                        if len(line) > longest:
                            raise TraceError(f"{Where(path, number)}: a line of more than {longest:,} bytes.")
                        return
                    yield _record(line, Where(path, number))
        except OSError as error:
            raise TraceError(f"{Where(path)}: can't be read: {error.strerror}.") from None

    @cached_property
    def contents(self) -> Contents:
        """All records at once, some 500 bytes of memory each. Raises TraceError."""
        gathered = _Gathered()
        for record in self.records():
            gathered.add(record)
        return Contents(
            calls=tuple(gathered.calls),
            values=gathered.values,
            stacks=gathered.stacks,
            notes=tuple(gathered.notes),
            whole=gathered.whole,
            batches=gathered.batches,
        )

    def rows(self, value: Value) -> torch.Tensor | None:
        """The digests of a value's rows, int64 [rows]; None where none were kept. Raises TraceError."""
        return self._stored(value, ROWS) if value.rows else None

    def tensor(self, value: Value) -> torch.Tensor | None:
        """The whole value, where it was kept; of a view of a kept value its elements. Raises TraceError."""
        if value.tensor:
            return self._stored(value, str(value.id))
        base = self.contents.values.get(value.base) if value.base is not None else None
        whole = None if base is None else self.tensor(base)
        if base is None or whole is None or value.dtype != base.dtype or _reach(base) != whole.numel() - 1:
            return None
        offset = value.offset - base.offset
        if offset < 0 or not value.shape or offset + _reach(value) >= whole.numel():
            return None
        # Its elements as they lay in memory, whatever the order of the base's axes there.
        memory = torch.empty_like(whole).reshape(-1)
        memory.as_strided(base.shape, base.strides).copy_(whole)
        return memory.as_strided(value.shape, value.strides, offset)

    def has_tensor(self, value: Value) -> bool:
        """Whether the value was kept whole, or what it is a view of."""
        base = None if value.base is None else self.contents.values.get(value.base)
        return value.tensor or (base is not None and base.tensor)

    def _stored(self, value: Value, key: str) -> torch.Tensor:
        number = value.file if key == ROWS else value.tensor_file
        path = self.folder / TENSORS / f"{number or 0:06}.safetensors"
        try:
            status = paths.checked(path)
            file = _opened(path, status.st_size, status.st_mtime_ns)
            if key == ROWS and value.at is not None:
                end = value.at + math.prod(value.shape[:-1])
                tensor: torch.Tensor = file.get_slice(key)[value.at : end]
            else:
                tensor = file.get_tensor(key)
        except OSError as error:
            raise TraceError(
                f"{Where(path)}: can't be read: {error.strerror or error}. It holds value {key}."
            ) from None
        except SafetensorError as error:
            raise TraceError(f"{Where(path)}: value {key} can't be read: {error}.") from None
        if key != ROWS and (tuple(tensor.shape), str(tensor.dtype)) != (tuple(value.shape), f"torch.{value.dtype}"):
            raise TraceError(
                f"{Where(path)}: value {key} is {tensor.dtype} {list(tensor.shape)}, and its record says {value.dtype} "
                f"{list(value.shape)}: the trace is damaged. Record it anew."
            )
        return tensor


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace of one program, one part for each rank that wrote one, by rank."""

    folder: Path
    ranks: tuple[RankTrace, ...]


def open_trace(folder: Path) -> Trace:
    """A trace as it is on disk now. Raises TraceError for a folder that is none."""
    parts = sorted(folder.glob("rank-*"), key=lambda part: (len(part.name), part.name))
    if not parts:
        raise TraceError(
            f"{Where(folder)}: no trace: expected a folder with rank-0, rank-1 ..., as `moeparity capture` writes it."
        )
    return Trace(folder, tuple(RankTrace(part) for part in parts))


@lru_cache(maxsize=64)
def _opened(path: Path, size: int, changed: int) -> Any:
    """A file of tensors, which stays open: its head names every key, and is long to read. `size` and `changed` tell it
    from another under the same name.
    """
    return safe_open(path, framework="pt")


@dataclass(slots=True)
class _Gathered:
    calls: list[Call] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)
    stacks: dict[int, Stack] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    batches: dict[int, Batch] = field(default_factory=dict)
    end: End | None = None

    @property
    def whole(self) -> bool:
        """Whether the program got to its end, and every call that it counted there is here."""
        return self.end is not None and self.end.calls == len(self.calls)

    def add(self, record: Record) -> None:
        if isinstance(record, Call):
            self.calls.append(record)
        elif isinstance(record, Value):
            self.values[record.id] = record
        elif isinstance(record, Stack):
            self.stacks[record.id] = record
        elif isinstance(record, Note):
            self.notes.append(record.text)
        elif isinstance(record, Batch):
            self.batches[record.step] = record
        else:
            self.end = record


def _head(path: Path) -> Head:
    try:
        document = json.loads(paths.contents(path, "head of a trace"))
    except OSError as error:
        raise TraceError(f"{Where(path)}: can't be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise TraceError(f"{Where(path)}: no JSON; expected the head of a trace.") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise TraceError(f"{Where(path)}: schema {schema!r}; this version reads {SCHEMA}.")
    return _record_of(Head, document, Where(path))


def _record(line: bytes, where: Where) -> Record:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise TraceError(f"{where}: no JSON; expected one record of a trace.") from None
    kind: Callable[..., Record] | None = KINDS.get(document.pop("e", "")) if isinstance(document, dict) else None
    if kind is None:
        raise TraceError(f"{where}: no record of a trace; expected one with e: {', '.join(KINDS)}.")
    record = _record_of(kind, document, where)
    if isinstance(record, Value) and not _can_be(record):
        raise TraceError(
            f"{where}: value {record.id} of shape {list(record.shape)}, strides {list(record.strides)} and offset "
            f"{record.offset}; expected whole numbers of at least 0, a stride for each axis. Record the trace anew."
        )
    return record


def _can_be(value: Value) -> bool:
    """Whether a tensor can lie so; strides may be left out."""
    numbers = (*value.shape, *value.strides, value.offset)
    sizes = all(type(number) is int and number >= 0 for number in numbers)
    return sizes and len(value.strides) in {0, len(value.shape)}


def _record_of(kind: Callable[..., RecordKind], document: dict[str, Any], where: Where) -> RecordKind:
    """A record of a JSON object; lists become tuples."""
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in document.items()}
    try:
        return kind(**plain)
    except TypeError as error:
        raise TraceError(f"{where}: {str(error).rpartition('() ')[2]}: expected the fields of a record.") from None


def _reach(value: Value) -> int:
    """How far a value's last element lies behind its first."""
    return sum((size - 1) * step for size, step in zip(value.shape, value.strides, strict=True))
