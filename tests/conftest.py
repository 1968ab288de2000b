"""One torch thread, no network, and the checkpoints several tests share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

from checkpoint_factory import make_small, make_wide

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
