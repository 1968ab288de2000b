"""Engines' Triton kernels with tensor cores on this GPU, compiled by the Triton that is here: their outputs' bits.

    python -m benchmarks.gpu.triton_kernels --out FILE

The cases are those of tests/engines/triton_kernels that Triton's interpreter runs without a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ["RUN_KERNELS"] = "device"

import torch
from torch import Tensor

from benchmarks.gpu.checkout import find_mapped_folders
from moeparity.numerics.bits import int_view


def moved(value: Any, device: str) -> Any:
    """Tensors of an argument or of outputs, on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    return {name: moved(x, device) for name, x in value.items()} if isinstance(value, Mapping) else value


def digest(arguments: Mapping[str, Any]) -> str:
    """Of the bits of all tensors among the arguments."""
    total = hashlib.sha256()
    for name, value in sorted(arguments.items()):
        if isinstance(value, Tensor):
            total.update(name.encode() + value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def main() -> int:
    """Run every case; one that fails says so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    find_mapped_folders()
    from tests.engines.triton_kernels.every import CASES  # noqa: PLC0415 - once the folders are found

    results: dict[str, Any] = {}
    for name, case in CASES["interpreter"].items():
        try:
            program = importlib.import_module(f"tests.engines.triton_kernels.{case.program}")
            with torch.no_grad(), torch.device("cuda"):
                outputs = moved(program.KINDS[case.kind](**moved(dict(case.arguments), "cuda")), "cpu")
            results[name] = {"arguments": digest(case.arguments), "outputs": outputs}
            ours = case.ours()
            print(f"{name}: " + ", ".join(f"{key} {_differ(outputs[key], value)}" for key, value in ours.items()))
        except Exception as error:  # noqa: BLE001 - the other cases go on
            results[name] = {"error": f"{type(error).__name__}: {error}"[:400]}
            print(f"{name}: {results[name]['error'][:200]}")
        sys.stdout.flush()
        torch.save(results, out)
    return 0


def _differ(theirs: Tensor, ours: Tensor) -> str:
    different = int_view(theirs.contiguous()) != int_view(ours.contiguous())
    return f"{int(different.sum())} of {different.numel()}"


if __name__ == "__main__":
    sys.exit(main())
