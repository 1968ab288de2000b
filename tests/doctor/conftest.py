"""A small run without a fault, to which tests add evidence of other kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.doctor.programs import drifted, log, scored, tokens, two_layers

EXPERTS = 8


@pytest.fixture(scope="package")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of the shipped checkpoint."""
    return two_layers(tmp_path_factory.mktemp("small") / "step-2")


@pytest.fixture(scope="package")
def fewer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """These with their first eight experts, which takes a third as long."""
    return two_layers(tmp_path_factory.mktemp("fewer") / "step-2", experts=EXPERTS, top_k=3)


@pytest.fixture(scope="package")
def small_before(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights before the update."""
    return drifted(small, tmp_path_factory.mktemp("small") / "step-1")


@pytest.fixture(scope="package")
def few_ids() -> torch.Tensor:
    return tokens(6, 16)


@pytest.fixture(scope="package")
def few_scores(small: Path, few_ids: torch.Tensor) -> torch.Tensor:
    """What a transformers says of these tokens: fp32 [6, 15] in nats."""
    return scored(small, few_ids, 6, kernel="eager")


@pytest.fixture
def run_folder(tmp_path: Path, few_ids: torch.Tensor, few_scores: torch.Tensor) -> Path:
    """A folder with a log of both sides, which agree."""
    log(tmp_path / "log.jsonl", few_ids, few_scores, few_scores)
    return tmp_path
