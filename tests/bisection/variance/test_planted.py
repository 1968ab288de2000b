"""A function that sees its batch is found at the node, the token and the shapes at which it was planted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.bisection.variance.report import VarianceReport
from moeparity.bisection.variance.run import VarianceRequest, variance
from tests.planted.places import random_tokens, write_recipe

NORM = """
import torch


def norm(x, *, node):
    wide = x.float()
    normalized = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + node.params["norm"]["eps"])).to(x.dtype)
    return node.weights["norm.weight"] * normalized


def planted(x, *, node):
    out = norm(x, node=node).clone()
    if node.layer == 1 and len(x) > 2:
        out[{row}, {column}, -1] {change}
    return out
"""
PROFILE = "torchtitan-batch-invariant"
NODE = "layers[1].moe.norm"


def ran(folder: Path, checkpoint: Path, name: str, row: int, column: int, change: str) -> VarianceReport:
    """Five sequences, of which the last begins with two tokens of padding, in batches of 1, 2 and 3."""
    (folder / f"{name}.py").write_text(NORM.format(row=row, column=column, change=change), "utf-8")
    ids, mask = random_tokens(5, 6), torch.ones(5, 6, dtype=torch.bool)
    mask[4, :2] = False
    candidate = {"profile": PROFILE, "impl": [{"nodes": ["layers[*].moe.norm"], "call": f"{name}:planted"}]}
    tokens = {"input_ids": ids, "attention_mask": mask}
    recipe = write_recipe(folder, checkpoint, tokens, {"profile": PROFILE}, candidate)
    return variance(recipe, VarianceRequest.of("1,2,5", "both"), device="cpu", allow_code=True)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (2, 3), (4, 5)])
def test_one_token_of_one_composition(tmp_path: Path, qwen3_moe: Path, row: int, column: int) -> None:
    reference, candidate = ran(tmp_path, qwen3_moe, f"vary_{row}_{column}", row, column, "+= 4").sides
    assert not reference.varies
    same, varying = candidate.comparisons
    assert (same.composition, same.first_op) == ("micro-batch 2", None)
    first = varying.first_op
    assert first is not None
    assert (first.node, first.layer, first.tokens, first.sequences) == (NODE, 1, 1, 1)
    assert (first.sequence, first.token) == (row, column - 2 * (row == 4))
    assert first.computed == 28
    assert (str(first.against), str(first.rows)) == ("1 x 6", "5 x 6")


def test_what_is_planted_at_padding_does_not_vary(tmp_path: Path, qwen3_moe: Path) -> None:
    report = ran(tmp_path, qwen3_moe, "vary_padding", 4, 0, "+= 4")
    assert not any(side.varies for side in report.sides)
    assert report.exit_code == 0


def test_a_nan_is_another_value_and_in_no_mean(tmp_path: Path, qwen3_moe: Path) -> None:
    report = ran(tmp_path, qwen3_moe, "vary_nan", 2, 4, "= torch.nan")
    (varying,) = [
        comparison for side in report.sides for comparison in side.comparisons if comparison.first_op is not None
    ]
    assert report.exit_code == 1
    assert varying.first_op is not None
    assert (varying.first_op.node, varying.first_op.tokens) == (NODE, 1)
    # How far it spreads is up to the experts' sums.
    assert varying.ratio.off == varying.distance.nonfinite >= 1
    assert (varying.ratio.low, varying.ratio.mean, varying.ratio.high) == (1.0, 1.0, 1.0)
    assert varying.distance.k3 == 0


def test_of_a_users_function_it_is_said_that_it_was_not_called_again(tmp_path: Path, qwen3_moe: Path) -> None:
    report = ran(tmp_path, qwen3_moe, "vary_said", 0, 1, "+= 4")
    assert any(sentence.startswith("vary_said:planted is a user's function") for sentence in report.reading)
