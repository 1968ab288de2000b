"""Logs of RL frameworks: which log-probabilities a sampler and a trainer gave the same tokens; `docs/logs.md`.

What is named here imports torch when first used, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moeparity.logs.formats.format import Format
    from moeparity.logs.formats.registry import FORMATS
    from moeparity.logs.opening import Join, Log, open  # noqa: A004
    from moeparity.logs.record import Sampling, Sequence

__all__ = ["FORMATS", "Format", "Join", "Log", "Sampling", "Sequence", "open"]

_HOMES = {
    "FORMATS": "moeparity.logs.formats.registry",
    "Format": "moeparity.logs.formats.format",
    "Join": "moeparity.logs.opening",
    "Log": "moeparity.logs.opening",
    "Sampling": "moeparity.logs.record",
    "Sequence": "moeparity.logs.record",
    "open": "moeparity.logs.opening",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'moeparity.logs' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
