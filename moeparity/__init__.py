"""moeparity: which numerical choice makes two implementations of one MoE checkpoint disagree, and by how much.

`bisect(recipe, options=Options(...))` gives a Report, `forward(checkpoint, input_ids)` the tensors of one variant,
`open_model(folder)` a checkpoint to pass to `forward` more than once, `sweep(recipe, ["dtype=bf16,fp32"])` a row per
value, `read_report(folder)` what a run that was kept in a folder (`run=`) ended with. They import torch when first
used, not before. `with capture(folder):` writes what a PyTorch program computes as a trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moeparity.errors import MoeparityError

if TYPE_CHECKING:
    from moeparity.bisection.options import Options
    from moeparity.bisection.pipeline import bisect
    from moeparity.bisection.report import Report
    from moeparity.bisection.runs.results import read_report
    from moeparity.bisection.sweep.report import Sweep
    from moeparity.bisection.sweep.run import sweep
    from moeparity.engine.forward import forward
    from moeparity.evidence.capture.context import capture
    from moeparity.inputs.model import Model, open_model

__version__ = "0.1.0"
__all__ = [
    "Model",
    "MoeparityError",
    "Options",
    "Report",
    "Sweep",
    "bisect",
    "capture",
    "forward",
    "open_model",
    "read_report",
    "sweep",
]

_HOMES = {
    "Model": "moeparity.inputs.model",
    "Options": "moeparity.bisection.options",
    "Report": "moeparity.bisection.report",
    "Sweep": "moeparity.bisection.sweep.report",
    "bisect": "moeparity.bisection.pipeline",
    "capture": "moeparity.evidence.capture.context",
    "forward": "moeparity.engine.forward",
    "open_model": "moeparity.inputs.model",
    "read_report": "moeparity.bisection.runs.results",
    "sweep": "moeparity.bisection.sweep.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'moeparity' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(["__version__", *__all__])
