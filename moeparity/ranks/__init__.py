"""Guards for live torch.distributed jobs: ranks stay in step, or the job ends with one clear difference
(`docs/ranks.md`). Names of this package are imported, and torch with them, when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moeparity.evidence.weights.weight_layout import WeightLayout
    from moeparity.ranks.guard import Guard
    from moeparity.ranks.process import hold

__all__ = ["Guard", "WeightLayout", "hold"]

_MODULES = {
    "Guard": "moeparity.ranks.guard",
    "WeightLayout": "moeparity.evidence.weights.weight_layout",
    "hold": "moeparity.ranks.process",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'moeparity.ranks' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
