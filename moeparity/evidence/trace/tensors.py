"""A safetensors file that is written as its tensors come, straight from their memory: nothing is copied or held.

The format has its header in front: room is left for it, which is filled up with blanks, as the format allows. The
library's own writer takes all tensors at once and copies each two times. Where a tensor is zero for long, the file has
a hole: it reads as zeros, and is neither written nor stored.
"""

from __future__ import annotations

import json
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch

from moeparity.evidence.trace.memory import words_of

_ROOM = 1 << 16
"""Bytes of the header of a file."""

_ENTRY = 1024
"""So many of them an entry takes at most: torch's tensors have up to 64 axes."""

_PIECE = 1 << 16
"""Bytes that are looked at at once, whether they are zero."""

_WRITTEN = 1 << 18
"""Bytes that are written at once: Linux 6.18 with ext4 takes up to seven times as long over writes of 16 MiB."""

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def storable(dtype: torch.dtype) -> bool:
    """Whether the format has that dtype."""
    return dtype in _DTYPES


class TensorFile:
    """One file; it has its name when it is closed, and `.part` before."""

    def __init__(self, path: Path) -> None:
        self._path, self._unfinished = path, path.with_suffix(".part")
        self._header: list[str] = []
        self._used = 2
        self._at = 0
        self._file = self._unfinished.open("w+b", buffering=0)

    @property
    def has_room(self) -> bool:
        """Whether its header takes two more tensors of short names: the next, and the one that is written last."""
        return self._used + 2 * _ENTRY <= _ROOM

    def add(self, key: str, tensor: torch.Tensor) -> None:
        """Write a tensor behind those that are there. Raises ValueError where the header is full."""
        plain = tensor.detach().cpu().contiguous()
        end = self._at + plain.nbytes
        place = {"dtype": _DTYPES[plain.dtype], "shape": list(plain.shape), "data_offsets": [self._at, end]}
        entry = f"{json.dumps(key)}:{json.dumps(place, separators=(',', ':'))}"
        self._used += len(entry) + 1
        if self._used > _ROOM:
            raise ValueError(f"{self._unfinished}: its header of {_ROOM:,} bytes is full.")
        self._header.append(entry)
        if plain.numel():
            # Of a single element any stride is contiguous to torch.
            self._write(plain.as_strided((plain.numel(),), (1,)).view(torch.uint8))
        self._at = end

    def close(self) -> None:
        """Write the header and give the file its name."""
        self._file.truncate(8 + _ROOM + self._at)  # it may end with a hole
        self._file.seek(0)
        self._file.write(_ROOM.to_bytes(8, "little") + f"{{{','.join(self._header)}}}".encode().ljust(_ROOM))
        self._file.close()
        self._unfinished.replace(self._path)

    def _write(self, octets: torch.Tensor) -> None:
        """Write a tensor's own memory, but for pieces of it that are zero."""
        words = words_of(octets)
        memory = memoryview(words.view(np.uint8))
        each = _PIECE * len(words) // len(memory)
        zeros = [not words[at] and not words[at : at + each].any() for at in range(0, len(words), each)]
        for is_zero, run in groupby(enumerate(zeros), key=itemgetter(1)):
            if not is_zero:
                numbers = [number for number, _ in run]
                self._put(memory[numbers[0] * _PIECE : (numbers[-1] + 1) * _PIECE], self._at + numbers[0] * _PIECE)

    def _put(self, memory: memoryview, at: int) -> None:
        self._file.seek(8 + _ROOM + at)
        while memory:
            memory = memory[self._file.write(memory[:_WRITTEN]) :]
