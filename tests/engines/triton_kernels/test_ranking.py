"""By what SGLang's router ranks experts: more are chosen than have scores above 0."""

from __future__ import annotations

import pytest
import torch

from tests.engines.triton_kernels import moe
from tests.engines.triton_kernels.case import Outputs, evidence, run
from tests.ops.plain import BF16
from tests.verified import record

pytestmark = pytest.mark.live
CASE = moe.gate_case(24, 16, 12, BF16, score="softmax", low=True)


@pytest.fixture(scope="module")
def outputs() -> Outputs:
    return run([CASE], "ptx")[CASE.name]


def test_experts_are_ranked_by_their_logits(outputs: Outputs) -> None:
    """By scores another expert is chosen for over half of the tokens."""
    assert torch.equal(CASE.ours()["ids"], outputs["ids"])
    by_scores = CASE.ours(rank_on="scores")["ids"]
    assert (by_scores != outputs["ids"]).any(-1).float().mean() > 0.5
    (fields,) = evidence(CASE, outputs, "ptx")
    ranked = {"timing": "before_topk", "rank_on": "logits"}
    record(**{**fields, "at": ranked, "blind": ("timing",)})
