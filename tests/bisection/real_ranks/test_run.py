"""`moeparity bisect --ranks real` in a job of two processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.command import run_live

ROOT = Path(__file__).parents[3]
BASE = ROOT / "tests/bad/base"
GLOO = "{profile: hf-eager, placement: {tensor: 2}}"
"""A profile that says gloo's order."""
BLOCKS = '{"**.o_proj:blocks": 4, "**.experts:blocks": 4, "**.reduce:collective": none}'
UNROUNDED = '{"**.reduce:collective": none, "**.reduce:accumulate": fp32, "**.reduce:output": fp32}'
SIDES = {
    "agrees": (f"{{profile: hf-eager, placement: {{tensor: 2}}, set: {BLOCKS}}}", GLOO),
    "differs": ("{profile: hf-eager}", f"{{profile: hf-eager, placement: {{tensor: 2}}, set: {UNROUNDED}}}"),
    "apart": ("{profile: hf-eager}", "{profile: hf-eager, placement: {attention: 2, expert: 2}}"),
    "stages": ("{profile: hf-eager}", "{profile: hf-eager, placement: {pipeline: 2}}"),
    "killed": ("{profile: hf-eager}", GLOO),
    "on-one-rank": ("{profile: hf-eager}", "{profile: hf-default}"),
    "on-four-ranks": ("{profile: hf-eager}", "{profile: hf-eager, placement: {tensor: 2, expert: 4}}"),
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both ranks printed and how they ended, by recipe; none of them outlives this."""
    folder = tmp_path_factory.mktemp("real_ranks")
    for name, (reference, candidate) in SIDES.items():
        (folder / f"{name}.yaml").write_text(
            f"kind: recipe\ncheckpoint: {BASE}\ntokens: {{file: {BASE}/tokens.safetensors, sampled_from: candidate}}\n"
            f"reference: {reference}\ncandidate: {candidate}\ngate: {{metric: k3, below: 1e-4}}\nfloor: false\n"
        )
    run_live("tests.bisection.real_ranks.job", str(folder), limit=180)
    return folder


def codes(job: Path, name: str) -> list[int]:
    return [int(code) for code in (job / f"{name}.code").read_text().split()]


def test_both_sides_have_the_bits_of_simulated_ranks(job: Path) -> None:
    printed = (job / "agrees.0").read_text()
    assert (job / "agrees.1").read_text() == ""
    assert codes(job, "agrees") in ([0, 0], [1, 0], [3, 0]), printed
    assert "Real ranks (2 processes, gloo)" in printed
    real = json.loads((job / "agrees.json").read_text())["real_ranks"]
    assert (real["backend"], real["processes"], len(real["sides"])) == ("gloo", 2, 2)
    for side, call in zip(real["sides"], ("all_gather", "all_reduce"), strict=True):
        assert side["unequal"] == []
        assert side["nodes"] > 10
        assert {site["call"] for site in side["sites"]} == {call}
        assert all(site["messages"] and not site["differing"] for site in side["sites"])
    assert " ".join(printed.split()).count("are those of simulated ranks, bit for bit") == 2


def test_groups_that_attend_apart_have_the_bits_of_simulated_ones(job: Path) -> None:
    assert codes(job, "apart")[1] == 0
    (side,) = json.loads((job / "apart.json").read_text())["real_ranks"]["sides"]
    assert (side["ranks"], side["unequal"]) == (2, [])
    assert [(site["node"], site["differing"]) for site in side["sites"]] == [("layers[*].moe.reduce", 0)]


def test_stages_of_a_pipeline_have_the_bits_of_one_stage(job: Path) -> None:
    assert codes(job, "stages") == [0, 0], (job / "stages.0").read_text()
    report = json.loads((job / "stages.json").read_text())
    (side,) = report["real_ranks"]["sides"]
    assert (side["ranks"], side["unequal"], side["sites"]) == (2, [], [])
    (toggle,) = report["toggles"]
    assert (toggle["name"], toggle["kind"]) == ("placement pipeline", "placement")
    assert toggle["alone"]["changed_nodes"] == 0


def test_a_sum_that_is_added_otherwise_is_named_with_the_backends_order(job: Path) -> None:
    printed = " ".join((job / "differs.0").read_text().split())
    assert "warning: The candidate on 2 real ranks has other bits than simulated" in printed
    (side,) = json.loads((job / "differs.json").read_text())["real_ranks"]["sides"]
    assert side["side"] == "candidate"
    assert side["unequal"][0].endswith("attention.reduce")
    assert all(site["differing"] == site["messages"] for site in side["sites"])
    assert all("gloo.all_reduce" in site["probed"] for site in side["sites"])
    assert "the probe finds gloo.all_reduce" in printed


def test_a_rank_that_dies_is_named_and_the_job_ends(job: Path) -> None:
    assert codes(job, "killed")[1] == -signal.SIGKILL
    assert codes(job, "killed")[0] in (1, 2)
    assert "rank 1" in (job / "killed.0").read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("on-one-rank", "neither side lies on more than one rank. Give one of them `placement: {tensor: 2}`."),
        ("on-four-ranks", "the candidate lies on 4 ranks, and the job has 2 processes. Start 4 of them"),
    ],
)
def test_a_job_that_is_not_the_placements(job: Path, name: str, words: str) -> None:
    assert codes(job, name) == [2, 2]
    assert words in (job / f"{name}.0").read_text()
