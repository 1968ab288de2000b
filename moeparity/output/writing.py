"""Writing results: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from moeparity.errors import MoeparityError, Where, display_path
from moeparity.progress import on_interruption

if TYPE_CHECKING:
    import torch


def refuse_unwritable(path: Path) -> None:
    """Refuse, before a run is paid for, a path that could not be written after it. Raises MoeparityError."""
    try:
        reason = "it is a folder" if path.is_dir() else None
        if reason is None and not path.parent.is_dir():
            reason = f"there is no folder {display_path(path.parent)}"
        elif reason is None and not os.access(path.parent, os.W_OK):
            reason = f"the folder {display_path(path.parent)} is read-only"
    except OSError as error:
        reason = str(error.strerror)
    if reason is not None:
        raise MoeparityError(f"{Where(path)}: cannot be written: {reason}. Give a file in a folder that exists.")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically. Raises MoeparityError where the folder is missing or not writable."""
    _atomically(path, lambda temporary: temporary.write_text(text + "\n", "utf-8"))


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically. Raises MoeparityError where the folder is missing or not writable."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        _atomically(path, lambda temporary: save_file(tensors, temporary, metadata))
    except SafetensorError as error:
        raise MoeparityError(f"{Where(path)}: cannot be written: {error}. Is the disk full?") from None


def _atomically(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with on_interruption(lambda: temporary.unlink(missing_ok=True)):
        try:
            write(temporary)
            temporary.replace(path)
        except OSError as error:
            raise MoeparityError(
                f"{Where(path)}: cannot be written: {error.strerror or error}. Check the folder."
            ) from None
        finally:
            temporary.unlink(missing_ok=True)
