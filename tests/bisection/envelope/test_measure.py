"""The legal-order envelope of whole bisections: planted orders are inside, planted precision is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moeparity import bisect
from moeparity.bisection.envelope.data import Envelope
from moeparity.bisection.options import Options
from moeparity.bisection.report import Report
from tests.bisection.reports import on_screen
from tests.planted.places import random_tokens, write_recipe

ON = Options(envelope=8, floor=False)
FP32 = {"dtype": "fp32", "micro_batch": 4}


def report(folder: Path, checkpoint: Path, reference: dict[str, Any], candidate: dict[str, Any], **on: Any) -> Report:
    tokens = {"input_ids": random_tokens(4, 24)}
    path = write_recipe(folder, checkpoint, tokens, {"micro_batch": 4, **reference}, {"micro_batch": 4, **candidate})
    return bisect(path, device="cpu", options=Options(**on) if on else ON)


def envelope(report: Report) -> Envelope:
    assert report.envelope is not None
    return report.envelope


@pytest.mark.parametrize(
    "order",
    [
        {"layers[*].moe.norm:order": "lanes(8) | fold_lo"},
        {"layers[1].attention.o_proj:order": "reverse"},
        {"layers[*].moe.combine:order": "reverse"},
        {"layers[0].moe.experts:implementation": "loop", "layers[0].moe.experts:order": "blocks(16) | sequential"},
        {"lm_head:order": "lanes(4) | sequential"},
    ],
    ids=["norm", "linear", "combine", "experts", "head"],
)
def test_another_order_is_inside(tmp_path: Path, qwen3_moe: Path, order: dict[str, str]) -> None:
    section = envelope(report(tmp_path, qwen3_moe, FP32, {**FP32, "set": order}))
    assert section.nodes
    assert {node.verdict for node in section.nodes} == {"inside"}
    assert section.nodes[0].root
    assert all(n.reference.differing > 0 and n.candidate is not None for n in section.nodes if n.reference is not None)
    assert "rounding order" in section.reading[0]
    assert "no further apart than legal orders do" in section.reading[1]


@pytest.mark.parametrize(
    "fault",
    [
        {"layers[*].moe.combine:accumulate": "bf16"},
        {"layers[1].moe.gate:output": "bf16"},
        {"layers[0].moe.norm:eps": 1e-3},
        {"layers[0].attention.attend:probabilities": "bf16"},
    ],
    ids=["combine", "gate", "eps", "attention"],
)
def test_precision_and_semantics_are_outside(tmp_path: Path, qwen3_moe: Path, fault: dict[str, Any]) -> None:
    section = envelope(report(tmp_path, qwen3_moe, FP32, {**FP32, "set": fault}))
    assert {node.verdict for node in section.nodes} == {"outside"}
    for node in section.nodes:
        assert node.reference is not None
        assert node.reference.outside > 0.5 * node.reference.differing > 0
        assert node.candidate is None
    assert "precision, form or semantics differ" in section.reading[0]


def test_a_candidate_that_rounds_less_lies_inside_one_way_only(tmp_path: Path, qwen3_moe: Path) -> None:
    coarse = {"set": {"layers[*].moe.combine:accumulate": "bf16", "layers[*].moe.combine:output": "bf16"}}
    fine = {"set": {"layers[*].moe.combine:accumulate": "fp32", "layers[*].moe.combine:output": "bf16"}}
    section = envelope(report(tmp_path, qwen3_moe, coarse, fine))
    assert {node.verdict for node in section.nodes} == {"one_sided"}
    assert section.reading[1] == "3 of 3 nodes with a band differ by more than orders explain."


def test_ranks_in_another_order_are_inside(tmp_path: Path, deepseek_v3: Path) -> None:
    place = {"placement": {"tensor": 4}}
    sides = [{**place, "set": {"**.reduce:collective": c}} for c in ("nccl.ring", "flashinfer.one_shot")]
    section = envelope(report(tmp_path, deepseek_v3, *sides))
    reduced = [node for node in section.nodes if node.op == "all_reduce"]
    assert reduced
    assert {node.verdict for node in reduced} == {"inside"}


def test_an_order_that_states_its_own_arithmetic_is_not_drawn(tmp_path: Path, qwen3_moe: Path) -> None:
    settings = {"layers[0].moe.combine:order": "blocks(2, accumulate=fp32, round=bf16) | sequential"}
    (node,) = envelope(report(tmp_path, qwen3_moe, {**FP32, "set": settings}, FP32)).nodes
    assert node.verdict == "not_drawn"
    assert node.not_drawn is not None
    assert "states an arithmetic of its own" in node.not_drawn


def test_it_is_told_in_report_and_json_only_where_asked_for(tmp_path: Path, qwen3_moe: Path) -> None:
    candidate = {**FP32, "set": {"layers[*].moe.norm:order": "reverse"}}
    assert report(tmp_path, qwen3_moe, FP32, candidate, floor=False).envelope is None
    with_envelope = report(tmp_path, qwen3_moe, FP32, candidate)
    as_json = json.loads(with_envelope.to_json())["envelope"]
    assert as_json["draws"] == 8
    assert as_json["nodes"][0]["reference"]["differing"] > 0
    shown = on_screen(with_envelope, 140)
    assert "Legal orders" in shown
    assert "layers[*].moe.norm (root)" in shown
    alike = envelope(report(tmp_path, qwen3_moe, FP32, FP32))
    assert alike.nodes == ()
    assert "wherever a sum has an order to draw" in alike.reading[0]


@pytest.mark.parametrize("faulty", ["reference", "candidate"])
def test_precision_in_some_phase_is_outside(tmp_path: Path, qwen3_moe: Path, faulty: str) -> None:
    """Draws of decoded tokens round as their side does in decode, not as it does where it prefills."""
    steps = {"dtype": "fp32", "schedule": {"decode": {"from": 4}}}
    sides = {name: dict(steps) for name in ("reference", "candidate")}
    sides[faulty]["set"] = {"layers[1].moe.norm:normalized@decode": "bf16"}
    path = write_recipe(tmp_path, qwen3_moe, {"input_ids": random_tokens(4, 24)}, *sides.values())
    section = envelope(bisect(path, device="cpu", options=ON))
    assert {node.node: node.verdict for node in section.nodes} == {"layers[1].moe.norm": "outside"}
