"""A user's function is asked which known choices it made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.bisection.nearest.data import Nearest
from moeparity.evidence.explain import inquiry
from moeparity.evidence.explain.kernels import Kernels
from tests.bisection.nearest.plants import chosen_layers, plainest, report_of
from tests.bisection.reports import on_screen

NORM, ROUTER, ATTEND, GATE = (
    "layers[*].moe.norm",
    "layers[*].moe.router",
    "layers[*].attention.attend",
    "layers[*].moe.gate",
)


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no choice gives is searched for as long as may be: a quarter of it is enough to see that."""
    monkeypatch.setattr(inquiry, "WORK", 1024)


def planted(
    folder: Path, checkpoint: Path, nodes: str, layers: dict[str, dict[str, Any]], **more: Any
) -> list[Nearest]:
    settings = chosen_layers(checkpoint, nodes, layers)
    return list(report_of(folder, checkpoint, "chosen", nodes, settings=settings, **more).nearest)


@pytest.mark.parametrize(
    ("nodes", "values"),
    [
        (ROUTER, {"renormalize_eps": 0.001}),
        (ROUTER, {"scale": 1.7}),
        (ROUTER, {"renormalize_eps": 0.02, "scores": "bf16"}),
        (ATTEND, {"scores": "fp32"}),
        (ATTEND, {"scores": "fp32", "probabilities": "fp16"}),
        (ATTEND, {"implementation": "flash", "kv_block": 5}),
        (GATE, {"splits": 2, "split": "bf16"}),
        (GATE, {"splits": 13, "split": "fp16"}),
        (NORM, {"eps": 0.00037}),
        (NORM, {"eps": 0.0025, "offset": -0.37}),
        (NORM, {"square": "bf16", "eps": 0.0013}),
    ],
)
def test_choices_nobody_listed_together_are_named(
    tmp_path: Path, qwen3_moe: Path, nodes: str, values: dict[str, Any]
) -> None:
    (answer,) = planted(tmp_path, qwen3_moe, nodes, {"1": values})
    assert answer.node == nodes.replace("*", "1")
    assert plainest(answer) == {name: str(value) for name, value in values.items()}
    assert answer.found[0].compared == answer.found[0].equal == 1
    assert answer.tried <= answer.calls < 2400


@pytest.mark.parametrize(
    ("nodes", "values"),
    [
        (ATTEND, {"scores": "fp32", "probabilities": "fp32", "output": "fp32"}),
        (ROUTER, {"scale": 1.7, "total": "bf16", "scores": "bf16"}),
        ("layers[*].attention.q_proj", {"splits": 5, "split": "bf16", "output": "fp32"}),
    ],
)
def test_three_choices_are_named_together(tmp_path: Path, qwen3_moe: Path, nodes: str, values: dict[str, Any]) -> None:
    (answer,) = planted(tmp_path, qwen3_moe, nodes, {"1": values})
    assert plainest(answer) == {name: str(value) for name, value in values.items()}


def test_the_base_of_the_rotation_is_solved_for(tmp_path: Path, qwen3_moe: Path) -> None:
    (answer,) = planted(tmp_path, qwen3_moe, "rotary", {"None": {"rope_theta": 12345.0}})
    assert plainest(answer) == {"rope_theta": "12345.0"}
    (interval,) = answer.found[0].between
    assert interval.place == "rotary:rope_theta"
    assert 12344 < interval.least < 12345 < interval.greatest < 12346


def test_every_node_is_asked_whatever_came_before_it(tmp_path: Path, qwen3_moe: Path) -> None:
    """Roots lie upstream only; each layer has a choice of its own, and the third that of the second."""
    values: dict[str, dict[str, Any]] = {"0": {"output": "fp16"}, "1": {"eps": 0.00037}, "2": {"eps": 0.00037}}
    settings = chosen_layers(qwen3_moe, NORM, values)
    benign = {"set": {"layers[0].attention.q_proj:output": "fp32"}}
    report = report_of(tmp_path, qwen3_moe, "chosen", NORM, settings=settings, reference=benign)
    assert [root.node for root in report.roots] == ["layers[0].attention.q_proj"]
    assert [plainest(answer) for answer in report.nearest] == [
        {name: str(value) for name, value in values[layer].items()} for layer in values
    ]
    # What was found in one layer is tried first in the next.
    assert report.nearest[2].tried < 60 < report.nearest[1].tried
    section = on_screen(report, 250).partition("Nearest choices")[2].split("\n\n")[0]
    assert "layers[1].moe.norm:eps=0.00037 (all bits equal; " in section
    assert "the same at layers[2].moe.norm" in section
    assert "vocabulary" not in section


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_a_function_of_either_side_is_asked(tmp_path: Path, qwen3_moe: Path, side: str) -> None:
    (answer,) = planted(tmp_path, qwen3_moe, NORM, {"1": {"normalized": "fp32"}}, side=side)
    assert plainest(answer) == {"normalized": "fp32"}
    assert 0 < answer.as_it_is < 1
    assert all(match.exact and match.mean_ulp == 0 for match in answer.found)


def test_the_nodes_of_a_region_are_tried_together(tmp_path: Path, qwen3_moe: Path) -> None:
    nodes = ["layers[1].moe.experts", "layers[1].moe.combine"]
    (answer,) = report_of(tmp_path, qwen3_moe, "block", nodes).nearest
    assert answer.found[0].choices == (
        "layers[1].moe.experts:activation=fp32",
        "layers[1].moe.combine:accumulate=fp32",
    )


@pytest.mark.parametrize("reference", [{}, {"placement": {"tensor": 2}}])
def test_a_region_with_partial_sums_inside_is_explained(
    tmp_path: Path, qwen3_moe: Path, reference: dict[str, Any]
) -> None:
    """Also where the other side lies on ranks, so that its shadow cannot read what the candidate cuts otherwise."""
    nodes = ["layers[1].attention.o_proj", "layers[1].attention.reduce"]
    answers = report_of(tmp_path, qwen3_moe, "halves", nodes, reference=reference).nearest
    assert [answer.found[0].choices for answer in answers] == (
        [] if reference else [("layers[1].attention.o_proj:blocks=2",)]
    )


@pytest.mark.usefixtures("_short")
def test_functions_of_both_sides_at_one_node_are_both_asked(tmp_path: Path, qwen3_moe: Path) -> None:
    """What the other side's profile would compute there is what both are held to."""
    settings = chosen_layers(qwen3_moe, NORM, {"1": {"normalized": "fp32"}})
    reference = {"impl": [{"nodes": "layers[1].moe.norm", "call": "bisection_nearest_other:norm"}]}
    (tmp_path / "bisection_nearest_other.py").write_text("def norm(x, *, node):\n    return x\n", "utf-8")
    report = report_of(tmp_path, qwen3_moe, "chosen", NORM, settings=settings, reference=reference)
    by_call = {answer.call.rpartition(":")[2]: answer for answer in report.nearest}
    assert plainest(by_call["chosen"]) == {"normalized": "fp32"}
    assert by_call["norm"].found[0].faults == ("the norm is left out",)


@pytest.mark.usefixtures("_short")
def test_a_later_micro_batch_refutes_an_answer(tmp_path: Path, qwen3_moe: Path) -> None:
    """The function is the op's own on the first micro-batches and another choice on others: neither is all of it."""
    (answer,) = report_of(tmp_path, qwen3_moe, "later_batches", NORM, shape=(6, 12)).nearest
    assert not answer.explained
    assert answer.found[0].equal < 1


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("function", ["by_mean_of_sizes", "one_token", "not_finite"])
def test_what_is_none_of_them_has_no_name(tmp_path: Path, qwen3_moe: Path, function: str) -> None:
    report = report_of(tmp_path, qwen3_moe, function, "layers[1].moe.norm")
    (answer,) = report.nearest
    assert not answer.explained
    assert not any(match.exact for match in answer.found)
    tried = f"none of the {answer.tried} tried gives its bits ({answer.calls} kernel calls)"
    assert tried in on_screen(report, 250)


@pytest.mark.usefixtures("_short")
def test_a_fault_of_one_expert_has_no_name(tmp_path: Path, qwen3_moe: Path) -> None:
    (answer,) = report_of(tmp_path, qwen3_moe, "one_expert", "layers[1].moe.experts").nearest
    assert not answer.explained


def test_a_function_that_changes_nothing_is_not_asked(tmp_path: Path, qwen3_moe: Path) -> None:
    assert report_of(tmp_path, qwen3_moe, "untouched", NORM).nearest == ()


@pytest.mark.parametrize(("function", "choice"), [("tempered", "temperature=0.83"), ("log_probs", "form=log_softmax")])
def test_a_region_with_the_head_may_make_choices_of_the_log_probabilities(
    tmp_path: Path, qwen3_moe: Path, function: str, choice: str
) -> None:
    (answer,) = report_of(tmp_path, qwen3_moe, function, "lm_head").nearest
    assert answer.found[0].choices == (f"log_probs:{choice}",)
    assert answer.explained


def test_kernels_are_called_on_the_micro_batches_of_the_pass(
    tmp_path: Path, qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the reference has others, and where some tokens are padding; the last micro-batch is smaller."""
    shapes: set[tuple[int, ...]] = set()
    outputs = Kernels.outputs

    def spied(self: Any, choices: Any, sample: Any) -> Any:
        shapes.add(tuple(sample.results[0].shape[:2]))
        return outputs(self, choices, sample)

    monkeypatch.setattr(Kernels, "outputs", spied)
    mask = torch.ones(5, 9, dtype=torch.bool)
    mask[2, :4] = False
    more: dict[str, Any] = {"shape": (5, 9), "mask": mask, "reference": {"micro_batch": 3}}
    (answer,) = planted(tmp_path, qwen3_moe, NORM, {"1": {"normalized": "fp32"}}, **more)
    assert plainest(answer) == {"normalized": "fp32"}
    assert shapes == {(2, 9), (1, 9)}


def test_what_a_search_may_take_is_bounded(tmp_path: Path, qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "WORK", 400)
    first, second, third = report_of(tmp_path, qwen3_moe, "by_mean_of_sizes", NORM).nearest
    assert 190 <= first.tried <= 200
    assert 90 <= second.tried <= 103
    # Half of what is left is too little to begin with: only what was nearest before is tried.
    assert third.tried <= 2 * inquiry.SHOWN


def test_a_choice_is_named_beside_another_one_of_some_phase(tmp_path: Path, qwen3_moe: Path) -> None:
    """In decode the other side's kernels have other settings: what is asked is asked of those."""
    decode: dict[str, Any] = {"decode": {"from": 6}}
    reference = {"set": {"layers[1].moe.norm:normalized@decode": "fp32"}}
    node = "layers[1].moe.norm"
    report = report_of(tmp_path, qwen3_moe, "in_steps_of_one", node, schedule=decode, reference=reference)
    (answer,) = report.nearest
    assert plainest(answer) == {"eps": "0.0013"}
    assert answer.found[0].compared == answer.found[0].equal == 1
