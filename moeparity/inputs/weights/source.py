"""Where tensors come from: a checkpoint's files, or a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

WIDTHS = {"BF16": 2, "F16": 2, "F32": 4}
"""Bytes of a number of each dtype that is read, by its name in safetensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor: the file it lies in (config.json where it lies in none), its safetensors dtype (`BF16`, `F32`, ...)
    and its shape.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """How many bytes its numbers take."""
        return math.prod(self.shape) * WIDTHS[self.dtype]


class Source(Protocol):
    """Tensors by name."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Every tensor there is."""
        ...

    @property
    def handed_out(self) -> int:
        """Bytes of all tensors handed out so far; one that is still being made counts as far as it is."""
        ...

    def tensor(self, name: str) -> Any:
        """The tensor, on the CPU, in the dtype of its entry; not to be written to."""
        ...
