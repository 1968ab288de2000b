"""A side's `plans`: what its GEMMs are added up by, and which files are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from moeparity.errors import SpecError, Where
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.gemm_shapes import gemm_shapes
from moeparity.plan.sides import bound_side
from moeparity.plan.spec.variant_schema import Variant
from tests.plan.test_gpu import QUICKSTART, model, orders, report_of

SHAPES = ((24, 96), (96, 256), (256, 96))
"""N and K of the shipped checkpoint's GEMMs: gate, o_proj; q, k, v and the head."""
EXPAND = "layers[0].attention.expand"
TWO_SPLITS, ONE_SPLIT = "66 393 2 2 0 0 35 0 5", "66 393 1 0 0 0 35 0 5"


def plans_file(folder: Path, *runs: str, gpu: str = "h200", library: str = "13.1.0", shapes: Any = SHAPES) -> str:
    gemms = [
        {"n": n, "k": k, "inputs": "bf16", "output": output, "plans": list(runs)}
        for n, k in shapes for output in ("bf16", "fp32")
    ]  # fmt: skip
    head = f"kind: plans\ngpu: {gpu}\ndevice: NVIDIA {gpu.upper()}\nlibrary: {library}\nworkspace: 33554432\n"
    path = folder / "plans.yaml"
    path.write_text(f"{head}gemms: {gemms}\n")
    return str(path)


def plan(folder: Path, checkpoint: Path = QUICKSTART, **variant: Any) -> Plan:
    of_side = Variant(**{"profile": "hf-default", "gpu": "h200", **variant})
    where = Where(folder / "recipe.yaml")
    return bound_side(model(checkpoint).graph, of_side, load_profile(of_side.profile, where), "bf16", where).plan


def test_the_shapes_asked_for_are_those_of_the_gemms() -> None:
    bound = plan(QUICKSTART)
    assert gemm_shapes([bound]) == tuple((*shape, "bf16", "bf16") for shape in SHAPES)
    in_two = plan(QUICKSTART, gpu=None, placement={"tensor": 2})
    assert (96, 128, "bf16", "bf16") in gemm_shapes([in_two])
    assert (128, 96, "bf16", "bf16") in gemm_shapes([in_two])


def test_plans_are_those_of_cublas_and_experts_keep_one_chain(tmp_path: Path) -> None:
    plans = plans_file(tmp_path, f"1-16: {TWO_SPLITS}", f"17-20: {TWO_SPLITS}", f"21-99: {ONE_SPLIT}")
    bound = plan(tmp_path, plans=plans)
    outputs = ("bf16", "fp32")
    shapes = "; ".join(f"bf16 {output} {n}x{k} 1-20=2 21-99=1" for n, k in SHAPES for output in outputs)
    assert orders(bound) == {
        "linear": {f"cublaslt(h200: {shapes})"}, "gate": {f"cublaslt(h200: {shapes})"},
        "lm_head": {f"cublaslt(h200: {shapes})"}, "experts": {"tensor_core(h200)"},
    }  # fmt: skip
    gate = next(node for node in bound.graph.nodes if node.op.name == "gate")
    assert bound.sees_rows(gate)
    assert not plan(tmp_path).sees_rows(gate)


def test_latents_are_expanded_by_plans_too(tmp_path: Path, deepseek_v3: Path) -> None:
    """kv_b's GEMM is one of cuBLAS's; where it is absorbed, its products in batches are not asked for."""

    def of_latents(**variant: Any) -> Plan:
        # Their K is no multiple of 16.
        native = dict.fromkeys(("layers[*].attention.q_proj:order", "layers[*].moe.experts:order"), "native")
        loop = {"layers[*].moe.experts:implementation": "loop"}
        return plan(tmp_path, deepseek_v3, **{"set": {**native, **loop}, **variant})

    bound = of_latents()
    shapes = gemm_shapes([bound])
    (kv_b,) = (node.weights["kv_b"].shape for node in bound.graph.nodes if node.name == EXPAND)
    assert (*kv_b, "bf16", "bf16") in shapes
    halved = gemm_shapes([of_latents(gpu=None, placement={"tensor": 2})])
    assert (kv_b[0] // 2, kv_b[1], "bf16", "bf16") in halved
    of_file = {(n, k) for n, k, *_ in shapes}
    by_op = orders(of_latents(plans=plans_file(tmp_path, f"1-99: {ONE_SPLIT}", shapes=of_file)))
    assert all(str(order).startswith("cublaslt(h200: ") for order in by_op["mla_expand"])
    others = plans_file(tmp_path, f"1-99: {ONE_SPLIT}", shapes=of_file - {tuple(kv_b)})
    with pytest.raises(SpecError, match=rf"kv_b_order: the plans hold no GEMM of N {kv_b[0]}, K {kv_b[1]}"):
        of_latents(plans=others)


@pytest.mark.parametrize(
    ("run", "level"),
    [
        (TWO_SPLITS, "verified: vectors"),
        ("13 0 1 0 0 75 0 0 0", "verified: vectors"),
        ("13 0 1 0 0 74 0 0 0", "read"),
        ("24 5 3 4 0 0 10 0 0", "verified: vectors"),
        ("24 5 3 1 0 0 10 0 0", "read"),
        ("21 5 3 4 0 0 10 0 0", "read"),
    ],
)
def test_plans_by_algorithms_that_an_h200_was_held_to_are_verified(tmp_path: Path, run: str, level: str) -> None:
    bound = plan(tmp_path, plans=plans_file(tmp_path, f"1-99: {run}"))
    (source,) = {bound.settings[place].rule for place in bound.settings if place == ("lm_head", "order")}
    assert source is not None
    assert (source.level, source.source) == (level, "plans of cuBLASLt 13.1.0 on NVIDIA H200, plans.yaml")
    assert bound.settings["lm_head", "splits"].level == level


IN_FP32 = {"gpu": "h200", "set": {"lm_head:output": "fp32"}}
"""Logits show a sum's last bit."""


def test_rows_computed_together_choose_the_plan(tmp_path: Path) -> None:
    """One side computes 7 tokens at once and the other 14: with plans that differ, so do the results."""
    variant = {**IN_FP32, "plans": plans_file(tmp_path, f"1-7: {TWO_SPLITS}", f"8-14: {ONE_SPLIT}")}
    report = report_of(tmp_path, {**variant, "micro_batch": 1}, {**variant, "micro_batch": 2})
    assert report.roots[0].node == "lm_head"
    assert str(report.candidate).endswith("gpu h200, plans of cuBLASLt 13.1.0 on NVIDIA H200, plans.yaml")
    variant["plans"] = plans_file(tmp_path, f"1-14: {TWO_SPLITS}")
    assert not report_of(tmp_path, {**variant, "micro_batch": 1}, {**variant, "micro_batch": 2}).roots


def test_a_step_takes_the_plan_of_its_own_rows(tmp_path: Path) -> None:
    """Steps of one row each, which are computed together where no bit shows it, are not those of a whole prompt."""
    variant = {**IN_FP32, "plans": plans_file(tmp_path, f"1: {TWO_SPLITS}", f"2-14: {ONE_SPLIT}"), "micro_batch": None}
    decode = {"schedule": {"decode": {"from": 1, "batch": "single"}}}
    assert report_of(tmp_path, variant, variant | decode).roots[0].node == "lm_head"
    variant["plans"] = plans_file(tmp_path, f"1-14: {ONE_SPLIT}")
    assert "lm_head" not in {root.node for root in report_of(tmp_path, variant, variant | decode).roots}


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ({"gpu": "h100"}, "are those of NVIDIA H100 (h100), and this side's gpu is h200"),
        ({"library": "12.8.4"}, "are those of cuBLASLt 12.8.4; what its numbers stand for on h200 is known for 13.1."),
        ({"shapes": SHAPES[1:]}, "layers[0].moe.gate:order: the plans hold no GEMM of N 24, K 96"),
        ({"library": "v13"}, "'v13' is no version; expected such as 13.1.0"),
        ({"run": "1-20 66 1"}, "is no plan; expected rows, `:` and 9 numbers"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, file: dict[str, Any], reason: str) -> None:
    run = file.pop("run", f"1-20: {ONE_SPLIT}")
    with pytest.raises(SpecError, match=re.escape(reason)):
        plan(tmp_path, plans=plans_file(tmp_path, run, **file))


def test_plans_want_a_file_and_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"plans 'none\.yaml' does not exist"):
        plan(tmp_path, plans="none.yaml")
    with pytest.raises(ValueError, match="Say which beside it: `gpu: h100`"):
        Variant(profile="hf-default", plans="plans.yaml")


def test_rows_without_a_plan_are_one_sentence(tmp_path: Path) -> None:
    variant = {"gpu": "h200", "plans": plans_file(tmp_path, f"1-7: {ONE_SPLIT}")}
    with pytest.raises(SpecError, match=r"hold other numbers of rows than 14\. Ask again with `moeparity kernel plans"):
        report_of(tmp_path, variant, variant)
