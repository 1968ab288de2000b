"""An environment report as a profile: what it shows, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moeparity.errors import RankError, Where
from moeparity.plan.engine_profile import load_profile
from moeparity.ranks import environment
from moeparity.ranks.job_profile import profile_text
from moeparity.ranks.journal import Journal
from moeparity.ranks.shown import shown
from tests.command import inside

TF32 = "switch.fp32_precision.cuda.matmul"
GPU = {"device": "NVIDIA H100", TF32: "tf32", "model.0.attention": "None"}


def written(folder: Path, *reports: dict[str, str]) -> Path:
    """A job's journals with these environment reports."""
    for rank, fields in enumerate(reports):
        journal = Journal(folder, rank, len(reports))
        if fields:
            journal.write("environment", fields=fields)
        journal.write("end", last=None)
        journal.close()
    return folder


def pairs(fields: dict[str, str]) -> set[tuple[str, str, str]]:
    """Op, attribute and value of what is shown."""
    return {(choice.op, choice.attribute, choice.value) for choice in shown(fields)}


def test_a_report_of_this_process_is_a_profile_that_binds(tmp_path: Path) -> None:
    fields = {**environment.report(), "model.0.attention": "sdpa", "model.0.experts": "grouped_mm"}
    fields["model.0.dtype"] = "bfloat16"
    folder = written(tmp_path / "logs", fields, fields)
    out = tmp_path / "server.yaml"
    done = inside("ranks", folder, "--profile-out", out)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert "# Shown, and no choice of a profile: model.0.dtype bfloat16\n" in text
    assert "model.0.attention is sdpa" in text
    profile = load_profile("./server.yaml", Where(tmp_path / "recipe.yaml"))
    rules = [(rule.op, rule.values, rule.level) for layer in profile.layers for rule in layer]
    assert ("attention", (("implementation", "sdpa"),), "inferred") in rules
    assert ("experts", (("implementation", "grouped"),), "inferred") in rules
    assert {op for op, _, _ in rules} <= {"attention", "mla", "experts"}, "a switch of GPUs shows nothing on a CPU"


def test_what_is_not_known_or_differs_between_models_is_left_out() -> None:
    two_models = {"model.0.attention": "sdpa", "model.1.attention": "eager", "model.0.experts": "batched_mm"}
    assert pairs(two_models) == set()
    assert ("attention", "implementation", "flash") in pairs({"model.0.attention": "flash_attention_2"})
    assert pairs({"model.0.attention": "flex_attention", "device": "cpu", TF32: "tf32"}) == set()


def test_tf32_is_shown_on_a_gpu() -> None:
    on = pairs(GPU)
    assert {("linear", "tf32", "yes"), ("mla_expand", "kv_b_tf32", "yes"), ("experts", "tf32", "yes")} <= on
    assert {value for *_, value in pairs({**GPU, TF32: "ieee"})} == {"no"}


def test_reports_that_make_no_profile_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"rank 1 wrote no environment report"):
        profile_text(written(tmp_path / "none", GPU, {}), "p")
    with pytest.raises(RankError, match=rf"environments differ.*{re.escape(TF32)}: rank 0 tf32, rank 1 ieee"):
        profile_text(written(tmp_path / "apart", GPU, {**GPU, TF32: "ieee"}), "p")
    with pytest.raises(RankError, match=r"shows no choice that a profile states"):
        profile_text(written(tmp_path / "nothing", {"device": "cpu"}), "p")
