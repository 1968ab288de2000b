"""msprobe's own PrecisionDebugger on a small model, forward and backward; run by tests/engines/live.py's `ask`."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor, enable_grad

from tests.engines.live import answer
from tests.evidence.importers.test_importers import IDS, Tiny


def dump(folder: str) -> dict[str, Tensor]:
    """Step 0 is the model, step 1 the one with a stale bias; what is given back are the gradients of step 0."""
    from msprobe.pytorch import PrecisionDebugger

    every: dict[str, list[str]] = {"scope": [], "list": [], "data_mode": ["all"]}
    place = Path(folder)
    config = {"task": "tensor", "dump_path": str(place / "dump"), "rank": [], "step": [], "level": "mix"}
    (place / "config.json").write_text(json.dumps(config | {"tensor": every}))
    debugger = PrecisionDebugger(config_path=str(place / "config.json"))
    gradients: dict[str, Tensor] = {}
    for stale in (False, True):
        program = Tiny(stale=stale)
        debugger.start(model=program)
        with enable_grad():  # the process computes without otherwise
            program(IDS).square().sum().backward()
        debugger.stop()
        debugger.step()
        for name, parameter in program.named_parameters():
            assert parameter.grad is not None
            gradients.setdefault(name, parameter.grad)
    return gradients


if __name__ == "__main__":
    answer({"dump": dump})
