"""Reads from a parquet file's footer how many rows and values the file claims to have, before anything is unpacked.

pyarrow 26.0.1 ends the whole process if a row group or a column chunk of a broken file is asked for its metadata, since
`RowGroup` and `ColumnChunk` in `pyarrow/includes/libparquet.pxd` let no C++ exception through. So the footer, which is
Thrift in its compact protocol (apache/parquet-format, `parquet.thrift`), is read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

_TAIL = 8
"""Bytes after the footer: its length and `PAR1`."""
_GROUPS, _COLUMNS, _ROWS, _METADATA, _VALUES = 4, 1, 3, 3, 5
"""Field numbers: `FileMetaData.row_groups`, `RowGroup.columns` and `num_rows`, `ColumnChunk.meta_data`,
`ColumnMetaData.num_values`."""

Struct = dict[int, Any]


class BrokenFooterError(Exception):
    """The bytes are not a valid footer."""


@dataclass(frozen=True, slots=True)
class Group:
    """A row group: its number of rows, and of values in its longest column chunk."""

    rows: int
    values: int


def row_groups(file: BinaryIO) -> list[Group]:
    """The row groups of a parquet file, in order. Raises BrokenFooterError."""
    try:
        file.seek(-_TAIL, 2)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-_TAIL - length, 2)
        groups = _Compact(file.read(length)).struct().get(_GROUPS, [])
        return [Group(group[_ROWS], max(map(_values, group[_COLUMNS]), default=0)) for group in groups]
    except (OSError, IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenFooterError from error


def _values(column: Struct) -> int:
    values: int = column[_METADATA][_VALUES]
    return values


class _Compact:
    """Reads Thrift's compact protocol: numbers, texts as bytes, lists, and structs as field number -> value."""

    def __init__(self, octets: bytes) -> None:
        self._octets, self._at = octets, 0

    def struct(self) -> Struct:
        fields, last = Struct(), 0
        while head := self._byte():
            last = last + (head >> 4) if head >> 4 else self._signed()
            fields[last] = head & 15 == 1 if head & 15 in {1, 2} else self._value(head & 15)
        return fields

    def _value(self, kind: int) -> Any:
        if kind in {1, 2, 3}:
            return self._byte()
        if kind in {4, 5, 6}:
            return self._signed()
        if kind in {7, 8}:
            return self._bytes(8 if kind == 7 else self._unsigned())
        if kind in {9, 10}:
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._unsigned()
            return [self._value(head & 15) for _ in range(count)]
        if kind == 11 and (count := self._unsigned()):
            head = self._byte()
            return [(self._value(head >> 4), self._value(head & 15)) for _ in range(count)]
        return self.struct() if kind == 12 else []

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._octets[self._at - count : self._at]

    def _byte(self) -> int:
        self._at += 1
        return self._octets[self._at - 1]

    def _unsigned(self) -> int:
        value, shift, octet = 0, 0, 128
        # No number has more than 64 bits.
        while octet > 127 and shift < 70:
            octet = self._byte()
            value, shift = value | (octet & 127) << shift, shift + 7
        return value

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
