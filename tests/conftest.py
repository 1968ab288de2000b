"""One torch thread, and the checkpoints several tests share."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

# So that tests can share helper modules, whichever way pytest was started.
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.checkpoint_factory import make_small, make_wide
from tests.small_models import SMALL

torch.set_num_threads(1)


def _small(name: str) -> Any:
    @pytest.fixture(scope="session", name=name)
    def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return make_small(name, tmp_path_factory.mktemp(name))

    return checkpoint


# One fixture for each small checkpoint, under its own name.
globals().update({name: _small(name) for name in SMALL})


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kept passes go to a folder of this session, never to the user's."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MOEPARITY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """2.5 GB on disk, removed when the session ends."""
    folder = tmp_path_factory.mktemp("wide")
    yield make_wide(folder)
    shutil.rmtree(folder)
