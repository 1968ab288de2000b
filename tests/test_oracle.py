"""The oracle profile against a plain fp64 forward, and what a run with an oracle says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from moeparity.errors import Where
from moeparity.graph.bind import bind
from moeparity.graph.profile import load_profile
from moeparity.model import forward, open_model
from tests.plain_forward import Plain

SMALL = ["qwen3_moe", "qwen3_moe_mha", "qwen3", "deepseek_v3", "deepseek_v3_yarn"]


def relative(ours: np.ndarray, truth: np.ndarray) -> float:
    return float(np.abs(ours - truth).max() / np.abs(truth).max())


@pytest.mark.parametrize("name", SMALL)
def test_the_oracle_is_exact_to_fp64(name: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(name)
    ids = torch.randint(300, (2, 19), generator=torch.Generator().manual_seed(4))
    plain = Plain(folder)
    truth = np.stack([plain.logits(row) for row in ids.tolist()])
    for settings in ({}, {"dtype": "fp64"}, {"micro_batch": 1}):
        logits = forward(folder, ids, profile="oracle", device="cpu", **settings)["logits"]  # type: ignore[arg-type]
        assert logits.dtype == torch.float64
        assert relative(logits.numpy(), truth) < 1e-12
    # What the tolerance is worth: fp32 throughout is millions of times farther.
    assert relative(forward(folder, ids, dtype="fp32", device="cpu")["logits"].numpy(), truth) > 1e-8


@pytest.mark.parametrize("name", SMALL)
def test_every_rounding_of_every_node_is_fp64(name: str, request: pytest.FixtureRequest) -> None:
    model = open_model(request.getfixturevalue(name), device="cpu")
    plan = bind(model.graph, load_profile("oracle", Where(Path(__file__))), model.dtype)
    for node in model.graph.nodes:
        kinds = {a.name: a.kind for a in node.op.attributes}
        rounded = {k: v for k, v in plan.active(node).items() if kinds[k] == "rounding"}
        assert set(rounded.values()) <= {"fp64"}, node.name
