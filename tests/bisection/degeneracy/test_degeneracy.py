"""A pass on weights that nobody trained, logits that say nothing or the same tokens again is no pass."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity import bisect
from moeparity.bisection.degeneracy.measure import is_flat
from moeparity.bisection.report import Report
from tests.errors.base import BASE, WEIGHTS

RECIPE = """
kind: recipe
checkpoint: .
tokens: {file: t.safetensors, sampled_from: candidate}
reference: {profile: hf-eager, micro_batch: 3}
candidate: {profile: hf-eager, micro_batch: 2}
gate: {metric: k3, below: 1.0e-4}
"""
Tensors = dict[str, torch.Tensor]


def ids(count: int = 26, length: int = 5) -> torch.Tensor:
    return torch.randint(0, 32, (count, length), generator=torch.Generator().manual_seed(7))


def run(folder: Path, tokens: torch.Tensor, change: Callable[[Tensors], None] = lambda _: None) -> Report:
    shutil.copytree(BASE, folder, dirs_exist_ok=True)
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    save_file({"input_ids": tokens}, folder / "t.safetensors")
    (folder / "recipe.yaml").write_text(RECIPE, "utf-8")
    return bisect(folder / "recipe.yaml", device="cpu")


def fill(name: str, number: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for key in [key for key in tensors if name in key]:
            tensors[key] = torch.full_like(tensors[key], number)

    return change


def test_a_real_model_on_real_tokens_passes(tmp_path: Path) -> None:
    report = run(tmp_path, ids())
    assert report.verdict.status == "pass"
    assert (report.degeneracy.distinct, report.degeneracy.flat, report.degeneracy.constant_weights) == (26, 0, ())


@pytest.mark.parametrize(
    ("name", "number"), [("lm_head", 0.0), ("", 0.0), ("", 1e-40), ("experts.3.up_proj", 0.5), ("self_attn.o", -0.0)]
)
def test_a_matrix_of_one_number_is_no_weight(tmp_path: Path, name: str, number: float) -> None:
    report = run(tmp_path, ids(), fill(name, number))
    assert report.verdict.status == "inconclusive"
    assert report.exit_code == 3
    assert "every number of the matrix is the same" in report.verdict.reason
    assert all(name in weight for weight in report.degeneracy.constant_weights)


def test_norms_of_one_number_are_what_models_begin_with(tmp_path: Path) -> None:
    assert run(tmp_path, ids(), fill("norm", 1.0)).verdict.status == "pass"


def test_logits_below_their_own_rounding(tmp_path: Path) -> None:
    """A head whose rows differ, but by nothing that its output can hold."""

    def change(tensors: Tensors) -> None:
        row = tensors["lm_head.weight"][:1].float()
        shift = torch.zeros(32, 16)
        shift[:, 0] = torch.linspace(0, 1e-6, 32)
        tensors["lm_head.weight"] = (row + shift).to(torch.bfloat16)
        tensors["lm_head.weight"][3, 2] += 1e-30

    report = run(tmp_path, ids(), change)
    assert report.verdict.status == "inconclusive"
    assert report.degeneracy.flat == report.degeneracy.scored_tokens == 26 * 4
    assert "by less than one ulp" in report.verdict.reason


def test_the_same_sequences_again_are_counted_once(tmp_path: Path) -> None:
    two = ids(2)
    report = run(tmp_path / "repeated", two.repeat(13, 1))
    assert (report.degeneracy.sequences, report.degeneracy.distinct) == (26, 2)
    assert report.verdict.value.sequences == 2
    assert report.run.scored_tokens == 8


def test_tokens_that_are_all_one(tmp_path: Path) -> None:
    constant = torch.arange(26)[:, None].expand(26, 5).contiguous()
    report = run(tmp_path / "constant", constant)
    assert report.verdict.status == "inconclusive"
    assert "every sequence repeats one token id" in report.verdict.reason
    mixed = ids()
    mixed[3] = 9
    assert run(tmp_path / "one", mixed).verdict.status == "pass"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_flat_means_below_an_ulp_of_the_largest(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    rows = torch.tensor([[2.0, 2.0], [2.0, 2.0 + 2 * eps], [-2.0, -2.0 + eps], [0.0, 0.0], [0.0, 1e-5]], dtype=dtype)
    # An ulp of numbers from 2 to 4 is 2 eps.
    assert is_flat(rows).tolist() == [True, False, True, True, False]
