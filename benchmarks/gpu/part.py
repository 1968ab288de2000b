"""One part in this process: `benchmarks.gpu` starts it, and nobody else needs to."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import page
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.checkout import find_mapped_folders
from benchmarks.gpu.surroundings import machine, settings
from moeparity.output.json import to_json
from moeparity.output.writing import write_text

Measure = Callable[[torch.device, Budget, bool], Mapping[str, Any]]
"""What the module of each part has: it measures on a device, within a budget, in tiny sizes or not."""


def main() -> int:
    """Measure and write the result; 0 when it is written."""
    options = _options()
    find_mapped_folders()
    write(options.part, options.out, options.device, Budget(options.deadline), tiny=options.tiny)
    return 0


def write(part: str, folder: Path, device: str, budget: Budget, *, tiny: bool) -> None:
    """Run a part on `cuda` or `cpu` within its budget and write FOLDER/PART.json; tests take `tiny` sizes."""
    started = time.monotonic()
    # Imported here: what one part cannot import is no concern of the others.
    measure: Measure = importlib.import_module(f"benchmarks.gpu.{part}").measure
    measured = measure(torch.device(device), budget, tiny)
    result = {
        "part": part,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seconds": round(time.monotonic() - started, 1),
        "tiny": tiny,
        "machine": machine(torch.device(device)),
        # Read last: what was imported meanwhile may have changed them.
        "settings": settings(),
        **measured,
    }
    write_text(page.result_file(folder, part), to_json(page.SCHEMA, result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--deadline", type=float, required=True)
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
