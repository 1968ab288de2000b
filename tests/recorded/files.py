"""Recorded outputs of hardware, read: tensors by name, and what is no tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from moeparity.numerics.bits import int_view

H200 = Path(__file__).parent / "h200"


def read(name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A file of the H200: its tensors, and its facts."""
    with safe_open(H200 / f"{name}.safetensors", "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["facts"])  # noqa: SIM118


def count_of_others(ours: torch.Tensor, theirs: torch.Tensor) -> int:
    """How many numbers of two tensors have other bits."""
    return int((int_view(ours) != int_view(theirs)).sum())
