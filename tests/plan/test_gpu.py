"""A side's `gpu`: which choices it makes, what overrides it, and that it is one toggle of a report."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.errors import SpecError, Where
from moeparity.inputs.model import Model, open_model
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.sides import bound_side
from moeparity.plan.spec.variant_schema import Variant
from tests.planted.places import random_tokens, write_recipe

QUICKSTART = Path(__file__).parents[2] / "checkpoints/quickstart"
HERE = Where(Path(__file__))


@lru_cache(maxsize=2)
def model(folder: Path) -> Model:
    return open_model(folder, device="cpu", residency="resident")


def plan(folder: Path, **variant: Any) -> Plan:
    of_side = Variant(**{"profile": "hf-default", **variant})
    return bound_side(model(folder).graph, of_side, load_profile(of_side.profile, HERE), "bf16", HERE).plan


def orders(bound: Plan) -> dict[str, set[object]]:
    """By op, the orders of its GEMMs."""
    of_op: dict[str, set[object]] = {}
    for node in bound.graph.nodes:
        for name in ("order", "kv_b_order"):
            if node.op.role.gemm and name in bound.active(node):
                of_op.setdefault(node.op.name, set()).add(bound.active(node)[name])
    return of_op


def report_of(folder: Path, reference: dict[str, Any], candidate: dict[str, Any]) -> Report:
    variants = ({"micro_batch": 2, **variant} for variant in (reference, candidate))
    path = write_recipe(folder, QUICKSTART, {"input_ids": random_tokens(2, 7, vocab=256)}, *variants)
    return bisect(path, device="cpu")


def test_attention_is_on_the_gpu_but_with_sinks(qwen3_moe: Path, gpt_oss: Path) -> None:
    def attention(folder: Path) -> set[object]:
        bound = plan(folder, profile="vllm", gpu="h100", set={"layers[*].moe.experts:order": "native"})
        nodes = [node for node in bound.graph.nodes if node.op.name == "attention"]
        assert {bound.active(node)["implementation"] for node in nodes} == {"flash"}
        return {bound.active(node).get("order") for node in nodes}

    assert attention(qwen3_moe) == {"tensor_core(h100)"}
    assert attention(gpt_oss) == {None}
    at = "layers[0].attention.attend"
    with pytest.raises(SpecError, match=f"{re.escape(at)}:order changes nothing at {re.escape(at)}: it has sinks"):
        plan(gpt_oss, set={f"{at}:order": "tensor_core(h100)"})


def test_every_gemm_is_on_the_gpu() -> None:
    on_cpu, on_gpu = plan(QUICKSTART), plan(QUICKSTART, gpu="h100")
    assert {"linear", "gate", "experts", "lm_head"} == orders(on_gpu).keys()
    assert all(values == {"tensor_core(h100)"} for values in orders(on_gpu).values())
    experts = next(node for node in on_gpu.graph.nodes if node.op.name == "experts")
    assert on_cpu.active(experts)["implementation"] == "grouped"
    assert on_gpu.active(experts)["implementation"] == "loop"


def test_the_gemms_with_kv_b_are_too(deepseek_v3: Path) -> None:
    bound = plan(deepseek_v3, gpu="a100", set={"**.experts:order": "native", "**.o_proj:order": "native"})
    assert orders(bound)["mla_expand"] == {"tensor_core(a100)"}


def test_what_the_recipe_sets_overrides_it() -> None:
    bound = plan(
        QUICKSTART, gpu="h100", set={"lm_head:order": "tensor_core(a100)", "layers[0].moe.gate:order": "native"}
    )
    assert orders(bound)["lm_head"] == {"tensor_core(a100)"}
    assert orders(bound)["gate"] == {"tensor_core(h100)", "native"}


def test_what_profiles_say_of_rows_rests() -> None:
    """Blocks of rows are torch's, and no row of a tensor core depends on others."""
    bound = plan(QUICKSTART, profile="vllm-batch-invariant", gpu="h100")
    for node in bound.graph.nodes:
        if node.op.name == "linear":
            assert "rows" not in bound.active(node)
            assert not bound.sees_rows(node)


def test_fp32_is_left_to_torch() -> None:
    bound = plan(QUICKSTART, gpu="h100", set={"layers[*].moe.gate:inputs": "fp32"})
    gates = [node for node in bound.graph.nodes if node.op.name == "gate"]
    assert all(bound.sees_rows(node) for node in gates)


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ({"gpu": "t4"}, "t4 mma: bf16 x bf16 -> fp32: the GPU has no such instruction. It multiplies fp16"),
        (
            {"gpu": "h100", "set": {"lm_head:splits": 3}},
            "96 inputs cannot be cut into 3 splits of whole 64; expected 1 to 2",
        ),
        ({"profile": "vllm-cpu-avx512", "gpu": "h100"}, "speaks of CPUs"),
    ],
)
def test_what_does_not_fit_is_refused(variant: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=re.escape(reason)):
        plan(QUICKSTART, **variant)


def test_a_gpu_is_one_choice_of_a_report(tmp_path: Path) -> None:
    report = report_of(tmp_path, {}, {"gpu": "h100"})
    (toggle,) = report.toggles
    assert toggle.label == "placement gpu (unknown | inferred)"
    assert report.candidate.gpu == "h100"
    assert report.reference.gpu is None
    assert str(report.candidate).endswith(", gpu h100, K in one part (inferred)")
    assert json.loads(report.to_json())["candidate"]["gpu"] == "h100"
    assert report.roots


def test_one_generation_of_gpus_gives_one_result(tmp_path: Path) -> None:
    """An H200 multiplies bf16 as an H100 does; an A100 does not."""
    of_h200, of_a100 = (report_of(tmp_path, {"gpu": "h100"}, {"gpu": gpu}) for gpu in ("h200", "a100"))
    assert not of_h200.roots
    assert [toggle.label for toggle in of_a100.toggles] == ["placement gpu (inferred)"]
    assert of_a100.roots


# What profiles state of GPUs


def levels(bound: Plan, op: str, attribute: str) -> dict[object, str]:
    """By value of an op's attribute, how sure it is."""
    places = [(node.name, attribute) for node in bound.graph.nodes if node.op.name == op]
    return {bound.settings[place].value: bound.settings[place].level for place in places}


def test_what_a_profile_states_of_a_gpu_has_its_evidence() -> None:
    on_h100, on_a100 = (plan(QUICKSTART, profile="vllm", gpu=gpu) for gpu in ("h100", "a100"))
    assert levels(on_h100, "linear", "order") == {"tensor_core(h100)": "verified: vectors"}
    assert levels(on_h100, "experts", "order") == {"tensor_core(h100)": "verified: ptx"}
    assert levels(on_h100, "attention", "order") == {"tensor_core(h100)": "inferred"}
    assert levels(on_h100, "rms_norm", "rsqrt") == {"approx": "verified: ptx"}
    assert levels(on_a100, "linear", "order") == {"tensor_core(a100)": "inferred"}
    assert levels(on_a100, "rms_norm", "rsqrt") == {"native": ""}
    assert levels(plan(QUICKSTART, profile="vllm"), "rms_norm", "rsqrt") == {"native": ""}


def test_a_profile_overrides_what_the_one_below_it_states_of_a_gpu() -> None:
    eager = plan(QUICKSTART, profile="vllm-eager", gpu="h100")
    assert levels(eager, "rms_norm", "mean").keys() == {"divide"}
    assert levels(plan(QUICKSTART, profile="vllm", gpu="h100"), "rms_norm", "mean") == {"div_full": "verified: ptx"}
    invariant = plan(QUICKSTART, profile="vllm-batch-invariant-eager", gpu="h100")
    assert "sqrt_rcp" in levels(invariant, "rms_norm", "rsqrt")
    assert levels(invariant, "linear", "order") == {"tensor_core(h100)": "read"}


def test_the_recipe_overrides_what_a_profile_states_of_a_gpu() -> None:
    bound = plan(QUICKSTART, profile="vllm", gpu="h100", set={"norm:rsqrt": "ieee"})
    assert set(levels(bound, "rms_norm", "rsqrt")) == {"approx", "ieee"}


def test_flags_are_offered_on_a_gpu_too() -> None:
    of_side = Variant(profile="vllm", gpu="h100")
    side = bound_side(model(QUICKSTART).graph, of_side, load_profile("vllm", HERE), "bf16", HERE)
    assert side.flagged is not None
    eager = next(flag for flag in side.flagged.flags if flag.text == "--enforce-eager")
    bound = side.flagged.plan(eager)
    assert bound is not None
    assert "divide" in levels(bound, "rms_norm", "mean")
    assert levels(bound, "linear", "order") == {"tensor_core(h100)": "verified: vectors"}
