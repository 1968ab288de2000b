"""`moeparity sweep` as a user runs it: each row is what a bisection of the recipe with these values finds."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import moeparity
from moeparity.bisection.options import Options
from moeparity.bisection.report import Report
from moeparity.bisection.sweep import run as sweeping
from moeparity.bisection.sweep.report import Point, Sweep
from moeparity.cli.commands import app
from moeparity.errors import CheckpointError, MoeparityError
from moeparity.inputs import model
from moeparity.plan.spec.overrides import axes
from moeparity.progress import Progress
from tests.command import ROOT, alone, inside

CHECKPOINT = ROOT / "checkpoints" / "quickstart"
SIDE = "profile: hf-eager"


def write_recipe(
    folder: Path, name: str = "recipe.yaml", *, reference: str = SIDE, candidate: str = SIDE, sequences: int = 3
) -> Path:
    ids = torch.randint(0, 256, (sequences, 6), generator=torch.Generator().manual_seed(3))
    save_file({"input_ids": ids}, folder / "tokens.safetensors")
    path = folder / name
    path.write_text(
        f"kind: recipe\ncheckpoint: {CHECKPOINT}\ntokens: {{file: tokens.safetensors, sampled_from: candidate}}\n"
        f"reference: {{{reference}}}\ncandidate: {{{candidate}}}\n"
        "gate: {metric: k3, below: 1e-4}\nsplit: 1\nswap: ['layers[*].moe']\noracle: true\n"
    )
    return path


def shown_parts(report: Report | None) -> tuple[Any, ...]:
    """What a sweep shows of a report; it throws no toggles, so that it knows nothing of what choices flip."""
    assert report is not None
    flips = report.flips
    if flips is not None and flips.detail is not None:
        flips = replace(flips, detail=replace(flips.detail, choices=()))
    return report.verdict, report.metrics, flips, [(root.node, root.sequences) for root in report.roots]


@pytest.mark.parametrize(
    ("over", "written"),
    [
        ("profile=hf-default", {"candidate": "profile: hf-default"}),
        ("dtype=fp32", {"candidate": SIDE + ", dtype: fp32"}),
        ("reference.dtype=fp32", {"reference": SIDE + ", dtype: fp32"}),
        ("both.dtype=fp32", {"reference": SIDE + ", dtype: fp32", "candidate": SIDE + ", dtype: fp32"}),
        ("micro_batch=2", {"candidate": SIDE + ", micro_batch: 2"}),
        ("layers[1].moe.gate:output=fp32", {"candidate": SIDE + ", set: {'layers[1].moe.gate:output': fp32}"}),
        ("**.experts:activation=fp32", {"candidate": SIDE + ", set: {'**.experts:activation': fp32}"}),
        ("candidate.placement.tensor=2", {"candidate": SIDE + ", placement: {tensor: 2}"}),
    ],
)
def test_a_point_is_the_recipe_with_the_value_in_it(over: str, written: dict[str, Any], tmp_path: Path) -> None:
    (point,) = moeparity.sweep(write_recipe(tmp_path), [over], device="cpu").points
    by_hand = write_recipe(tmp_path, "by_hand.yaml", **written)
    expected = moeparity.bisect(by_hand, device="cpu", options=Options(floor=False, oracle=False, split=0))
    assert shown_parts(point.report) == shown_parts(expected)
    assert point.report.roots or over.startswith(("both.dtype", "micro_batch"))


def test_unswept_the_sides_are_equal(tmp_path: Path) -> None:
    """So that what a point differs in is what it sets."""
    assert moeparity.bisect(write_recipe(tmp_path), device="cpu", options=Options(attribution=False)).roots == ()


def test_a_point_runs_both_sides_and_nothing_else(tmp_path: Path) -> None:
    (point,) = moeparity.sweep(write_recipe(tmp_path), ["layers[2].moe.gate:output=fp32"], device="cpu").points
    report = point.report
    assert report is not None
    assert report.run.variants == 2
    nodes = len(model.open_model(CHECKPOINT, device="cpu").graph.nodes)
    assert report.cost.naive_evaluations == 2 * nodes
    assert (report.toggles, report.swaps, report.floor, report.oracle, report.nodes) == ((), (), None, None, ())
    (root,) = report.roots
    (choice,) = root.choices
    assert (root.node, choice.attribute) == ("layers[2].moe.gate", "output")
    assert (choice.candidate, choice.candidate_origin) == ("fp32", "--over (layers[2].moe.gate)")


def test_an_address_stands_above_what_the_recipe_sets_there(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, candidate=SIDE + ", set: {'layers[*].moe.gate:output': fp32}")
    all_back, first_back = moeparity.sweep(recipe, ["layers[*].moe.gate:output=model,fp32"], device="cpu").points
    assert (all_back.report.roots, first_back.report.roots[0].node) == ((), "layers[0].moe.gate")
    (one_back,) = moeparity.sweep(recipe, ["layers[0].moe.gate:output=model"], device="cpu").points
    assert one_back.report.roots[0].node == "layers[1].moe.gate"


def test_several_keys_give_all_combinations_the_last_fastest(tmp_path: Path) -> None:
    over = ["micro_batch=1,3", "layers[0].moe.gate:output=model,fp32"]
    swept = moeparity.sweep(write_recipe(tmp_path), over, device="cpu")
    assert swept.keys == ("micro_batch", "layers[0].moe.gate:output")
    assert [tuple(point.values.values()) for point in swept.points] == [
        (1, "model"),
        (1, "fp32"),
        (3, "model"),
        (3, "fp32"),
    ]
    assert [point.report.candidate.micro_batch for point in swept.points] == [1, 1, 3, 3]
    assert [bool(point.report.roots) for point in swept.points[2:]] == [False, True]


def test_the_checkpoint_is_opened_once(tmp_path: Path) -> None:
    with patch("moeparity.inputs.model.open_model", wraps=model.open_model) as opened:
        moeparity.sweep(write_recipe(tmp_path), ["micro_batch=1,2,3"], device="cpu")
    assert opened.call_count == 1


def test_a_point_that_cannot_run_says_why_and_stops_no_other(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    swept = moeparity.sweep(recipe, ["profile=hf-eager,hf-eagre,hf-default", "dtype=fp64,bf16"], device="cpu")
    ran = [point.error is None for point in swept.points]
    assert ran == [True, True, False, False, False, True]
    assert "profile 'hf-eagre' is not shipped" in str(swept.points[2].error)
    assert "Did you mean 'hf-eager'?" in str(swept.points[2].error)
    assert "grouped GEMM has no fp64" in str(swept.points[4].error)
    assert swept.exit_code == 2


def test_what_every_point_is_refused_for_is_the_sweeps_own_error(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    with pytest.raises(MoeparityError, match=r"selector 'layers.*.moe.gat' matches no node. Did you mean"):
        moeparity.sweep(recipe, ["layers[*].moe.gat:output=model,fp32"], device="cpu")
    (tmp_path / "tokens.safetensors").unlink()
    with pytest.raises(MoeparityError, match=r"token file 'tokens\.safetensors' does not exist"):
        moeparity.sweep(recipe, ["dtype=bf16,fp32"], device="cpu")


def test_a_checkpoint_that_cannot_be_used_is_opened_for_one_point_only(tmp_path: Path) -> None:
    with (
        patch("moeparity.inputs.model.open_model", side_effect=CheckpointError("broken")) as opened,
        pytest.raises(CheckpointError, match="broken"),
    ):
        moeparity.sweep(write_recipe(tmp_path), ["micro_batch=1,2,3"], device="cpu")
    assert opened.call_count == 1


def test_a_value_that_is_wrong_is_told_before_anything_runs(tmp_path: Path) -> None:
    with (
        patch("moeparity.inputs.model.open_model") as opened,
        pytest.raises(MoeparityError, match=r"dtype is 'bf61'; expected .* Did you mean 'bf16'?"),
    ):
        moeparity.sweep(write_recipe(tmp_path), ["micro_batch=1,2", "dtype=fp32,bf61"], device="cpu")
    assert not opened.called


def test_progress_says_which_point(tmp_path: Path) -> None:
    heard: list[Progress] = []
    moeparity.sweep(write_recipe(tmp_path), ["micro_batch=1,2"], device="cpu", progress=heard.append)
    points = list(dict.fromkeys(report.at.split(", ")[0] for report in heard))
    assert points == ["point 1 of 2", "point 2 of 2"]


def test_user_code_runs_only_where_it_is_allowed(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, candidate=SIDE + ", impl: [{nodes: 'layers[0].moe.gate', call: 'mine:gate'}]")
    (tmp_path / "mine.py").write_text("def gate(x, *, node):\n    return x @ node.weights['gate.weight'].T\n")
    with pytest.raises(MoeparityError, match="add --allow-code"):
        moeparity.sweep(recipe, ["micro_batch=1,3"], device="cpu")
    swept = moeparity.sweep(recipe, ["micro_batch=1,3"], device="cpu", allow_code=True)
    assert [point.error for point in swept.points] == [None, None]


def test_the_result_is_frozen_plain_data(tmp_path: Path) -> None:
    swept = moeparity.sweep(write_recipe(tmp_path), ["micro_batch=3"], device="cpu")
    assert isinstance(swept, moeparity.Sweep)
    assert swept.points == (Point(values={"micro_batch": 3}, report=swept.points[0].report),)
    assert (swept.exit_code, swept.points[0].exit_code) == (0, 0)
    with pytest.raises(AttributeError):
        swept.keys = ()  # type: ignore[misc]


def test_the_function_is_not_hidden_by_its_module() -> None:
    assert moeparity.sweep is sweeping.sweep


def test_overrides_reach_a_full_bisection_too(tmp_path: Path) -> None:
    overrides = tuple(axis[0] for axis in axes(["layers[0].moe.gate:output=fp32"]))
    report = moeparity.bisect(
        write_recipe(tmp_path), device="cpu", options=Options(overrides=overrides, oracle=False, floor=False, split=0)
    )
    assert [toggle.name for toggle in report.toggles] == ["layers[0].moe.gate:output"]
    assert report.toggles[0].restores_all


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "sweep.json"
    recipe = write_recipe(tmp_path)
    over = ("--over", "dtype=bf16,fp64", "--over", "profile=hf-eager,hf-default")
    monkeypatch.setenv("COLUMNS", "160")
    done = alone("sweep", recipe, *over, "--json", out, "--device", "cpu")
    assert done.returncode == 2, done.stderr
    assert not done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[1:2] in (["hf-eager"], ["hf-default"])]
    assert [row[:4] for row in rows[:3]] == [
        ["bf16,", "hf-eager", "pass", "all"],
        ["bf16,", "hf-default", *rows[1][2:4]],
        ["fp64,", "hf-eager", *rows[2][2:4]],
    ]
    assert rows[3][:4] == ["fp64,", "hf-default", "cannot", "run"]
    assert "grouped GEMM has no fp64" in " ".join(done.stdout.split())
    assert "\n  starts at layers[0].attention.attend (attention)\n" in done.stdout
    written = json.loads(out.read_text())
    swept = moeparity.sweep(recipe, ["dtype=bf16,fp64", "profile=hf-eager,hf-default"], device="cpu")
    expected = json.loads(swept.to_json())
    assert [point["metrics"] for point in written["points"]] == [point["metrics"] for point in expected["points"]]
    assert [point["exit_code"] for point in written["points"]] == [point.exit_code for point in swept.points]
    assert written["schema"] == "moeparity.sweep/2"


@pytest.mark.parametrize(
    ("over", "sequences", "code"),
    [
        ("micro_batch=3", 3, 0),
        ("layers[0].moe.gate:output=model,fp32", 3, 3),
        ("layers[0].moe.gate:output=model,fp32", 40, 1),
    ],
)
def test_exit_codes(over: str, sequences: int, code: int, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, sequences=sequences)
    recipe.write_text(recipe.read_text().replace("below: 1e-4", "below: 1e-12"))
    done = CliRunner().invoke(app, ["sweep", str(recipe), "--over", over, "--device", "cpu"])
    assert done.exit_code == code, done.output


def test_a_sweep_needs_something_to_sweep(tmp_path: Path) -> None:
    done = inside("sweep", write_recipe(tmp_path))
    assert done.returncode == 2
    assert "--over" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_and_parsing_do_not_import_torch() -> None:
    code = (
        "import sys\nfrom moeparity.cli import main\nsys.argv = ['moeparity', 'sweep', '--help']\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code, e.code\n"
        "from moeparity.bisection.sweep.run import axes\nimport moeparity.bisection.sweep.show\naxes(['dtype=bf16'])\n"
        "sys.exit(3 if 'torch' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "both." in done.stdout


def test_with_nothing_to_sweep_it_is_the_recipe_itself(tmp_path: Path) -> None:
    swept: Sweep = moeparity.sweep(write_recipe(tmp_path), [], device="cpu")
    assert (swept.keys, len(swept.points), swept.exit_code) == ((), 1, 0)
