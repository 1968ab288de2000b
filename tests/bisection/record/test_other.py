"""Records of both engines: of the one that sampled the tokens, and of the one that only scored them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from moeparity.bisection.report import Report
from moeparity.errors import TokensError
from tests.bisection.record.rollout import IDS, MASK, REFERENCE, Rollout, engine
from tests.bisection.reports import on_screen

Record = dict[str, Tensor]


@pytest.fixture(scope="module")
def rollout(qwen3_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Rollout:
    return Rollout(qwen3_moe, tmp_path_factory.mktemp("rollout"))


@pytest.fixture(scope="module")
def sampler(qwen3_moe: Path) -> Tensor:
    """What the candidate's engine records."""
    return engine(qwen3_moe)["logprobs"]


@pytest.fixture(scope="module")
def trainer(qwen3_moe: Path) -> Tensor:
    """What the reference's engine records."""
    return engine(qwen3_moe, settings=REFERENCE)["logprobs"]


@pytest.fixture(scope="module")
def both_recorded(rollout: Rollout, sampler: Tensor, trainer: Tensor) -> Report:
    return rollout.run({"logprobs": sampler, "trainer_logprobs": trainer})


def test_both_are_reproduced(both_recorded: Report, sampler: Tensor, trainer: Tensor) -> None:
    assert both_recorded.other_record is not None
    assert [(record.side, record.status) for record in both_recorded.records] == [
        ("candidate", "reproduced"),
        ("reference", "reproduced"),
    ]
    delta = (trainer - sampler)[MASK.bool()]
    assert both_recorded.other_record.tokens == len(delta)
    assert both_recorded.other_record.mean_abs_delta == pytest.approx(float(delta.abs().mean()))
    assert both_recorded.other_record.k3 == pytest.approx(float((delta.exp() - 1 - delta).mean()))
    assert both_recorded.verdict.status == "pass"


def test_the_screen_names_both(both_recorded: Report) -> None:
    screen = " ".join(on_screen(both_recorded, asked_for=("record",)).split())
    assert "record candidate reproduced: mean |delta|" in screen
    assert "; reference reproduced: mean |delta|" in screen
    assert "Record of the reference's engine REPRODUCED" in screen
    assert f"k3 {both_recorded.other_record.k3:.3g}, over 210 tokens" in screen
    assert json.loads(both_recorded.to_json())["other_record"]["record"]["status"] == "reproduced"


def test_a_trainer_that_is_not_what_the_reference_says(rollout: Rollout, sampler: Tensor, qwen3_moe: Path) -> None:
    """Two simulations agree, and the sampler's record comes out; the trainer's was made at another temperature."""
    trainer = engine(qwen3_moe, settings=REFERENCE, temperature=0.7)["logprobs"]
    report = rollout.run({"logprobs": sampler, "trainer_logprobs": trainer})
    assert [record.status for record in report.records] == ["reproduced", "not reproduced"]
    assert (report.verdict.status, report.exit_code) == ("inconclusive", 3)
    assert "the reference does not reproduce the record" in report.verdict.reason
    # Nearly even logits tell no temperature; what rests on tokens that this engine would have sampled is not named.
    assert report.summary.blame.startswith("the record, not the difference of both sides: no known cause shows")
    assert not report.records[1].causes


def test_the_trainers_record_alone(rollout: Rollout, trainer: Tensor) -> None:
    report = rollout.run({"trainer_logprobs": trainer})
    assert [record.status for record in report.records] == ["no record", "reproduced"]
    assert report.other_record is not None
    assert report.other_record.tokens == 0
    assert report.summary.record.startswith("reference reproduced")
    assert "The engines themselves" not in on_screen(report, asked_for=("record",))


def test_the_other_side_is_the_one_that_did_not_sample(rollout: Rollout, sampler: Tensor, trainer: Tensor) -> None:
    report = rollout.run({"logprobs": trainer, "trainer_logprobs": sampler}, sampled_from="reference")
    assert [(record.side, record.status) for record in report.records] == [
        ("reference", "reproduced"),
        ("candidate", "reproduced"),
    ]


def test_a_record_that_is_none(rollout: Rollout) -> None:
    with pytest.raises(TokensError, match=r"trainer_logprobs holds 0\.5; expected log-probabilities"):
        rollout.run({"trainer_logprobs": torch.full(IDS.shape, 0.5)})
