"""Engines by launch files: every launch file of the tests beside a checkpoint, and what overrules what."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from moeparity.doctor.engines import Engine, bound_alike, engines
from moeparity.doctor.evidence import Stranger
from moeparity.doctor.report import Party
from moeparity.errors import MoeparityError, SpecError
from moeparity.inputs.model import open_model
from moeparity.plan.graph import Graph
from moeparity.profiles.launch import read
from tests.doctor.programs import ROOT, command

LAUNCH = ROOT / "tests" / "profiles" / "launch"
FILES = LAUNCH / "files"
RESOLVED = LAUNCH / "resolved" / "vllm-1.json"
NOBODY: dict[Party, str | None] = {"sampler": None, "trainer": None}


@pytest.fixture(scope="module")
def graph(small: Path) -> Graph:
    return open_model(small, device="cpu").graph


def by(graph: Graph, small: Path, *files: Path, **profiles: str) -> tuple[dict[Party, Engine], list[Stranger]]:
    return engines({**NOBODY, **profiles}, files, small, graph, "bf16", partial(_bound, graph))  # type: ignore[dict-item]


def _bound(graph: Graph, of_party: dict[Party, Engine]) -> dict[Party, Engine]:
    for engine in of_party.values():
        bound_alike({"": engine}, graph, "bf16", ())
        bound_alike({"": engine.alone}, graph, "fp32", ())
    return of_party


def test_without_a_file_defaults_stand_for_both(graph: Graph, small: Path) -> None:
    of_party, aside = by(graph, small)
    assert {party: (engine.name, engine.by) for party, engine in of_party.items()} == {
        "sampler": ("vllm", "by default"),
        "trainer": ("hf-eager", "by default"),
    }
    assert aside == []


def test_one_file_may_give_both_and_what_is_named_wins(graph: Graph, small: Path) -> None:
    file = FILES / "trl" / "server-and-trainer.sh"
    of_party, aside = by(graph, small, file)
    assert all("server-and-trainer.sh" in engine.by for engine in of_party.values())
    assert aside == []
    of_party, _ = by(graph, small, file, sampler="sglang")
    assert (of_party["sampler"].name, of_party["sampler"].by) == ("sglang", "as named")
    assert "server-and-trainer.sh" in of_party["trainer"].by
    with pytest.raises(SpecError, match="no-such"):
        by(graph, small, file, sampler="no-such")


def test_what_an_engine_resolved_goes_before_what_starts_it(graph: Graph, small: Path) -> None:
    of_party, aside = by(graph, small, FILES / "vllm" / "wide.sh", RESOLVED)
    assert of_party["sampler"].by.startswith("as resolved in")
    assert all("name the one that ran with --sampler" in stranger.reason for stranger in aside)


def test_two_servers_that_contradict_each_other_are_said(graph: Graph, small: Path) -> None:
    of_party, aside = by(graph, small, LAUNCH / "sglang.sh", LAUNCH / "vllm.sh")
    assert of_party["sampler"].variant.profile.startswith("sglang")
    assert [stranger.path.name for stranger in aside] == ["vllm.sh"]
    assert "starts another sampler" in aside[0].reason


def test_no_launch_file_ends_an_examination(graph: Graph, small: Path) -> None:
    """Each file beside the checkpoint: it gives an engine, or is put aside with a reason; a plan can be made."""
    used = 0
    files = [path for path in sorted(FILES.rglob("*")) if path.is_file()]
    for file in files:
        of_party, aside = by(graph, small, file)
        launched = [engine for engine in of_party.values() if engine.by != "by default"]
        used += bool(launched)
        try:
            sides = [side for side in read(file, small).sides if side.profile]
        except MoeparityError:
            sides = []
        assert launched or aside or not sides, file
        assert all(file.name in engine.by for engine in launched)
        for engine in of_party.values():
            assert bound_alike({"": engine}, graph, "bf16", ())[""].dtype in {"bf16", "fp16", "fp32"}
    assert used > len(files) / 2


def test_launch_files_stand_in_the_evidence(run_folder: Path, small: Path, tmp_path: Path) -> None:
    (run_folder / "serve.sh").write_text("vllm serve MODEL --logprobs-mode processed_logprobs\n")
    (run_folder / "broken.sh").write_text("vllm serve 'MODEL\n")
    of = command(run_folder, "--checkpoint", small, out=tmp_path / "out.json")
    assert len(of["evidence"]) == 3
    assert "sampler: vllm" in of["evidence"][2]
    assert "by launch file" in of["evidence"][2]
    assert "serve.sh" in of["evidence"][2]
    assert "trainer: hf-eager by default" in of["evidence"][2]
    assert any("broken.sh" in line for line in of["aside"])
    assert of["answer"] == "noise"
