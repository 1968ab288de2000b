"""The oracle's side, and which side is nearer the truth, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.bisection.oracle.report import Standing
from moeparity.bisection.oracle.side import ORACLE, oracle_side
from moeparity.bisection.oracle.words import accuracy_reading
from moeparity.errors import Where
from moeparity.inputs.model import open_model
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.sides import Side


def speak(standing: Standing, status: str = "fail", ratio: float = 0.62) -> str:
    return accuracy_reading(standing, status, ratio=ratio, reference=3e-4, candidate=1e-4, change=(-3e-4, -1e-4))


def test_nearer_is_not_parity() -> None:
    assert speak("nearer") == (
        "The candidate is nearer the truth, yet not parity: KL to the oracle 0.0001 against 0.0003 nats per token, "
        "with 0.62 x the reference's error at the logits."
    )
    assert speak("nearer", "inconclusive").startswith("The candidate is nearer the truth, yet parity is not shown:")
    assert speak("nearer", "pass").startswith("The candidate is nearer the truth: ")


def test_less_accurate() -> None:
    assert speak("farther", ratio=1.7).startswith("The candidate is less accurate: KL")
    assert speak("farther", ratio=1.7).endswith(", with 1.7 x the reference's error at the logits.")


def test_an_error_that_points_the_other_way_is_not_hidden() -> None:
    assert ", though with 1.1 x" in speak("nearer", ratio=1.1)
    assert ", though with 0.9 x" in speak("farther", ratio=0.9)


def test_undecided_and_level_claim_nothing() -> None:
    assert speak("undecided").startswith("Neither side is shown to be nearer the truth")
    assert "-0.0003 to -0.0001, decides nothing" in speak("undecided")
    assert speak("level").startswith("Both sides are equally near the truth")


@pytest.mark.parametrize("profile", ["hf-eager", "hf-default"])
def test_the_oracle_answers_the_references_question(profile: str, deepseek_v3: Path) -> None:
    where = Where(Path(__file__))
    model = open_model(deepseek_v3, device="cpu")
    rules = overrides({"layers[1].attention.norm:eps": 0.5, "layers[1].attention.norm:output": "fp16"}, where)
    reference = Side(
        plan=bind(model.graph, load_profile(profile, where), "bf16", rules), schedule=ScheduleSettings(batch=3)
    )
    oracle = oracle_side(reference, load_profile(ORACLE, where), model.dtype)
    assert oracle.schedule == ScheduleSettings(batch=3)
    settings = oracle.plan.settings
    assert settings["layers[1].attention.norm", "eps"].value == 0.5
    assert settings["layers[1].attention.norm", "output"].value == "fp64"
    assert settings["layers[1].moe.router", "renormalize_eps"].value == 1e-20
    assert settings["layers[1].attention.attend", "implementation"].value == "eager"
    assert settings["layers[1].moe.experts", "implementation"].value == "loop"


def test_an_eps_that_rests_in_the_reference_rests_in_the_oracle(qwen3_moe: Path) -> None:
    """Or the oracle would be the exact answer of another model."""
    where = Where(Path(__file__))
    model = open_model(qwen3_moe, device="cpu")
    settings = overrides(
        {"layers[*].moe.router:renormalize_eps": 0.5, "layers[1].moe.router:timing": "after_topk"}, where
    )
    reference = Side(
        plan=bind(model.graph, load_profile("hf-eager", where), "bf16", settings), schedule=ScheduleSettings(batch=3)
    )
    oracle = oracle_side(reference, load_profile(ORACLE, where), model.dtype)
    routers = [node for node in model.graph.nodes if node.op.routes]
    assert [oracle.plan.active(node).get("renormalize_eps") for node in routers] == [0.5, None, 0.5]
