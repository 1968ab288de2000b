"""The profile that explain writes: one value for each place and phase, and what was recorded given back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from moeparity.bisection.pipeline import bisect
from moeparity.errors import TraceError
from moeparity.evidence.explain.explained_profile import profile_text
from moeparity.evidence.explain.report import Explanation, OpenChoice
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from tests.evidence.explain.observed import result
from tests.evidence.traced import captured, recipe, tokens

ROTARY = "rotary:output"


def wider_in_steps(program: Any) -> None:
    """The norm before attention of layer 1 rounds once in steps of decoding, and twice in prompts."""
    norm = program.model.layers[1].input_layernorm
    inner = norm.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 1:
            return inner(x)
        wide = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + norm.variance_epsilon)
        return (wide * norm.weight.float()).to(x.dtype)

    norm.forward = forward


def test_a_profile_gives_back_a_trace_whose_steps_were_computed_otherwise(qwen3_moe: Path, tmp_path: Path) -> None:
    """As the reference of a recipe, in prompts and in steps: every bit that the trace shows."""
    prompts, whole = tokens((2, 5)), list[torch.Tensor]()

    def run(program: Any, ids: torch.Tensor) -> None:
        whole.append(ids)
        cache = None
        with torch.no_grad():
            for _ in range(3):
                out = program(whole[-1], past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                whole.append(out.logits[:, -1:].argmax(-1))

    trace = captured(
        qwen3_moe,
        tmp_path / "trace",
        prompts,
        patch=wider_in_steps,
        run=run,
        profile="hf-default",
        dtype=torch.bfloat16,
    )
    nodes = "layers[1].attention.*"
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=qwen3_moe, profile="hf-default", nodes=(nodes,)))
    profile = tmp_path / "mine.yaml"
    profile.write_text(profile_text(result, "mine"), "utf-8")
    rules = yaml.safe_load(profile.read_text("utf-8"))["rules"]
    of_norm = [(r["phase"], r["set"].get("normalized")) for r in rules if r["nodes"] == "layers[1].attention.norm"]
    assert (["prefill"], "bf16") in of_norm
    assert (["decode"], "fp32") in of_norm
    path = recipe(
        tmp_path, qwen3_moe, torch.cat(whole[:-1], 1), trace, grafts=False, reference={"profile": "./mine.yaml"}
    )
    report = bisect(path, device="cpu")
    assert report.roots == ()
    assert report.metrics.unequal_tokens == 0
    assert report.verdict.status != "fail"


def explanation(node: str, value: str, **further: Any) -> Explanation:
    """A node that was explained with the rotation's table computed anew."""
    answer = Explanation(
        node=node,
        op="attention",
        nodes=("rotary", node),
        forwards=(0,),
        phases=("forward",),
        elements=8,
        as_it_is=1.0,
        as_started=True,
        tried=0,
        calls=1,
        settings=((ROTARY, value), (f"{node}:output", "bf16")),
    )
    return replace(answer, **further)


def rotary_rules(*answers: Explanation) -> list[tuple[object, ...]]:
    rules = yaml.safe_load(profile_text(result(*answers), "mine"))["rules"]
    return [
        (tuple(r.get("phase", ())), r["set"]["output"], r["evidence"]["level"]) for r in rules if r["nodes"] == "rotary"
    ]


FIRST, SECOND = (f"layers[{i}].attention.attend" for i in range(2))
DECODE, PREFILL = {"phases": ("decode",)}, {"phases": ("prefill",)}


def open_to(*others: str, value: str) -> dict[str, object]:
    return {"open": (OpenChoice(place=ROTARY, value=value, others=others),)}


def test_what_two_nodes_say_alike_is_stated_once() -> None:
    assert rotary_rules(explanation(FIRST, "bf16"), explanation(SECOND, "bf16")) == [((), "bf16", "verified: trace")]


def test_what_is_decided_by_one_node_is_stated_though_another_leaves_it_open() -> None:
    another = explanation(SECOND, "bf16", **open_to("fp32", value="bf16"))
    for answers in ((explanation(FIRST, "fp32"), another), (another, explanation(FIRST, "fp32"))):
        assert rotary_rules(*answers) == [((), "fp32", "verified: trace")]


def test_two_values_that_are_both_decided_are_refused() -> None:
    message = r"rotary:output is fp32 by layers\[0\].attention.attend and bf16 by layers\[1\].attention.attend"
    with pytest.raises(TraceError, match=message):
        profile_text(result(explanation(FIRST, "fp32"), explanation(SECOND, "bf16")), "mine")
    another = explanation(SECOND, "bf16", **open_to("fp16", value="bf16"))
    with pytest.raises(TraceError, match=message):
        profile_text(result(explanation(FIRST, "fp32"), another), "mine")


def test_two_values_in_two_phases_are_stated_of_these() -> None:
    assert rotary_rules(explanation(FIRST, "fp32", **DECODE), explanation(SECOND, "bf16", **PREFILL)) == [
        (("decode",), "fp32", "verified: trace"),
        (("prefill",), "bf16", "verified: trace"),
    ]


def test_a_forward_without_a_cache_beside_steps_is_stated_of_itself() -> None:
    assert rotary_rules(explanation(FIRST, "fp32", **DECODE), explanation(SECOND, "bf16")) == [
        (("decode",), "fp32", "verified: trace"),
        (("forward",), "bf16", "verified: trace"),
    ]
