"""The small checkpoints with fewer layers, for what is a matter of tokens and steps."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.small_models import Shallow, fields_of


@pytest.fixture(scope="session")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Shallow:
    """With one layer of each kind, or more; each is made once."""
    from tests.checkpoint_factory import make_random

    @cache
    def make(name: str, layers: int = 1) -> Path:
        return make_random(fields_of(name, layers), tmp_path_factory.mktemp(name))

    return make
