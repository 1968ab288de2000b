"""moeparity: which numerical choice makes two implementations of one MoE checkpoint disagree, and by how much.

`bisect(recipe, options=Options(...))` gives a Report, `forward(checkpoint, input_ids)` the tensors of one variant,
`open_model(folder)` a checkpoint to pass to `forward` more than once, `sweep(recipe, ["dtype=bf16,fp32"])` a row per
value. They import torch when first used, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moeparity.errors import MoeparityError

if TYPE_CHECKING:
    from moeparity.model import Model, forward, open_model
    from moeparity.pipeline import bisect
    from moeparity.plan import Options
    from moeparity.report.model import Report
    from moeparity.report.sweep import Sweep
    from moeparity.sweeping import sweep

__version__ = "0.1.0"
__all__ = ["Model", "MoeparityError", "Options", "Report", "Sweep", "bisect", "forward", "open_model", "sweep"]

_HOMES = {
    "Model": "moeparity.model",
    "Options": "moeparity.plan",
    "Report": "moeparity.report.model",
    "Sweep": "moeparity.report.sweep",
    "bisect": "moeparity.pipeline",
    "forward": "moeparity.model",
    "open_model": "moeparity.model",
    "sweep": "moeparity.sweeping",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'moeparity' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
