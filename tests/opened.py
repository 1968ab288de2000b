"""Checkpoints that tests of one process share, each opened once, its weights held."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from moeparity.inputs.model import Model, open_model
from tests.gated.model import GRAPH, opened_gated


def opened(folder: Path, **_: object) -> Model:
    """On the CPU; what `bisect` and `prepare` take as their `opener`."""
    return _opened(Path(folder))


@lru_cache(maxsize=16)
def _opened(folder: Path) -> Model:
    if (folder / GRAPH).exists():
        return opened_gated(folder)
    return open_model(folder, device="cpu", residency="resident")
