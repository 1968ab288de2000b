"""A trace beside a log whose cause is open: what `explain` finds in it, and what it cannot be used for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from moeparity.doctor.answer import answered
from moeparity.doctor.case import Case, DoctorRequest, gather, opened
from moeparity.doctor.hypotheses import AS_CONFIGURED
from moeparity.doctor.report import Examination
from moeparity.doctor.traces import with_traces
from moeparity.evidence.explain import trace as explain_module
from tests.doctor.programs import Patch, command, log, tokens
from tests.evidence.recorded import recorded


def traced(small: Path, folder: Path, patch: Patch | None = None) -> Path:
    """A trace of one forward of transformers."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        small, dtype=torch.bfloat16, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    if patch is not None:
        patch(model)
    ids = tokens(2, 8)
    with recorded(folder), torch.no_grad():
        model(ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return folder


def twice(model: Any) -> None:
    """A norm that is applied twice."""
    norm = model.model.layers[1].input_layernorm
    forward = norm.forward
    norm.forward = lambda hidden: forward(forward(hidden))


@pytest.fixture(scope="module")
def case(
    small: Path, few_ids: torch.Tensor, few_scores: torch.Tensor, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    path = log(tmp_path_factory.mktemp("case") / "log.jsonl", few_ids, few_scores, few_scores)
    request = DoctorRequest(evidence=(path,), checkpoint=small, sampler="hf-eager", device="cpu")
    return opened(request, gather(request))


def examined(case: Case, *traces: Path) -> Examination:
    """The examination of a log of which nothing is explained, with traces."""
    case = replace(case, evidence=replace(case.evidence, traces=traces))
    left_open = replace(answered(case, case.tried([AS_CONFIGURED]), ()), answer="not explained")
    return with_traces(left_open, case)


def test_a_trace_alone_is_explained(small: Path, tmp_path: Path) -> None:
    traced(small, tmp_path / "trace", twice)
    of = command(tmp_path / "trace", "--checkpoint", small, out=tmp_path / "out.json")
    assert (of["answer"], of["exit"], of["tokens"]) == ("found", 1, 0)
    assert "norm-twice" in of["blame"]["named"][0]


def test_a_fault_that_gives_the_recorded_bits_is_the_cause(case: Case, small: Path, tmp_path: Path) -> None:
    of = examined(case, traced(small, tmp_path / "trace", twice))
    assert of.answer == "found"
    assert of.exit_code == 1
    (name,) = of.blame.named
    assert "layers[1].attention.norm" in name
    assert "norm-twice" in name
    assert of.asks == ()


def test_values_without_a_fault_and_strange_ones_name_nothing(
    case: Case, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no choice gives is searched for to the end: a part of the work shows that."""
    monkeypatch.setattr(explain_module, "WORK", 256)

    def strange(model: Any) -> None:
        model.model.layers[1].mlp.experts.act_fn = nn.GELU()

    right = examined(case, traced(small, tmp_path / "right"))
    assert right.answer == "not explained"
    assert "legal choices give the bits of" in right.clues[-1].says
    of = examined(case, traced(small, tmp_path / "strange", strange))
    assert of.answer == "not explained"
    assert "no choices that were tried give the bits of" in of.clues[-1].says
    assert "layers[1].moe." in of.clues[-1].says


def test_a_damaged_trace_is_told_of(case: Case, tmp_path: Path) -> None:
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "rank-0" / "head.json").write_text("{}")
    of = examined(case, tmp_path)
    assert of.answer == "not explained"
    assert "a trace that can't be used" in of.clues[-1].says


def test_a_clear_answer_needs_no_trace(case: Case, tmp_path: Path) -> None:
    case = replace(case, evidence=replace(case.evidence, traces=(tmp_path / "never-opened",)))
    configured = replace(answered(case, case.tried([AS_CONFIGURED]), ()), answer="as configured")
    assert with_traces(configured, case) is configured
