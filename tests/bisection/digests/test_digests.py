"""Digests of a run: equal where bits are, whatever goes through a node together."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from moeparity.bisection.digests.data import Digests
from moeparity.bisection.digests.measure import joined, of_tensors
from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.inputs import machine
from tests.errors.base import BASE

RECIPE = (BASE / "recipe.yaml").read_text("utf-8")


def ran(folder: Path, *pairs: tuple[str, str]) -> tuple[Digests, Report]:
    shutil.copytree(BASE, folder)
    text = RECIPE
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    (folder / "recipe.yaml").write_text(text, "utf-8")
    report = bisect(folder / "recipe.yaml", device="cpu", options=Options(digests=True))
    assert report.digests is not None
    return report.digests, report


def test_digests_are_equal_where_all_bits_are(tmp_path: Path) -> None:
    digests, report = ran(tmp_path / "a")
    equal = {node.node: node.carried.equal_share == 1 for node in report.nodes}
    assert {node: digests.reference[node] == digests.candidate[node] for node in equal} == equal
    assert set(equal.values()) == {True, False}
    assert all(len(digest) == 16 for digest in (*digests.reference.values(), *digests.weights.values()))


def test_which_sequences_go_through_a_node_together_is_no_matter(tmp_path: Path) -> None:
    """The reference computes one sequence at a time; how many the candidate takes makes other waves."""
    alone = ("{profile: hf-eager}", "{profile: hf-eager, micro_batch: 1}")
    singly, _ = ran(tmp_path / "a", alone, ("{profile: hf-default}", "{profile: hf-default, micro_batch: 1}"))
    together, _ = ran(tmp_path / "b", alone)
    assert singly.reference == together.reference
    assert (singly.weights, singly.tokens, singly.machine) == (together.weights, together.tokens, together.machine)


def test_a_rounding_on_an_edge_of_one_side_is_none_of_the_other(tmp_path: Path) -> None:
    plain, _ = ran(tmp_path / "a")
    wide = (
        "{profile: hf-default}",
        "{profile: hf-default, set: {'layers[0].attention.residual:output->rms_norm': fp32}}",
    )
    edged, _ = ran(tmp_path / "b", wide)
    assert edged.reference == plain.reference
    changed = [node for node in plain.candidate if plain.candidate[node] != edged.candidate[node]]
    assert changed[0] == "layers[0].attention.residual"


@pytest.mark.parametrize(
    "changed_tensor",
    [
        torch.tensor([-0.0, 1.0]),
        torch.tensor([[0.0, 1.0]]),
        torch.tensor([0.0, 1.0], dtype=torch.float64),
        torch.tensor([0.0, float("nan")]),
    ],
    ids=["minus zero", "a shape", "a dtype", "a value"],
)
def test_another_bit_is_another_digest(changed_tensor: torch.Tensor) -> None:
    first = torch.tensor([0.0, 1.0])
    assert of_tensors([("a", first)]) == of_tensors([("a", first.clone())])
    assert of_tensors([("a", first)]) != of_tensors([("a", changed_tensor)])
    assert of_tensors([("a", first)]) != of_tensors([("b", first)])
    assert joined(["a", "b"]) != joined(["b", "a"])
    assert joined(["a"], finite=False) == f"{joined(['a'])} not finite"


def test_a_machine_is_what_kernels_are_chosen_by(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine.instruction_set()
    assert torch.backends.cpu.get_cpu_capability() in before.split()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert machine.instruction_set() == f"{before} ONEDNN_MAX_CPU_ISA=AVX2"
