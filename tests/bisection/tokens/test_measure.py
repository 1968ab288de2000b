"""Recorded data, classes of tokens and synthetic weights in a report, on a model made here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.bisection.text import print_report
from moeparity.engine.forward import forward
from moeparity.errors import TokensError

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


def recorded(folder: Path, profile: str) -> dict[str, torch.Tensor]:
    """What an engine with this profile would have recorded."""
    out = forward(folder, IDS, profile=profile, micro_batch=MICRO_BATCH, device="cpu")
    rows = out["logits"].double().log_softmax(-1)
    logprobs = torch.full(IDS.shape, math.nan, dtype=torch.float64)
    logprobs[:, 1:] = rows[:, :-1].gather(-1, IDS[:, 1:, None]).squeeze(-1)
    routes = torch.stack([out[f"layers.{i}.router.ids"].view(*IDS.shape, -1) for i in range(3)], dim=2)
    return {"logprobs": logprobs, "routed_experts": routes}


def printed(report: Report) -> str:
    out = StringIO()
    print_report(report, Console(file=out, width=160, highlight=False, markup=False))
    return out.getvalue()


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_the_side_that_was_recorded_is_recognised(run: Run, qwen3_moe: Path, side: str) -> None:
    data = recorded(qwen3_moe, {"reference": "hf-eager", "candidate": "hf-default"}[side])
    # Engines fill places they did not sample with 0, and do not run the last token.
    data["logprobs"][:, :3] = 0.0
    data["routed_experts"][:, -1] = -1
    report = run(**data)
    assert report.recorded is not None
    for logprobs, routes in zip(report.recorded.logprobs, report.recorded.routes, strict=True):
        assert logprobs.side == routes.side
        assert logprobs.tokens == 24
        assert routes.token_layers == 4 * 8 * 3
        if logprobs.side == side:
            assert (logprobs.mean_abs_delta, logprobs.max_abs_delta, logprobs.k3) == (0.0, 0.0, 0.0)
            assert routes.same_sets == routes.token_layers
        else:
            assert logprobs.max_abs_delta == report.metrics.max_abs_delta > 0
            assert math.isclose(logprobs.mean_abs_delta, report.metrics.mean_abs_delta, rel_tol=1e-12)
            assert report.flips is not None
            flipped = 1 - routes.same_sets / routes.token_layers
            assert flipped <= sum(f.set_flips for f in report.flips.layers) / routes.token_layers


def test_k3_of_the_recorded_data_is_the_gates_where_the_candidate_recorded(run: Run, qwen3_moe: Path) -> None:
    report = run(**recorded(qwen3_moe, "hf-default"))
    assert report.recorded is not None
    assert math.isclose(report.recorded.logprobs[0].k3, report.metrics.k3, rel_tol=1e-12)


def test_the_order_of_recorded_experts_does_not_matter(run: Run, qwen3_moe: Path) -> None:
    routes = recorded(qwen3_moe, "hf-default")["routed_experts"].flip(-1).contiguous()
    report = run(routed_experts=routes)
    assert report.recorded is not None
    assert report.recorded.logprobs == ()
    assert report.recorded.routes[1].same_sets == 4 * 9 * 3
    changed = routes.clone()
    changed[0, 0, 0] = torch.tensor([e for e in range(16) if e not in routes[0, 0, 0].tolist()][:4])
    again = run(routed_experts=changed)
    assert again.recorded is not None
    assert again.recorded.routes[1].same_sets == 4 * 9 * 3 - 1


def test_recorded_data_is_printed_only_where_there_is_any(run: Run, qwen3_moe: Path) -> None:
    text = printed(run(**recorded(qwen3_moe, "hf-default")))
    assert "Against the recorded data" in text
    assert "candidate  100.00%" in " ".join(text.split("\n")).replace("   ", "  ")
    report = run()
    assert report.recorded is None
    assert "Against the recorded data" not in printed(report)
    nothing = run(logprobs=torch.full(IDS.shape, math.nan))
    assert nothing.recorded is not None
    assert nothing.recorded.logprobs == ()
    assert "no scored token has a recorded log-probability" in printed(nothing)


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        (
            torch.arange(4).expand(4, 9, 2, 4),
            r"holds 2 layers of 4 experts per token; the model has 3 MoE layers, top 4",
        ),
        (torch.arange(8).expand(4, 9, 3, 8), r"holds 3 layers of 8 experts"),
        (torch.tensor([0, 1, 2, 16]).expand(4, 9, 3, 4), r"names expert 16; the model has experts 0\.\.15"),
    ],
)
def test_records_of_another_model_are_refused(run: Run, routes: torch.Tensor, message: str) -> None:
    with pytest.raises(TokensError, match=message):
        run(routed_experts=routes.contiguous())


def test_classes_add_up_to_the_whole(run: Run) -> None:
    report = run(names='["text", "image", "unseen"]', labels=LABELS.clamp(max=1))
    assert [found.name for found in report.classes] == ["text", "image", "unseen"]
    text, image, unseen = report.classes
    assert (text.scored_tokens, image.scored_tokens) == (2 + 6 + 2, 4 + 6 + 4)
    scored = [(found.scored_tokens, found.k3, found.mean_abs_delta) for found in (text, image)]
    total = sum(tokens for tokens, _, _ in scored)
    assert total == report.run.scored_tokens
    assert math.isclose(sum(n * k3 for n, k3, _ in scored) / total, report.metrics.k3, rel_tol=1e-12)
    assert math.isclose(sum(n * delta for n, _, delta in scored) / total, report.metrics.mean_abs_delta, rel_tol=1e-12)
    assert report.flips is not None
    assert text.token_layers + image.token_layers == 3 * IDS.numel()
    assert text.set_flips + image.set_flips == sum(layer.set_flips for layer in report.flips.layers)
    assert (unseen.scored_tokens, unseen.token_layers) == (0, 0)
    assert math.isnan(unseen.k3)
    assert "By class of token" in printed(report)


def test_one_class_is_no_table(run: Run) -> None:
    report = run(labels=torch.zeros_like(IDS))
    assert len(report.classes) == 1
    assert "By class" not in printed(report)


def test_pads_are_named_in_the_head(run: Run) -> None:
    mask = torch.ones_like(IDS)
    mask[0, -2:] = 0
    report = run(attention_mask=mask, labels=LABELS.clamp(max=1))
    assert report.run.pads == 2
    assert "22 scored, 2 pads" in printed(report)
    assert sum(found.token_layers for found in report.classes) == 3 * (IDS.numel() - 2)


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
    assert "warning: The weights are synthetic(7)" in printed(report).split("Where it starts")[0]
    assert report.roots[0].node == "layers[0].attention.attend"
