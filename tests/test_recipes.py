"""Every recipe in recipes/ runs through the command line and ends as its own comment says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXPECTED: dict[str, tuple[int, str, set[str]]] = {
    "quickstart": (1, "layers[0].attention.attend", {"op combine:order"}),
    "fp32-background": (1, "layers[0].moe.gate", set()),
}
"""Exit code, first root, toggles without effect."""


def test_every_recipe_is_expected_here() -> None:
    assert {path.stem for path in (ROOT / "recipes").glob("*.yaml")} == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_recipe(name: str, tmp_path: Path) -> None:
    code, root, no_effect = EXPECTED[name]
    command = [sys.executable, "-m", "moeparity.cli", "bisect", f"recipes/{name}.yaml"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "report.json"), "--device", "cpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == code, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["roots"][0]["node"] == root
    assert report["verdict"]["value"]["low"] > report["verdict"]["below"]
    without = {toggle["name"] for toggle in report["toggles"] if toggle["had_no_effect"]}
    assert without >= no_effect
    assert report["run"]["sequences"] >= 64


def test_every_recipe_meets_what_it_expects_of_itself() -> None:
    command = [sys.executable, "-m", "moeparity.cli", "check", "--device", "cpu"]
    done = subprocess.run(
        [*command, *(f"recipes/{path.name}" for path in sorted((ROOT / "recipes").glob("*.yaml")))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name, (_, root, no_effect) in EXPECTED.items():
        said = [line for line in done.stdout.splitlines() if f"recipes/{name}.yaml" in line]
        assert any(f"first divergence {root} " in line for line in said)
        assert all(any(f"no effect of {toggle} " in line for line in said) for toggle in no_effect)
