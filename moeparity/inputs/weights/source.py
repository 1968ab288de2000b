"""Where tensors come from: a checkpoint's files, or a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor: the file it lies in (config.json where it lies in none), its safetensors dtype (`BF16`, `F32`, ...)
    and its shape.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]


class Source(Protocol):
    """Tensors by name."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Every tensor there is."""
        ...

    def tensor(self, name: str) -> Any:
        """The tensor, on the CPU, in the dtype of its entry; not to be written to."""
        ...
