"""One record of a log, with its lists as tensors. Strict about kinds and lengths, without a Python step per token."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from moeparity.errors import LogError, Where, did_you_mean, listed, shown

LARGEST_TOKEN = 2**31
Address = tuple[int, ...]
"""Where a record is in its file, so that it can be found again; each container defines the numbers."""


class Container(Protocol):
    """A file that consists of records, of whatever format."""

    def records(self) -> Iterator[tuple[Address, Fields]]:
        """All records, in order. Raises LogError."""

    def at(self, address: Address) -> Fields:
        """One record. Raises LogError."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A record by its keys; values are JSON lists or tensors. Every method raises LogError, which names the place."""

    where: Where
    values: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self.values.get(key) is not None

    def need(self, key: str) -> Any:
        """The value of a key that the producer always writes."""
        if self.values.get(key) is None:
            state = "is null" if key in self.values else "is missing"
            raise LogError(f"{self.where}: {key} {state}; the record has {listed(self.values) or 'nothing'}.")
        return self.values[key]

    def mapping(self, key: str) -> Fields:
        """A mapping inside the record."""
        return inner(self, self.need(key), key)

    def whole(self, key: str, *, least: int = 0) -> int:
        """A whole number of at most 64 bits."""
        value = self.need(key)
        if isinstance(value, Tensor) and value.numel() == 1 and not value.is_floating_point():
            value = value.item()
        if type(value) is not int or not least <= value < 1 << 63:
            raise LogError(f"{self.where}: {key} is {shown(value)}; expected a whole number from {least}.")
        return value

    def optional_whole(self, key: str) -> int | None:
        """A whole number; None if the key is missing or null."""
        return self.whole(key) if self.has(key) else None

    def word(self, key: str) -> str:
        """A word, or a whole number as a word."""
        value = self.need(key)
        if type(value) not in {str, int} or value == "":
            raise LogError(f"{self.where}: {key} is {shown(value)}; expected a word or a whole number.")
        return str(value)

    def optional_word(self, key: str) -> str | None:
        """A word; None if the key is missing or null."""
        return self.word(key) if self.has(key) else None

    def tokens(self, key: str, *, first: int | None = None) -> Tensor:
        """Token ids, int64 [n], at least one; only the `first` ones if the rest is padding."""
        value = self.need(key)
        ids = integers(self, key, value if first is None else value[:first])
        if not ids.numel():
            raise LogError(f"{self.where}: {key} is empty; expected at least one token.")
        low, high = torch.aminmax(ids)
        if int(low) < 0 or int(high) >= LARGEST_TOKEN:
            bad = int(low) if int(low) < 0 else int(high)
            raise LogError(f"{self.where}: {key} holds {bad}; expected token ids, from 0 to {LARGEST_TOKEN - 1}.")
        return ids

    def entries(self, key: str) -> list[Any]:
        """A list of anything."""
        return _list(self, key, self.need(key))

    def length(self, key: str) -> int:
        """The length of a list."""
        value = self.need(key)
        return len(value if isinstance(value, Tensor) and value.dim() else _list(self, key, value))

    def integers(self, key: str, size: int) -> Tensor:
        """int64 [size]."""
        return self._sized(key, integers(self, key, self.need(key)), size)

    def floats(self, key: str, size: int, *, scored: Tensor | None = None) -> Tensor:
        """A list of floats, fp64 [size], NaN for null.

        With `scored` (bool [n]), only the first n, since the rest is padding; values that are not scored are checked
        less.
        """
        value = self.need(key)
        if scored is not None and isinstance(value, list) and len(value) == size:
            return numbers(self, key, value[: len(scored)], scored)
        return self._sized(key, numbers(self, key, value), size)

    def mask(self, key: str, size: int) -> Tensor:
        """bool [size] from 0 and 1, as integers, floats or booleans."""
        return self._sized(key, flags(self, key, self.need(key)), size)

    def only(self, keys: tuple[str, ...]) -> None:
        """Refuses unknown keys; in moeparity's own format such a key is a typing error."""
        for key in self.values:
            if key not in keys:
                raise LogError(
                    f"{self.where}: unknown key {key!r}; expected one of {listed(keys)}.{did_you_mean(key, keys)}"
                )

    def _sized(self, key: str, column: Tensor, size: int) -> Tensor:
        if len(column) != size:
            raise LogError(f"{self.where}: {key} has {len(column)} entries; the sequence has {size} tokens.")
        return column


def inner(fields: Fields, value: Any, key: str) -> Fields:
    """A value found under a key, which has to be a mapping, as Fields."""
    if not isinstance(value, Mapping):
        raise LogError(f"{fields.where}: {key} is {shown(value)}; expected a mapping.")
    return Fields(fields.where, value)


def numbers(fields: Fields, key: str, value: Any, scored: Tensor | None = None) -> Tensor:
    """A list of numbers and nulls, or a tensor of floats -> fp64 [n], NaN for null; `scored` as in `Fields.floats`."""
    if isinstance(value, Tensor):
        return _flat(fields, key, value, floating=True).to(torch.float64)
    value = _list(fields, key, value)
    if not value:
        return torch.empty(0, dtype=torch.float64)
    packed = _pack("d", value)
    if packed is None:
        _check_numbers(fields, key, value)
        packed = _pack("d", [torch.nan if entry is None else entry for entry in value])
    if packed is None:
        raise LogError(f"{fields.where}: {key} holds a number too large for a float.")
    column = torch.frombuffer(packed, dtype=torch.float64)
    if _hides_flags(value, column, scored):
        _check_numbers(fields, key, value)
    return column


def _check_numbers(fields: Fields, key: str, values: list[Any]) -> None:
    for index, value in enumerate(values):
        if value is not None and type(value) not in {int, float}:
            raise LogError(f"{fields.where}: {key}[{index}] is {shown(value)}; expected a number or null.")


def integers(fields: Fields, key: str, value: Any) -> Tensor:
    """A list of whole numbers, or a tensor of them -> int64 [n]."""
    if isinstance(value, Tensor):
        return _flat(fields, key, value, floating=False).to(torch.int64)
    value = _list(fields, key, value)
    if not value:
        return torch.empty(0, dtype=torch.int64)
    packed = _pack("q", value)
    column = None if packed is None else torch.frombuffer(packed, dtype=torch.int64)
    if column is None or _hides_flags(value, column):
        index = next((i for i, entry in enumerate(value) if type(entry) is not int), None)
        fault = "a number past 64 bits" if index is None else f"{shown(value[index])} at index {index}"
        raise LogError(f"{fields.where}: {key} holds {fault}; expected whole numbers.")
    return column


def flags(fields: Fields, key: str, value: Any) -> Tensor:
    """A list or tensor of 0 and 1, false and true -> bool [n]."""
    if isinstance(value, Tensor):
        column = _flat(fields, key, value, floating=None)
    else:
        value = _list(fields, key, value)
        if not value:
            return torch.empty(0, dtype=torch.bool)
        try:
            # By way of bytes, since making a bytearray from a list takes twice as long.
            column = torch.frombuffer(bytearray(bytes(value)), dtype=torch.uint8)
        except (TypeError, ValueError):
            column = numbers(fields, key, value)
    if not bool(((column == 0) | (column == 1)).all()):
        raise LogError(f"{fields.where}: {key} holds something other than 0 and 1.")
    return column.to(torch.bool)


def _hides_flags(values: list[Any], packed: Tensor, scored: Tensor | None = None) -> bool:
    """Whether a `false` or `true` was packed as 0 or 1 (at a scored token, if these are given)."""
    suspects = (packed == 0) | (packed == 1)
    if scored is not None:
        suspects &= scored
    return any(type(values[index]) is bool for index in suspects.nonzero()[:, 0].tolist())


def _list(fields: Fields, key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise LogError(f"{fields.where}: {key} is {shown(value)}; expected a list.")
    return value


def _pack(kind: str, values: list[Any]) -> bytearray | None:
    """The numbers of a list as packed bytes; None if an element is not a number. Twice as fast as numpy.array."""
    packed = bytearray(8 * len(values))
    try:
        struct.pack_into(f"{len(values)}{kind}", packed, 0, *values)
    except (struct.error, TypeError, OverflowError):
        return None
    return packed


def _flat(fields: Fields, key: str, column: Tensor, *, floating: bool | None) -> Tensor:
    """The column as [n], from [n] or [1, n], of the kind asked for."""
    flat = column[0] if column.dim() == 2 and column.shape[0] == 1 else column
    wrong = floating is not None and flat.is_floating_point() != floating
    if flat.dim() != 1 or wrong or flat.is_complex():
        kind = {True: "floats", False: "whole numbers", None: "numbers"}[floating]
        name = str(column.dtype).removeprefix("torch.")
        raise LogError(f"{fields.where}: {key} is {name} {list(column.shape)}; expected {kind}, one per token.")
    return flat.detach().cpu()
