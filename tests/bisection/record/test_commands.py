"""What a record means for the commands: their exit codes, what `check` says is met, JUnit XML, and a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.bisection.record.rollout import Rollout, engine
from tests.command import alone, inside


@pytest.fixture(scope="module")
def rollout(qwen3_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Rollout:
    return Rollout(qwen3_moe, tmp_path_factory.mktemp("rollout"))


def test_bisect_does_not_pass_what_the_record_contradicts(rollout: Rollout) -> None:
    logprobs = engine(rollout.checkpoint)["logprobs"]
    path, report = rollout.recipe({"logprobs": logprobs - 0.5}), rollout.folder / "report.json"
    done = alone("bisect", path, "--device", "cpu", "--no-floor", "--section", "record", "--json", report)
    assert done.returncode == 3, done.stdout + done.stderr
    summary, _, below = done.stdout.partition("\nRun\n")
    assert "record        not reproduced: mean |delta|" in summary
    assert below.index("NOT REPRODUCED") < below.index("INCONCLUSIVE")
    written = json.loads(report.read_text("utf-8"))
    assert list(written)[:6] == ["schema", "digest", "run", "reference", "candidate", "record"]
    assert written["record"]["status"] == "not reproduced"
    assert written["record"]["logprobs"]["mean_abs_delta"] == pytest.approx(0.5)
    assert written["verdict"]["status"] == "inconclusive"


def test_check_says_of_nothing_that_it_is_met(rollout: Rollout) -> None:
    logprobs = engine(rollout.checkpoint)["logprobs"]
    path = rollout.recipe({"logprobs": logprobs - 0.5}, expect="{metrics: {k3: {below: 1}}}")
    xml = rollout.folder / "parity.xml"
    done = inside("check", path, "--device", "cpu", "--junit", xml)
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1] == "INCONCLUSIVE  1 recipe held to what it expects, 1 undecided; exit 3"
    assert "of two simulations, the record is not reproduced: mean |delta| 0.5 nats" in " ".join(done.stdout.split())
    (failure,) = ET.parse(xml).iter("failure")
    assert failure.get("type") == "inconclusive"
    properties = {entry.get("name"): str(entry.get("value")) for entry in ET.parse(xml).iter("property")}
    assert properties["record"].startswith("not reproduced: mean |delta| 0.5 nats over 210 scored tokens")
    assert properties["verdict"] == "inconclusive"


def test_check_holds_a_recipe_to_its_record(rollout: Rollout) -> None:
    logprobs = engine(rollout.checkpoint)["logprobs"]
    path = rollout.recipe({"logprobs": logprobs}, expect="{record: reproduced, verdict: pass}")
    done = inside("check", path, "--device", "cpu")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "PASS    1 recipe held to what it expects, 2 met; exit 0"


def test_a_sweep_finds_the_value_that_reproduces_the_record(rollout: Rollout) -> None:
    path = rollout.recipe(engine(rollout.checkpoint, temperature=0.7), gate="{metric: k3, below: 100}")
    done = inside("sweep", path, "--over", "log_probs:temperature=1.0,0.7", "--device", "cpu")
    assert done.returncode == 3, done.stdout
    rows = [line.split()[:2] for line in done.stdout.splitlines() if line.lstrip().startswith(("1.0 ", "0.7 "))]
    assert rows == [["1.0", "inconclusive"], ["0.7", "pass"]]
    assert "In 1 of 2 points the candidate does not reproduce the record." in done.stdout
