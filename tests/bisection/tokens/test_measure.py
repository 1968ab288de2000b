"""Classes of tokens and synthetic weights in a report, on a model made here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from tests.bisection.reports import on_screen

IDS = torch.randint(0, 512, (4, 9), generator=torch.Generator().manual_seed(2))
MASK = torch.ones_like(IDS).index_fill_(1, torch.arange(3), 0)
LABELS = torch.tensor([[0] * 5 + [1] * 4, [1] * 9, [0] * 9, [0, 1, 2] * 3])
MICRO_BATCH = 2

Run = Callable[..., Report]


@pytest.fixture
def run(qwen3_moe: Path, tmp_path: Path) -> Run:
    def once(names: str | None = None, candidate: str = "hf-default", **tensors: torch.Tensor) -> Report:
        metadata = None if names is None else {"label_names": names}
        save_file({"input_ids": IDS, "loss_mask": MASK, **tensors}, tmp_path / "tokens.safetensors", metadata)
        (tmp_path / "recipe.yaml").write_text(
            f"kind: recipe\ncheckpoint: {qwen3_moe}\ntokens: {{file: tokens.safetensors, sampled_from: candidate}}\n"
            f"reference: {{profile: hf-eager, micro_batch: {MICRO_BATCH}}}\n"
            f"candidate: {{profile: {candidate}, micro_batch: {MICRO_BATCH}}}\ngate: {{metric: k3, below: 1e-3}}\n",
            "utf-8",
        )
        return bisect(tmp_path / "recipe.yaml", device="cpu")

    return once


def test_classes_add_up_to_the_whole(run: Run) -> None:
    report = run(names='["text", "image", "unseen"]', labels=LABELS.clamp(max=1))
    assert [token_class.name for token_class in report.classes] == ["text", "image", "unseen"]
    text, image, unseen = report.classes
    assert (text.scored_tokens, image.scored_tokens) == (2 + 6 + 2, 4 + 6 + 4)
    scored = [(token_class.scored_tokens, token_class.k3, token_class.mean_abs_delta) for token_class in (text, image)]
    total = sum(tokens for tokens, _, _ in scored)
    assert total == report.run.scored_tokens
    assert math.isclose(sum(n * k3 for n, k3, _ in scored) / total, report.metrics.k3, rel_tol=1e-12)
    assert math.isclose(sum(n * delta for n, _, delta in scored) / total, report.metrics.mean_abs_delta, rel_tol=1e-12)
    assert report.flips is not None
    assert text.token_layers + image.token_layers == 3 * IDS.numel()
    assert text.set_flips + image.set_flips == sum(layer.set_flips for layer in report.flips.layers)
    assert (unseen.scored_tokens, unseen.token_layers) == (0, 0)
    assert math.isnan(unseen.k3)
    assert "By class of token" in on_screen(report)


def test_one_class_is_no_table(run: Run) -> None:
    report = run(labels=torch.zeros_like(IDS))
    assert len(report.classes) == 1
    assert "By class" not in on_screen(report)


def test_pads_are_named_in_the_head(run: Run) -> None:
    mask = torch.ones_like(IDS)
    mask[0, -2:] = 0
    report = run(attention_mask=mask, labels=LABELS.clamp(max=1))
    assert report.run.pads == 2
    assert "22 scored, 2 pads" in on_screen(report)
    assert sum(token_class.token_layers for token_class in report.classes) == 3 * (IDS.numel() - 2)


def test_synthetic_weights_come_with_a_warning(qwen3_moe: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((qwen3_moe / "config.json").read_text("utf-8"), "utf-8")
    save_file({"input_ids": IDS}, tmp_path / "tokens.safetensors")
    (tmp_path / "recipe.yaml").write_text(
        "kind: recipe\ncheckpoint: .\nweights: synthetic(7)\n"
        "tokens: {file: tokens.safetensors, sampled_from: candidate}\n"
        "reference: {profile: hf-eager}\ncandidate: {profile: hf-default}\ngate: {metric: k3, below: 1e-3}\n",
        "utf-8",
    )
    report = bisect(tmp_path / "recipe.yaml", device="cpu")
    (warning,) = report.warnings
    assert warning.startswith("The weights are synthetic(7), random numbers")
    assert json.loads(report.to_json())["warnings"] == [warning]
    assert "warning: The weights are synthetic(7)" in on_screen(report).split("Where it starts")[0]
    assert report.roots[0].node == "layers[0].attention.attend"
