"""Keys of rejected drafts that stay in a server's cache, planted in a record and found by the steps that explain it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.engine.forward import forward
from moeparity.errors import Where
from moeparity.inputs.tokens.drafted import step_lines, with_drafts
from moeparity.inputs.tokens.grid import token_grid
from moeparity.inputs.tokens.tensorfile import file_contents
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.output.writing import write_tensors
from moeparity.plan.schedule.recorded import read_batches
from moeparity.plan.schedule.token_grid import fillers

SEQUENCES, WIDTH, PROMPT = 10, 12, 4
IDS = torch.randint(0, 64, (SEQUENCES, WIDTH), generator=torch.Generator().manual_seed(3))
TOKENS = TokenSet(
    input_ids=IDS,
    loss_mask=torch.ones_like(IDS, dtype=torch.bool).index_fill(1, torch.arange(PROMPT), False),
    attention_mask=torch.ones_like(IDS, dtype=torch.bool),
)
DRAFTS = "3:0.5"


def served(folder: Path, checkpoint: Path, kept_drafts: int) -> Tensor:
    """What a server records that keeps so many rejected drafts: log-probabilities, NaN for the first token."""
    tokens, of = with_drafts(TOKENS, DRAFTS, flat=True, kept_drafts=kept_drafts)
    (folder / "served.jsonl").write_text("\n".join(step_lines(of.steps)))
    schedule = read_batches("served.jsonl", "tokens", Where(folder / "recipe.yaml")).schedule
    steps = (*schedule.steps, *fillers(schedule.steps, token_grid(tokens, with_ids=False)))
    out = forward(
        checkpoint,
        tokens.input_ids,
        attention_mask=tokens.attention_mask,
        profile="hf-eager",
        schedule=replace(schedule, steps=steps),
        device="cpu",
    )
    rows = out["logits"][:SEQUENCES, : WIDTH - 1].double().log_softmax(-1)
    logprobs = torch.full(IDS.shape, torch.nan, dtype=torch.float64)
    logprobs[:, 1:] = rows.gather(-1, IDS[:, 1:, None]).squeeze(-1)
    return logprobs


def report(folder: Path, checkpoint: Path, logprobs: Tensor, kept_drafts: int) -> Report:
    """A recipe whose candidate runs in the steps of a server that keeps so many, held to these log-probabilities."""
    tokens, of = with_drafts(replace(TOKENS, logprobs=logprobs), DRAFTS, flat=True, kept_drafts=kept_drafts)
    write_tensors(folder / "tokens.safetensors", *file_contents(tokens))
    (folder / "steps.jsonl").write_text("\n".join(step_lines(of.steps)))
    recipe = {
        "kind": "recipe",
        "checkpoint": str(checkpoint),
        "tokens": {"file": "tokens.safetensors", "sampled_from": "candidate"},
        "reference": {"profile": "hf-eager", "micro_batch": 8},
        "candidate": {"profile": "hf-eager", "schedule": {"file": "steps.jsonl"}},
        "gate": {"metric": "mean_abs_delta", "below": 10},
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return bisect(path, device="cpu")


@pytest.mark.parametrize(("planted", "tried"), [(1, 0), (1, 1), (2, 1), (0, 1)])
def test_the_record_is_reproduced_by_the_steps_that_made_it(
    planted: int, tried: int, qwen3_moe: Path, tmp_path: Path
) -> None:
    outcome = report(tmp_path, qwen3_moe, served(tmp_path, qwen3_moe, planted), tried)
    assert outcome.record is not None
    assert (outcome.record.status == "reproduced") == (planted == tried)
    (toggle,) = (toggle for toggle in outcome.toggles if toggle.name == "schedule:file")
    assert toggle.kind == ("semantics" if tried else "schedule")
