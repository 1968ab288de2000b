"""The small checkpoints with fewer layers: for tests that cost as much as there are layers, all of them alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import make_random
from tests.small_models import SMALL

LAYERS = 2

_MADE: dict[str, Path] = {}
"""By name, the checkpoints that this process has made: several files may ask for one."""


def shallow(name: str) -> Any:
    """A fixture that takes the place of the small checkpoint of this name."""

    @pytest.fixture(scope="session", name=name)
    def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
        if name not in _MADE:
            _MADE[name] = make_random({**SMALL[name], "num_hidden_layers": LAYERS}, tmp_path_factory.mktemp(name))
        return _MADE[name]

    return checkpoint
