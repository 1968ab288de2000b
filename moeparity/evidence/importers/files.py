"""What importers read files with: nothing in a file is run, and every refusal names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from moeparity import paths
from moeparity.errors import TraceError, Where


def beside(folder: Path, name: str, key: str) -> Path:
    """The file of a folder that a document names under a key. Raises TraceError for one elsewhere."""
    if Path(name) != Path(Path(name).name):
        raise TraceError(f"{Where(folder)}: {key} {name!r} leads out of the folder. Expected a file in it.")
    return folder / name


def read_json(path: Path, expected: str) -> dict[str, Any]:
    """A JSON object. Raises TraceError."""
    try:
        document = json.loads(paths.contents(path, "file of another tool"))
    except OSError as error:
        raise TraceError(f"{Where(path)}: can't be read: {error.strerror}. Expected {expected}.") from None
    except (ValueError, RecursionError):
        raise TraceError(f"{Where(path)}: no JSON; expected {expected}.") from None
    if not isinstance(document, dict):
        raise TraceError(f"{Where(path)}: no JSON object; expected {expected}.")
    return document


def read_pt(path: Path) -> Any:
    """What torch.save wrote, by weights_only. Raises TraceError."""
    try:
        paths.measured(path, "torch.save")
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise TraceError(f"{Where(path)}: can't be read: {error.strerror}.") from None
    except Exception as error:  # noqa: BLE001  torch.load raises whatever its unpickler meets
        reason = str(error).partition("\n")[0][:200]
        raise TraceError(
            f"{Where(path)}: can't be read by torch.load with weights_only=True, and is read in no other way: {reason}"
        ) from None


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file. Raises TraceError."""
    try:
        paths.checked(path)
        tensors: dict[str, torch.Tensor] = load_file(path)
    except OSError as error:
        raise TraceError(f"{Where(path)}: can't be read: {error.strerror or error}.") from None
    except SafetensorError as error:
        raise TraceError(f"{Where(path)}: no safetensors file: {error}.") from None
    return tensors
