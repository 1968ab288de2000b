"""A recipe with planted faults: attributed, taken apart and restored as any difference, and never called rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from moeparity import bisect
from moeparity.bisection.options import Options
from moeparity.bisection.prepare import prepare
from moeparity.bisection.report import Report
from moeparity.bisection.resume.fingerprint import parts
from moeparity.plan.toggles import SEMANTICS
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

Faults = list[dict[str, Any]]
EXCHANGED: Faults = [{"name": "gate-and-up-exchanged", "layers": [1]}]
SIDE = {"profile": "hf-eager", "micro_batch": 3}


def recipe_of(folder: Path, checkpoint: Path, faults: Faults, **candidate: Any) -> Path:
    tokens = {"input_ids": random_tokens(6, 10)}
    return write_recipe(folder, checkpoint, tokens, SIDE, {**SIDE, **candidate, "faults": faults})


def report_of(folder: Path, checkpoint: Path, faults: Faults, **candidate: Any) -> Report:
    options = Options(floor=False, attribute=True)
    return bisect(recipe_of(folder, checkpoint, faults, **candidate), device="cpu", options=options, opener=opened)


def test_a_fault_is_the_root_and_restored_with_all_bits(tmp_path: Path, qwen3_moe: Path) -> None:
    report = report_of(tmp_path, qwen3_moe, EXCHANGED)
    assert report.verdict.status == "fail"
    assert [root.node for root in report.roots] == ["layers[1].moe.experts"]
    (toggle,) = report.toggles
    assert (toggle.name, toggle.kind) == ("fault gate-and-up-exchanged", SEMANTICS)
    assert (toggle.reference, toggle.candidate) == ("no fault", "gate-and-up-exchanged")
    assert toggle.restores_all


def test_a_fault_beside_rounding_is_told_from_it(tmp_path: Path, qwen3_moe: Path) -> None:
    report = report_of(tmp_path, qwen3_moe, EXCHANGED, set={"layers[*].moe.combine:accumulate": "fp32"})
    kinds = {toggle.name: toggle.kind for toggle in report.toggles}
    assert kinds["fault gate-and-up-exchanged"] == SEMANTICS
    assert len(kinds) == 2
    assert report.attribution is not None
    roles = {share.name: share.role for share in report.attribution.shares.rows}
    assert roles["fault gate-and-up-exchanged"] == "culprit"
    assert "saturated" not in roles.values()


def test_faults_in_two_layers_are_two_toggles_with_their_values(tmp_path: Path, qwen3_moe: Path) -> None:
    faults: Faults = [
        {"name": "expert-of-another-expert", "layers": [0], "values": {"expert": 3, "other": 5}},
        {"name": "norm-eps", "nodes": "layers[2].moe.norm", "values": {"eps": 0.01}},
    ]
    report = report_of(tmp_path, qwen3_moe, faults)
    assert {toggle.name for toggle in report.toggles} == {
        "fault expert-of-another-expert(expert=3, other=5)",
        "fault norm-eps(eps=0.01)",
    }
    assert report.roots[0].node == "layers[0].moe.experts"


def test_both_sides_with_one_fault_are_equal(tmp_path: Path, qwen3_moe: Path) -> None:
    tokens = {"input_ids": random_tokens(6, 10)}
    side = {**SIDE, "faults": EXCHANGED}
    report = bisect(write_recipe(tmp_path, qwen3_moe, tokens, side, side), device="cpu", opener=opened)
    assert not report.toggles
    assert not report.roots
    assert report.metrics.unequal_tokens == 0


def test_a_fault_that_takes_one_rare_expert_touches_its_tokens_alone(tmp_path: Path, qwen3_moe: Path) -> None:
    report = report_of(tmp_path, qwen3_moe, [{"name": "expert-zeroed", "layers": [2], "values": {"expert": 9}}])
    (root,) = report.roots
    assert root.node == "layers[2].moe.experts"
    assert 0 < root.tokens < 60


def test_weights_of_another_checkpoint_are_part_of_what_a_run_is_known_by(tmp_path: Path, qwen3_moe: Path) -> None:
    doubled = tmp_path / "other"
    doubled.mkdir()
    tensors = load_file(qwen3_moe / "model.safetensors")
    save_file({name: x * 2 for name, x in tensors.items()}, doubled / "model.safetensors")
    faults: Faults = [
        {"name": "weights-of-another-checkpoint", "nodes": "layers[1].moe.gate", "values": {"checkpoint": "other"}}
    ]
    path = recipe_of(tmp_path, qwen3_moe, faults)
    before = parts(prepare(path, device="cpu"))["other weights"]
    save_file({name: x * 3 for name, x in tensors.items()}, doubled / "model.safetensors")
    assert parts(prepare(path, device="cpu"))["other weights"] != before


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_a_fault_of_either_side_is_a_difference(tmp_path: Path, qwen3_moe: Path, side: str) -> None:
    tokens = {"input_ids": random_tokens(6, 10)}
    sides = {"reference": SIDE, "candidate": SIDE, side: {**SIDE, "faults": EXCHANGED}}
    recipe = write_recipe(tmp_path, qwen3_moe, tokens, sides["reference"], sides["candidate"])
    report = bisect(recipe, device="cpu", options=Options(floor=False), opener=opened)
    assert [root.node for root in report.roots] == ["layers[1].moe.experts"]
    assert report.toggles[0].restores_all
