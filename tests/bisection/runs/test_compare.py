"""Two runs held to each other: nothing but cost is said where that is so, and each kind of change is found."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.runs.compare import compare
from moeparity.bisection.runs.file import NAME
from moeparity.bisection.runs.report import NodeChange
from tests.command import inside
from tests.errors.base import BASE, TOKENS, WEIGHTS, shard

HEAD = "lm_head.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("compared")
    with patch.dict(os.environ, {"MOEPARITY_CACHE": str(folder / "cache")}):
        yield folder


@pytest.fixture(scope="module")
def first(folder: Path) -> Path:
    return run(folder, "first", lambda _: None)


def run(folder: Path, name: str, change: Callable[[Path], object]) -> Path:
    place = Path(shutil.copytree(BASE, folder / f"base of {name}"))
    change(place)
    bisect(place / "recipe.yaml", device="cpu", run=folder / name)
    return folder / name


def edited(old: str, new: str) -> Callable[[Path], object]:
    def edit(place: Path) -> None:
        text = (place / "recipe.yaml").read_text("utf-8")
        assert old in text
        (place / "recipe.yaml").write_text(text.replace(old, new), "utf-8")

    return edit


def test_the_same_again_elsewhere_is_nothing_but_cost(first: Path, folder: Path) -> None:
    again = run(folder, "again", shard)
    done = inside("diff", first, again)
    assert done.returncode == 0
    assert done.stdout.startswith("PASS    nothing but cost changed; exit 0\n")
    assert "All 43 nodes have the same bits." in done.stdout
    # That it is so is more than that nothing was looked at: the whole reports but for what they cost.
    first_report, second_report = (json.loads((run / "report.json").read_bytes()) for run in (first, again))
    assert len(first_report["nodes"]) == 42
    beside = dict.fromkeys(("run", "cost", "digest", "provenance"))
    assert {**first_report, **beside} == {**second_report, **beside}


def test_a_choice(first: Path, folder: Path) -> None:
    fp32 = '{profile: hf-default, set: {"layers[1].moe.gate:output": fp32}}'
    changed_run = run(folder, "choice", edited("{profile: hf-default}", fp32))
    comparison = compare(first, changed_run)
    assert comparison.exit_code == 1
    assert [(c.side, c.address, c.nodes) for c in comparison.choices] == [("candidate", "layers[*].moe.gate:output", 1)]
    assert comparison.digests == ()
    assert comparison.values
    assert comparison.nodes is not None
    assert comparison.nodes.changed > 0


def test_nodes_of_all_layers_are_one_line(first: Path, folder: Path) -> None:
    eager_run = run(folder, "eager", edited("{profile: hf-default}", "{profile: hf-eager}"))
    comparison = compare(first, eager_run)
    attend = next(c for c in comparison.choices if c.address.endswith("attend:implementation"))
    assert (attend.address, attend.nodes) == ("layers[*].attention.attend:implementation", 2)
    assert (attend.first, attend.second) == ("sdpa", "eager")
    assert comparison.start is not None
    assert comparison.start.second == "nowhere"
    assert [change.what for change in comparison.toggles if change.second is None]
    assert {change.what for change in comparison.metrics} >= {"k3", "k3 of the gate", "verdict"}


def test_weights_of_one_layer_and_tokens(first: Path, folder: Path) -> None:
    def nudge(place: Path) -> None:
        weights = load_file(place / WEIGHTS)
        name = next(name for name in weights if name.startswith("model.layers.1.") and name.endswith("gate.weight"))
        weights[name].view(torch.int16)[0, 0] ^= 1
        save_file(weights, place / WEIGHTS)

    weights = compare(first, run(folder, "weights", nudge))
    assert (weights.exit_code, [change.what for change in weights.digests]) == (1, ["weights of layers[1]"])

    def other_token(place: Path) -> None:
        tokens = load_file(place / TOKENS)
        tokens["input_ids"][0, 1] ^= 1
        save_file(tokens, place / TOKENS)

    tokens = compare(first, run(folder, "tokens", other_token))
    assert (tokens.exit_code, [change.what for change in tokens.digests]) == (1, ["tokens"])


def test_a_comment_changes_nothing_that_was_computed(first: Path, folder: Path) -> None:
    comparison = compare(first, run(folder, "comment", edited("kind: recipe", "# why\nkind: recipe")))
    assert comparison.exit_code == 0
    assert [change.what for change in comparison.environment] == ["text of the recipe"]


def test_another_machine_is_not_held_to_single_nodes(first: Path, tmp_path: Path) -> None:
    copied_run = Path(shutil.copytree(first, tmp_path / "other"))
    data = json.loads((copied_run / NAME).read_bytes())
    data["environment"] |= {"instruction set": "another one", "host": "elsewhere"}
    (copied_run / NAME).write_text(json.dumps(data), "utf-8")
    done = inside("diff", first, copied_run)
    assert done.returncode == 0
    assert "PASS    nothing but cost and environment changed; exit 0" in done.stdout
    assert "Single nodes cannot be compared: the runs differ in instruction set." in done.stdout
    assert compare(first, copied_run).nodes is None


def test_reports_of_two_kinds_are_not_compared(first: Path, folder: Path, tmp_path: Path) -> None:
    place = folder / "base of first"
    inside("flips", place / "recipe.yaml", "--device", "cpu", "--run", tmp_path / "flips")
    done = inside("diff", first, tmp_path / "flips", "--json", tmp_path / "compared.json")
    assert done.returncode == 3
    assert "INCONCLUSIVE  the reports are not compared: one is of `bisect`, the other of `flips`; exit 3" in done.stdout
    assert json.loads((tmp_path / "compared.json").read_bytes())["schema"] == "moeparity.run-comparison/1"


def test_nodes_are_held_to_each_other_by_their_digests_where_there_are_some(first: Path, tmp_path: Path) -> None:
    """Both sides may have changed alike, and their errors not at all."""
    runs = []
    for name, bits in (("one", "00"), ("other", "01")):
        runs.append(run := Path(shutil.copytree(first, tmp_path / name)))
        report = json.loads((run / "report.json").read_bytes())
        sides = {"embed": "ab", "norm": bits}
        report["digests"] = {"machine": "m", "reference": sides, "candidate": sides}
        text = json.dumps(report).encode()
        (run / "report.json").write_bytes(text)
        data = json.loads((run / NAME).read_bytes())
        data["files"]["report.json"] = hashlib.sha256(text).hexdigest()
        (run / NAME).write_text(json.dumps(data), "utf-8")
    comparison = compare(*runs)
    assert comparison.exit_code == 1
    assert comparison.nodes == NodeChange(by="bits", compared=2, changed=1, first="norm")
    assert comparison.values == {"digests": 2}
