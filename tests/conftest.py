"""One torch thread, and the checkpoints several tests share."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# So that tests can share helper modules, whichever way pytest was started.
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.checkpoint_factory import make_small, make_wide

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def qwen3_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small("qwen3_moe", tmp_path_factory.mktemp("qwen3_moe"))


@pytest.fixture(scope="session")
def qwen3_moe_mha(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small("qwen3_moe_mha", tmp_path_factory.mktemp("qwen3_moe_mha"))


@pytest.fixture(scope="session")
def qwen3_moe_odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small("qwen3_moe_odd", tmp_path_factory.mktemp("qwen3_moe_odd"))


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small("qwen3", tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="session")
def deepseek_v3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small("deepseek_v3", tmp_path_factory.mktemp("deepseek_v3"))


@pytest.fixture(scope="session")
def deepseek_v3_yarn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small("deepseek_v3_yarn", tmp_path_factory.mktemp("deepseek_v3_yarn"))


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """2.5 GB on disk, removed when the session ends."""
    folder = tmp_path_factory.mktemp("wide")
    yield make_wide(folder)
    shutil.rmtree(folder)
