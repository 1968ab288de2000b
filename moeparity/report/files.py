"""Writing results: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from moeparity.errors import MoeparityError, Where

if TYPE_CHECKING:
    import torch


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically. Raises MoeparityError where the folder is missing or not writable."""
    _atomically(path, lambda temporary: temporary.write_text(text + "\n", "utf-8"))


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a safetensors file atomically. Raises MoeparityError where the folder is missing or not writable."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        _atomically(path, lambda temporary: save_file(tensors, temporary))
    except SafetensorError as error:
        raise MoeparityError(f"{Where(path)}: cannot be written: {error}. Is the disk full?") from None


def _atomically(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        temporary.replace(path)
    except OSError as error:
        raise MoeparityError(
            f"{Where(path)}: cannot be written: {error.strerror or error}. Check the folder."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
