"""Where tensors come from: the files of a checkpoint, or a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from moeparity.inputs.weights.formats import Block, Format

WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "I8": 1, "I32": 4, "I64": 8}
"""Bytes per number of each dtype that can be read, by its safetensors name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """How a quantised weight lies in its file: format, tensors by role, the rows and columns that share a scale (as
    they are stored), and the bytes of all its tensors.
    """

    form: Format
    tensors: Mapping[str, str]
    block: Block
    bytes: int

    @property
    def by_output(self) -> Block:
        """Outputs and inputs that share a scale."""
        return self.block[::-1] if self.form.input_major else self.block


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is read of a file under another name than an entry's: a tensor `name`, or of a stack of matrices one
    expert's, transposed where inputs come first there, and of either the `rows` from the first to that before the
    second.
    """

    name: str
    expert: int | None = None
    transposed: bool = False
    rows: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor: its file (config.json for synthetic ones), its safetensors dtype (`BF16`, `F32`, ...) and its
    shape. packed: how it lies there, if it is a quantised weight; the shape is that of the weight then. piece: what is
    read of the file, if that is not a tensor of the entry's name.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    packed: Packed | None = None
    piece: Piece | None = None

    @property
    def bytes(self) -> int:
        """The size of its data in bytes."""
        return self.packed.bytes if self.packed else math.prod(self.shape) * WIDTHS[self.dtype]


class Source(Protocol):
    """Tensors by name."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Every tensor there is."""
        ...

    @property
    def handed_out(self) -> int:
        """Bytes of all tensors handed out so far; one in the making counts as far as it is made."""
        ...

    def tensor(self, name: str) -> Any:
        """The tensor, on the CPU, in the dtype of its entry, in that of its product if it is packed; callers must not
        write to it.
        """
        ...
