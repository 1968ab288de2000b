"""The oracle's side."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.bisection.oracle.side import ORACLE, oracle_side
from moeparity.errors import Where
from moeparity.inputs.model import open_model
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.sides import Side


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
    routers = [node for node in model.graph.nodes if node.op.role.routes]
    assert [oracle.plan.active(node).get("renormalize_eps") for node in routers] == [0.5, None, 0.5]
