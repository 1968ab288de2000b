"""The oracle profile against a plain fp64 forward, and what a run with an oracle says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from moeparity import bisect
from moeparity.bisection.options import Options
from moeparity.bisection.report import Report
from moeparity.cli.commands import app
from moeparity.engine.forward import forward
from moeparity.errors import Where
from moeparity.inputs.model import open_model
from moeparity.numerics.bits import same_bits
from moeparity.ops.registry import OPS
from moeparity.plan.address import file_key
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile
from tests.plain_forward import Plain
from tests.planted.places import random_tokens, write_recipe
from tests.small_models import SMALL
from tests.two_layers import LAYERS, two_layers

MODELS = sorted(SMALL.keys() - {"qwen3_moe_odd", "qwen3_moe_even"})
globals().update({name: two_layers(name) for name in MODELS})


def relative(ours: np.ndarray, truth: np.ndarray) -> float:
    return float(np.abs(ours - truth).max() / np.abs(truth).max())


@pytest.mark.parametrize("name", MODELS)
def test_the_oracle_is_exact_to_fp64(name: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(name)
    ids = torch.randint(300, (2, 19), generator=torch.Generator().manual_seed(4))
    plain = Plain(folder)
    truth = np.stack([plain.logits(row) for row in ids.tolist()])
    for settings in ({}, {"dtype": "fp64"}, {"micro_batch": 1}):
        logits = forward(folder, ids, profile="oracle", device="cpu", **settings)["logits"]
        assert logits.dtype == torch.float64
        assert relative(logits.numpy(), truth) < 1e-12
    # What the tolerance is worth: fp32 throughout is millions of times farther.
    assert relative(forward(folder, ids, dtype="fp32", device="cpu")["logits"].numpy(), truth) > 1e-8


@pytest.mark.parametrize("op", OPS)
def test_every_rounding_of_every_op_is_fp64(op: str) -> None:
    layers = load_profile("oracle", Where(Path(__file__))).layers
    values = {name: value for rule in layers[-1] if rule.op == op for name, value in dict(rule.values).items()}
    sites = {a.name for a in OPS[op].attributes if a.kind == "rounding" and "fp64" in a.values}
    assert {name: value for name, value in values.items() if name in sites} == dict.fromkeys(sites, "fp64")


@pytest.mark.parametrize("name", MODELS)
def test_every_rounding_of_every_node_is_fp64(name: str, request: pytest.FixtureRequest) -> None:
    model = open_model(request.getfixturevalue(name), device="cpu")
    plan = bind(model.graph, load_profile("oracle", Where(Path(__file__))), model.dtype)
    for node in model.graph.nodes:
        declared = {a.name: a for a in node.op.attributes}
        rounded = {k: v for k, v in plan.active(node).items() if declared[k].kind == "rounding"}
        # Grids of 8 bits have no fp64: operands are on none.
        expected = {name: "fp64" if "fp64" in declared[name].values else "unrounded" for name in rounded}
        assert rounded == expected, node.name


SEQUENCES = 30


def run(
    folder: Path, checkpoint: Path, reference: dict[str, object], candidate: dict[str, object], **more: Any
) -> Report:
    tokens = {"input_ids": random_tokens(SEQUENCES, 8)}
    return bisect(write_recipe(folder, checkpoint, tokens, reference, candidate, oracle=True, **more), device="cpu")


def test_a_candidate_in_fp32_is_nearer_the_truth_yet_not_parity(tmp_path: Path, qwen3_moe: Path) -> None:
    report = run(tmp_path, qwen3_moe, {}, {"dtype": "fp32"}, below=1e-9)
    oracle = report.oracle
    assert report.verdict.status == "fail"
    assert oracle.standing == "nearer"
    assert oracle.reading.startswith("The candidate is nearer the truth, yet not parity")
    assert oracle.kl_change.high < 0 < oracle.kl_candidate.estimate < 1e-3 * oracle.kl_reference.estimate
    assert [node.node for node in oracle.layers] == [*(f"layers[{i}].moe.residual" for i in range(LAYERS)), "lm_head"]
    assert all(0 < node.ratio < 1e-3 for node in oracle.layers)
    as_json = report.to_json()
    assert '"standing": "nearer"' in as_json


def test_a_candidate_in_bf16_is_less_accurate_than_fp32(tmp_path: Path, qwen3_moe: Path) -> None:
    report = run(tmp_path, qwen3_moe, {"dtype": "fp32"}, {}, below=1e-9)
    assert report.oracle.standing == "farther"
    assert report.oracle.layers[-1].ratio > 1e3


def test_equal_sides_are_equally_near(tmp_path: Path, qwen3_moe: Path) -> None:
    report = run(tmp_path, qwen3_moe, {}, {})
    assert report.oracle.standing == "level"
    assert {node.ratio for node in report.oracle.nodes} == {1.0}
    assert report.exit_code == 0


def test_the_candidate_that_is_the_oracle_has_no_distance(tmp_path: Path, qwen3_moe: Path) -> None:
    report = run(tmp_path, qwen3_moe, {}, {"profile": "oracle"}, below=1e-9)
    assert {node.candidate.max_abs for node in report.oracle.nodes} == {0.0}
    assert report.oracle.kl_candidate.estimate == 0.0
    assert report.oracle.standing == "nearer"


def test_distances_are_those_of_separate_forwards(tmp_path: Path, qwen3_moe: Path) -> None:
    report = run(tmp_path, qwen3_moe, {}, {"profile": "hf-default"})
    ids, name = random_tokens(SEQUENCES, 8), "layers[1].moe.combine"

    def value(profile: str) -> torch.Tensor:
        return forward(qwen3_moe, ids, profile=profile, device="cpu", save=[name])[file_key(name)].double()

    node = next(node for node in report.oracle.nodes if node.node == name)
    for side, profile in ((node.reference, "hf-eager"), (node.candidate, "hf-default")):
        difference = value(profile) - value("oracle")
        assert side.max_abs == float(difference.abs().max())
        assert side.relative_l2 == pytest.approx(float(difference.norm() / value("oracle").norm()), rel=1e-12)


def test_without_being_asked_for_there_is_no_oracle(tmp_path: Path, qwen3_moe: Path) -> None:
    tokens = {"input_ids": random_tokens(2, 4)}
    path = write_recipe(tmp_path, qwen3_moe, tokens, {}, {})
    assert bisect(path, device="cpu").oracle is None
    assert bisect(path, device="cpu", options=Options(oracle=True)).oracle is not None
    path = write_recipe(tmp_path, qwen3_moe, tokens, {}, {}, oracle=True)
    assert bisect(path, device="cpu", options=Options(oracle=False)).oracle is None


def test_the_floor_is_the_reference_against_itself(tmp_path: Path, qwen3_moe: Path) -> None:
    accumulate = {"set": {"layers[*].moe.combine:accumulate": "fp32"}}
    tokens = {"input_ids": random_tokens(SEQUENCES, 8)}
    path = write_recipe(tmp_path, qwen3_moe, tokens, {"micro_batch": 10}, {"micro_batch": 10, **accumulate}, floor=True)
    report = bisect(path, device="cpu")
    names = ["micro-batch 1", "micro-batch 5", "orders drawn with seed 0", "orders drawn with seed 1"]
    assert [trial.name for trial in report.floor.trials] == names
    by_name = {trial.name: trial for trial in report.floor.trials}
    # bf16 sums in another order give other bits on any processor.
    drawn = by_name["orders drawn with seed 0"]
    assert not drawn.bit_identical
    assert (
        report.floor.largest == max(trial.value.estimate for trial in report.floor.trials) >= drawn.value.estimate > 0
    )
    assert report.floor.ratio == report.verdict.value.estimate / report.floor.largest
    assert any(sentence.startswith("k3 is ") for sentence in report.floor.reading)
    assert len(report.toggles) == 1, "the floor is no toggle"
    # Another micro-batch is as far away as two separate forwards say.
    in_tens, singly = (
        forward(qwen3_moe, tokens["input_ids"], micro_batch=size, device="cpu")["logits"] for size in (10, 1)
    )
    assert by_name["micro-batch 1"].bit_identical == same_bits(in_tens, singly)


def test_one_sequence_of_a_dense_model_has_no_floor(tmp_path: Path, qwen3: Path) -> None:
    tokens = {"input_ids": random_tokens(1, 3, vocab=300)}
    path = write_recipe(tmp_path, qwen3, tokens, {}, {"set": {"lm_head:output": "fp32"}}, floor=True)
    floor = bisect(path, device="cpu").floor
    assert (floor.trials, floor.ratio, floor.bit_identical) == ((), None, False)
    assert floor.reading[0].startswith("There is no floor")
    assert bisect(path, device="cpu", options=Options(floor=False)).floor is None


def test_inconclusive_says_how_many_tokens_would_do(tmp_path: Path, qwen3_moe: Path) -> None:
    tokens = {"input_ids": random_tokens(10, 8)}
    path = write_recipe(tmp_path, qwen3_moe, tokens, {}, {"profile": "hf-default"}, below=1e3)
    verdict = bisect(path, device="cpu").verdict
    assert (verdict.status, verdict.needed_sequences, verdict.needed_tokens) == ("inconclusive", 25, 25 * 7)


def test_the_command_line_overrides_the_recipe(tmp_path: Path, qwen3_moe: Path) -> None:
    tokens = {"input_ids": random_tokens(2, 4)}
    path = write_recipe(tmp_path, qwen3_moe, tokens, {}, {"profile": "hf-default"}, floor=True)
    shown = CliRunner().invoke(app, ["bisect", str(path), "--device", "cpu", "--oracle", "-v", "--no-floor"])
    assert shown.exit_code == 3, "two sequences"
    assert "Against the oracle" in shown.output
    assert "Neither side is shown to be nearer the truth" in " ".join(shown.output.split())
    assert "Floor" not in shown.output
    shown = CliRunner().invoke(app, ["bisect", str(path), "--device", "cpu", "-v"])
    assert "the reference against itself, with" in shown.output
    assert "Against the oracle" not in shown.output
