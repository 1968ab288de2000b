"""Where tensors come from: the files of a checkpoint, or a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

WIDTHS = {"BF16": 2, "F16": 2, "F32": 4}
"""Bytes per number of each dtype that can be read, by its safetensors name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor: its file (config.json for synthetic ones), its safetensors dtype (`BF16`, `F32`, ...) and its
    shape.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The size of its data in bytes."""
        return math.prod(self.shape) * WIDTHS[self.dtype]


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
        """The tensor, on the CPU, in the dtype of its entry; callers must not write to it."""
        ...
