"""One forward pass against transformers' own on this device: `benchmarks.forward`, here."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import forward
from benchmarks.gpu.budget import Budget
from tests.checkpoint_factory import make_wide
from tests.hf.reference import ARGUMENTS

LAYERS, EXPERTS, REPETITIONS = 2, 16, 9


def measure(device: torch.device, budget: Budget, tiny: bool) -> dict[str, Any]:
    """A row for each profile, and those that there was no time for."""
    layers, experts, repetitions = (1, 2, 1) if tiny else (LAYERS, EXPERTS, REPETITIONS)
    rows, not_run = [], []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_wide(Path(folder), layers, experts)
        for profile in ARGUMENTS:
            if budget.spent:
                not_run.append(profile)
                continue
            rows.append(forward.measure(checkpoint, profile, repetitions, device.type))
    return {
        "layers": layers,
        "experts": experts,
        "tokens": [forward.SEQUENCES, forward.TOKENS],
        "repetitions": repetitions,
        "rows": rows,
        "not_run": not_run,
    }
