"""What each tool wrote is read for what it says; the inputs have the shape of the tools' own output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import moeparity
from benchmarks.peers import debug_mode, moeparity_bisect, moeparity_traces, msprobe_compare, sglang_comparator
from benchmarks.peers.cases import CASES, SIDES, Case, case
from benchmarks.peers.page import megabytes, table
from benchmarks.peers.programs import build, forward
from benchmarks.peers.result import Result, culprits_named, named_attributes
from moeparity.numerics.bits import same_bits

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "quickstart"
CLEAN, ROUNDING, TWO = case("clean"), case("one rounding"), case("two culprits")


def tensor(name: str, rel: float, absolute: float, *, passed: bool) -> dict[str, Any]:
    diff = {"rel_diff": rel, "max_abs_diff": absolute, "passed": passed}
    return {"type": "comparison_tensor", "name": f"non_intrusive__{name}", "diff": diff, "errors": []}


def sglang(*tensors: dict[str, Any], failed: int) -> Result:
    counts = {"passed": len(tensors) - failed, "failed": failed, "skipped": 0, "errored": 0}
    records = [{"type": "config"}, *tensors, {"type": "summary", **counts}]
    return sglang_comparator.read(records, tool="SGLang", code=int(failed > 0))


def test_comparator_first_failed_and_first_nonzero_are_told_apart() -> None:
    result = sglang(
        tensor("model.layers.2.mlp.gate.output.0", 0.0, 0.0, passed=True),
        tensor("model.layers.2.mlp.experts.output", 1e-5, 0.1, passed=True),
        tensor("model.layers.3.mlp.gate.output.2", 1e-2, 9.0, passed=False),
        failed=1,
    )
    assert result.verdict == "exit 1, 2 passed, 1 failed"
    assert result.location == "first failed: model.layers.3.mlp.gate.output.2"
    assert (culprits_named(ROUNDING, result.places), culprits_named(ROUNDING, result.first_places)) == (
        "0 of 1",
        "1 of 1",
    )


def test_comparator_a_shape_mismatch_is_a_difference_and_an_input_is_no_module_of_its_own() -> None:
    mismatch: dict[str, Any] = {
        "type": "comparison_tensor",
        "name": "non_intrusive__a.inputs.0",
        "diff": None,
        "errors": [],
    }
    result = sglang(mismatch, failed=1)
    assert (result.places, result.first_places) == (("before a",), ("before a",))


def test_comparator_equal_tensors_name_nothing() -> None:
    result = sglang(tensor("model.norm.output", 0.0, 0.0, passed=True), failed=0)
    assert (result.location, result.places, result.first_places) == ("-", (), ())


def row(name: str, error: str, result: str) -> dict[str, str]:
    return {"NPU Name": f"Module.{name}", "MaxAbsErr": error, "Result": result}


def test_msprobe_rows_what_could_not_be_compared_is_no_difference() -> None:
    rows = [
        row("model.layers.0.self_attn.Qwen3MoeAttention.forward.0.output.1", "unsupported", "pass"),
        row("model.layers.2.mlp.experts.Qwen3MoeExperts.forward.0.input.0", "0.5", "pass"),
        row("model.layers.2.mlp.experts.Qwen3MoeExperts.forward.0.output.0", "0.125", "pass"),
        row("model.layers.3.mlp.gate.Qwen3MoeTopKRouter.forward.0.output.2", "9.0", "error"),
    ]
    result = msprobe_compare.read_rows(rows, tool="msprobe", code=0)
    assert result.verdict == "exit 0, 3 pass, 1 error"
    assert result.places == ("model.layers.3.mlp.gate",)
    assert result.first_places == ("model.layers.2.mlp.experts",)


def test_msprobe_rows_another_shape_is_a_difference() -> None:
    rows = [row("model.norm.Qwen3MoeRMSNorm.forward.0.output.0", "shape unmatched", "error")]
    assert msprobe_compare.read_rows(rows, tool="msprobe", code=0).first_places == ("model.norm",)


def test_msprobe_analysis_a_call_is_placed_in_its_module() -> None:
    call, parent = "Tensor.index_add_.48.forward", "Module.model.layers.2.mlp.experts.Qwen3MoeExperts.forward.0"
    analysis = {"rank_0": [{"op_name": call}]}
    compared = {"Tensor.mul.0.forward": {"is_same": True}, call: {"is_same": False}}
    result = msprobe_compare.read_analysis(analysis, compared, {call: parent}, tool="msprobe", code=0)
    assert result.verdict == "exit 0, 1 diff node"
    assert result.location == "diff node: Tensor.index_add_.48 in model.layers.2.mlp.experts"
    assert culprits_named(ROUNDING, result.places) == culprits_named(ROUNDING, result.first_places) == "1 of 1"


def test_msprobe_analysis_without_a_file_is_no_node() -> None:
    result = msprobe_compare.read_analysis({}, {"a": {"is_same": True}}, {}, tool="msprobe", code=0)
    assert (result.verdict, result.location, result.first) == ("exit 0, no diff node", "-", "-")


def test_debug_mode_an_error_is_no_verdict() -> None:
    difference = {"call": "aten::to", "module": "Model.model.norm", "source": "m.py:3"}
    result = debug_mode.read({"raised": "ValueError: lengths", "difference": difference}, tool="DebugMode")
    assert (result.verdict, result.location) == ("no verdict: ValueError: lengths", "-")
    assert result.first == "aten::to in model.norm (m.py:3)"
    assert culprits_named(TWO, result.first_places) == "1 of 2"


def test_debug_mode_counts_mismatches() -> None:
    quiet = debug_mode.read({"mismatches": 0, "first": None, "calls": 7, "difference": None}, tool="DebugMode")
    assert (quiet.verdict, quiet.location, quiet.first) == ("0 mismatches in 7 calls", "-", "-")


def toggle(name: str, restored: float, high: float) -> dict[str, Any]:
    return {"name": name, "restored": {"kl": restored}, "restored_change_high": high, "had_no_effect": False}


def report(*toggles: dict[str, Any]) -> dict[str, Any]:
    verdict = {"status": "fail", "below": 1e-4, "value": {"estimate": 4e-4}}
    roots = [{"node": "layers[0].attention.attend"}]
    return {"verdict": verdict, "roots": roots, "metrics": {"kl_reverse": 4e-4}, "toggles": list(toggles)}


def test_moeparity_blames_what_restoring_lowers_largest_first() -> None:
    toggles = (
        toggle("op attention:implementation", 3.9e-4, 1e-5),
        toggle("norm:eps", 3e-4, -1e-5),
        toggle("layers[1].moe.router:renormalize_eps", 1e-4, -2e-4),
    )
    result = moeparity_bisect.read(report(*toggles), code=1)
    assert result.attributes == ("layers[1].moe.router:renormalize_eps", "norm:eps")
    assert "renormalize_eps (restoring it removes 75%)" in result.attribute
    assert culprits_named(TWO, result.places) == named_attributes(TWO, result.attributes) == "2 of 2"
    assert culprits_named(TWO, result.first_places) == "0 of 2"


def test_moeparity_without_a_culprit_says_how_many_toggles_act() -> None:
    result = moeparity_bisect.read(report(toggle("a:b", 4e-4, 1e-6), toggle("c:d", 4e-4, 1e-6)), code=1)
    assert result.attribute == "none: 2 toggles act, restoring any one removes nothing that shows"


def test_traces_say_where_differences_begin_and_in_what_way() -> None:
    path = "model.layers.2.mlp.experts"
    start = {"path": path, "kind": "weight", "ops_b": [], "slot": "1 of aten.mm.default", "unread": 0}
    added = {**start, "kind": "op", "ops_b": [f"{path} aten.index_add_.default"]}
    ours = moeparity_traces.read(
        {"status": "fail", "reason": "2 of 9 compared values differ", "starts": [start, added]}
    )
    assert (ours.verdict, ours.places) == ("fail: 2 of 9 compared values differ", (path,))
    assert ours.first == f"1 of aten.mm.default in {path}"
    assert ours.attribute == "another weight is read; an op gives other bits of equal inputs"
    only = moeparity_traces.read({"status": "fail", "reason": "1 of 9", "starts": [added]})
    assert only.first == f"aten.index_add_.default in {path}"
    assert culprits_named(case("no such attribute"), only.places) == "1 of 1"
    unread = moeparity_traces.read({"status": "fail", "reason": "1 of 9", "starts": [{**added, "unread": 1}]})
    assert unread.attribute.endswith("equal inputs, or another weight is read (1 not compared)")
    none = moeparity_traces.read({"status": "pass", "reason": "equal bits", "starts": []})
    assert (none.location, none.places, none.first_places, none.attribute) == ("-", (), (), "-")


def test_a_clean_pair_has_false_alarms_only() -> None:
    assert (culprits_named(CLEAN, ()), culprits_named(CLEAN, ("model.norm",))) == ("-", "false alarm")
    assert (named_attributes(CLEAN, ()), named_attributes(CLEAN, ("norm:eps",))) == ("-", "false alarm")


def test_a_place_inside_the_culprit_s_module_counts_and_one_before_it_does_not() -> None:
    inside = "model.layers.2.mlp.experts.act_fn"
    for place in (inside, f"before {inside}"):
        assert culprits_named(ROUNDING, (place,)) == "1 of 1"
    for place in ("before model.layers.2.mlp.experts", "model.layers.2.mlp", "model.layers.2.mlp.experts2"):
        assert culprits_named(ROUNDING, (place,)) == "0 of 1"


def test_a_tool_that_failed_keeps_its_row() -> None:
    text = table([(CLEAN, [Result(tool="x", verdict="failed to run: a | b")])])
    assert text.splitlines()[-1] == "| clean | x | failed to run: a \\| b | - | - | - | - | - | - | - | - |"


@pytest.mark.parametrize(("count", "shown"), [(0, "0"), (3_456, "0.0035"), (1_600_000, "1.6"), (273_400_000, "273")])
def test_megabytes(count: int, shown: str) -> None:
    assert megabytes(count) == shown


@pytest.mark.parametrize("which", CASES, ids=lambda which: which.name)
def test_the_profile_of_a_case_gives_its_program_s_bits(which: Case, tmp_path: Path) -> None:
    ids = torch.randint(0, 256, (4, 24), generator=torch.Generator().manual_seed(0))
    program = forward(build(which, "candidate", CHECKPOINT), ids)
    ours = moeparity.forward(CHECKPOINT, ids, profile=str(moeparity_bisect.write_profile(which, tmp_path)))["logits"]
    stated = all(plant.attribute is not None for plant in which.plants)
    assert same_bits(ours, program) == stated


@pytest.mark.parametrize("which", CASES, ids=lambda which: which.name)
def test_the_reference_of_every_case_is_transformers_eager_and_the_plant_shows(which: Case) -> None:
    ids = torch.randint(0, 256, (4, 24), generator=torch.Generator().manual_seed(0))
    reference, candidate = (forward(build(which, side, CHECKPOINT), ids) for side in SIDES)
    assert same_bits(reference, moeparity.forward(CHECKPOINT, ids, profile="hf-eager")["logits"])
    assert same_bits(reference, candidate) == (which is CLEAN)
