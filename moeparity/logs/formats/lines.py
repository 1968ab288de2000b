"""JSON files, read line by line: a line is an object or a list of objects.

A file that is one JSON document over several lines is read as a whole, and must not be large. `*.gz` is unpacked while
reading.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import orjson

from moeparity import paths
from moeparity.errors import LogError, Where, shown
from moeparity.logs.formats.fields import Address, Fields

_BUFFER = 2**20
"""Bytes read at once. Lines of such logs are long; Python's default of 8 KiB would add a quarter to the parsing
time.
"""
_LONGEST_OPENING = 64
"""If the first line is no JSON by itself, it may open a document if it is at most this many bytes long; else it is
broken.
"""
_MOST_BLANKS = 1_000_000
"""The most blank lines in a row, since a compressed file of kilobytes can have billions of them."""
GZIP = b"\x1f\x8b"


class JsonFile:
    """The records of a file. An address is the offset and number of a line, and the record's index in it. Raises
    LogError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _open(path) as file:
            self._packed = file.read(2) == GZIP
        self._document = self._whole_document()

    def records(self) -> Iterator[tuple[Address, Fields]]:
        """All records, in order; blank lines are skipped."""
        if self._document is not None:
            yield from (((0, 0, item), record) for item, record in enumerate(self._document))
            return
        with self._stream() as file:
            offset = 0
            for number, raw in enumerate(_raw_lines(file, self.path), start=1):
                if not raw.isspace():
                    for item, record in enumerate(_records(Where(self.path, number), raw)):
                        yield (offset, number, item), record
                offset += len(raw)

    def at(self, address: Address) -> Fields:
        """One record."""
        offset, number, item = address
        if self._document is not None:
            return self._document[item]
        if self._packed:
            raise LogError(
                f"{Where(self.path)}: packed with gzip, in which single lines cannot be looked up. Unpack it: "
                f"gunzip {self.path.name}."
            )
        with _open(self.path) as file:
            file.seek(offset)
            return _records(Where(self.path, number), file.readline())[item]

    def _stream(self) -> IO[bytes]:
        return cast("IO[bytes]", gzip.open(self.path, "rb")) if self._packed else _open(self.path)

    def _whole_document(self) -> list[Fields] | None:
        """The records of a file that is one document; None if each line is a document."""
        with self._stream() as file:
            first = next((raw for raw in _raw_lines(file, self.path) if not raw.isspace()), b"")
        if not first:
            raise LogError(f"{Where(self.path)}: empty; expected JSON, one record per line.")
        if _parses(first) or first.lstrip()[:1] not in {b"{", b"["} or len(first) > _LONGEST_OPENING:
            return None
        most, parts, size = paths.limit(paths.LIMITS["log that is one JSON document"]), [], 0
        with self._stream() as file:
            for raw in _raw_lines(file, self.path):
                parts.append(raw)
                size += len(raw)
                if size > most:
                    raise LogError(
                        f"{Where(self.path)}: too large for one JSON document: more than {most:,} bytes. Write one "
                        "record per line."
                    )
        return _records(Where(self.path), b"".join(parts), whole=True)


def _open(path: Path) -> IO[bytes]:
    return paths.opened(path, buffering=_BUFFER)


def _raw_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """The lines of a file that may be compressed. Raises LogError if a line, or all lines together, are too large."""
    longest, most = (paths.limit(paths.LIMITS[key]) for key in ("line of a log", "log once unpacked"))
    size, blanks = 0, 0
    try:
        while raw := file.readline(longest + 1):
            size += len(raw)
            blanks = blanks + 1 if raw.isspace() else 0
            if len(raw) > longest or size > most or blanks > _MOST_BLANKS:
                raise LogError(
                    f"{Where(path)}: no log: a line of more than {longest:,} bytes, {_MOST_BLANKS:,} blank lines, or "
                    f"{most:,} bytes in all ({paths.LIMIT_FACTOR} raises the numbers of bytes)."
                )
            yield raw
    except (OSError, EOFError, zlib.error) as error:
        raise LogError(f"{Where(path)}: cannot be read to its end: {str(error)[:100]}.") from None


def _parses(raw: bytes) -> bool:
    try:
        _parse(raw)
    except ValueError:
        return False
    return True


def _parse(raw: bytes) -> Any:
    """Parse JSON, and also NaN and Infinity, which Python's json writes although the standard has none. Raises
    ValueError.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        if b"NaN" not in raw and b"Infinity" not in raw:
            raise
    try:
        return json.loads(raw)
    except RecursionError:
        raise ValueError("lists too deep") from None


def _records(where: Where, raw: bytes, *, whole: bool = False) -> list[Fields]:
    try:
        value = _parse(raw)
    except ValueError as error:
        if not whole and not raw.endswith(b"\n"):
            raise LogError(
                f"{where}: the last line stops in the middle of a record: what wrote the file ended there, or still "
                "writes. Wait for it, or take the line away."
            ) from None
        raise LogError(f"{where}: not JSON: {str(error)[:100]}.") from None
    records = value if isinstance(value, list) else [value]
    for record in records:
        if not isinstance(record, dict):
            raise LogError(f"{where}: {shown(record)} is no record; expected a JSON object.")
    return [Fields(where, record) for record in records]
