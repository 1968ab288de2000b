"""A bisection and a forward whose weights stream from files to this device: memory, bytes and throughput."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import streaming
from benchmarks.gpu.budget import Budget
from tests.checkpoint_factory import make_small, make_wide

LAYERS, EXPERTS, REPEATS = 4, 64, 3
"""2.5 GB."""


def measure(device: torch.device, budget: Budget, tiny: bool) -> dict[str, Any]:
    """Bytes that a bisection takes of the device's memory, and its bound; throughputs in bytes a second."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if tiny:
            make_small("qwen3_moe", folder)
        else:
            make_wide(folder, LAYERS, EXPERTS)
        files = sorted(folder.glob("*.safetensors"))
        streaming.prepared(folder)
        size = sum(path.stat().st_size for path in files)
        # Kernels are loaded and workspaces made before anything is measured.
        warm = streaming.streamed(folder, device.type)
        memory = streaming.bisected(folder, device.type)
        plain, streamed = [], []
        for _ in range(REPEATS):
            if budget.spent:
                break
            plain.append(size / streaming.read_plainly(files))
            streaming.forget(files)
            streamed.append(size / streaming.streamed(folder, device.type)["seconds"])
    return {
        "size": size,
        "read": warm["read"],
        "tokens": [streaming.SEQUENCES, streaming.TOKENS],
        "memory": memory,
        "holds": memory["taken"] <= memory["bound"],
        "repeats": len(streamed),
        "plain": max(plain, default=None),
        "streamed": max(streamed, default=None),
        "not_run": [] if streamed else ["throughput"],
    }
