"""The small checkpoints with fewer layers: for tests that cost as much as there are layers, all of them alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import make_random
from tests.small_models import SMALL

LAYERS = 2


def shallow(name: str) -> Any:
    """A fixture that takes the place of the small checkpoint of this name."""

    @pytest.fixture(scope="session", name=name)
    def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return make_random({**SMALL[name], "num_hidden_layers": LAYERS}, tmp_path_factory.mktemp(name))

    return checkpoint
