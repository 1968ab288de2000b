"""One small model under hf-eager, and what each of its nodes computes there."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.inputs.model import Model
from moeparity.plan.bound import Plan
from tests.evidence.explain.observed import Seen, bound, opened, seen_under


@pytest.fixture(scope="package")
def model(qwen3_moe: Path) -> Model:
    return opened(qwen3_moe)


@pytest.fixture(scope="package")
def eager(model: Model) -> Plan:
    return bound(model, "hf-eager")


@pytest.fixture(scope="package")
def nodes(model: Model, eager: Plan) -> dict[str, Seen]:
    return seen_under(model, eager)
