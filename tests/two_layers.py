"""Small checkpoints with two layers: for tests that cost as much as there are layers, and see no more in three."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.small_models import Shallow

LAYERS = 2


def two_layers(name: str) -> Any:
    """A fixture that takes the place of the small checkpoint of this name."""

    @pytest.fixture(scope="session", name=name)
    def checkpoint(shallow: Shallow) -> Path:
        return shallow(name, LAYERS)

    return checkpoint
