"""Which device a run uses: CUDA where there is one, and never needed; and which processor it is."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from moeparity.errors import DeviceError

NAMES = ("auto", "cpu", "cuda")


def choose(name: str) -> torch.device:
    """`auto` is CUDA when a GPU is usable, else CPU. Raises DeviceError for an unknown name or an absent GPU."""
    if name not in NAMES:
        raise DeviceError(f"--device {name}: expected one of {', '.join(NAMES)}.")
    usable = torch.cuda.is_available()
    if name == "cuda" and not usable:
        raise DeviceError("--device cuda: torch finds no usable CUDA GPU here. Use --device cpu, or auto.")
    return torch.device("cuda" if usable and name != "cpu" else "cpu")


def cpu_name() -> str:
    """The processor's name, since its instruction set is part of the numerics."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
