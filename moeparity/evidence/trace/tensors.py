"""A safetensors file that is written as its tensors come, straight from their memory: nothing is copied or held.

The format has its header in front: room is left for it, which is filled up with blanks, as the format allows. The
library's own writer takes all tensors at once and copies each two times.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

_ROOM = 1 << 16
"""Bytes of the header of a file; where they are used up, a longer header moves what was written."""

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def storable(dtype: torch.dtype) -> bool:
    """Whether the format has that dtype."""
    return dtype in _DTYPES


def _octets(tensor: torch.Tensor) -> Any:
    """A contiguous tensor's own memory; of a single element any stride is contiguous to torch."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


class TensorFile:
    """One file; it has its name when it is closed, and `.part` before."""

    def __init__(self, path: Path) -> None:
        self._path, self._unfinished = path, path.with_suffix(".part")
        self._header: dict[str, Any] = {}
        self._at = 0
        self._file = self._unfinished.open("w+b", buffering=0)
        self._file.seek(8 + _ROOM)

    def add(self, key: str, tensor: torch.Tensor) -> None:
        """Write a tensor behind those that are there."""
        plain = tensor.detach().cpu().contiguous()
        octets = memoryview(_octets(plain)) if plain.numel() else memoryview(b"")
        self._header[key] = {
            "dtype": _DTYPES[plain.dtype],
            "shape": list(plain.shape),
            "data_offsets": [self._at, self._at + len(octets)],
        }
        self._at += len(octets)
        while octets:
            octets = octets[self._file.write(octets) :]

    def close(self) -> None:
        """Write the header and give the file its name."""
        header = json.dumps(self._header, separators=(",", ":")).encode()
        room = _ROOM if len(header) <= _ROOM else -(-len(header) // 8) * 8
        if room > _ROOM:
            self._make_room(room)
        self._file.seek(0)
        self._file.write(room.to_bytes(8, "little") + header.ljust(room))
        self._file.close()
        self._unfinished.replace(self._path)

    def _make_room(self, room: int) -> None:
        self._file.seek(8 + _ROOM)
        written = self._file.readall()
        self._file.seek(8 + room)
        self._file.write(written)
