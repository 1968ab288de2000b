"""A recipe of a reward model: its losses against transformers' scores, planted differences, and what it can't do."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from moeparity.bisection.rewards.measure import rewards
from tests.command import ROOT, inside

HEAD = f"""kind: recipe
checkpoint: {ROOT / "checkpoints" / "reward"}
tokens: {{file: pairs.jsonl, sampled_from: reference}}
"""
BODY = """reference: {profile: hf-default, micro_batch: 6}
candidate: {profile: hf-default, micro_batch: 1}
gate: {metric: mean_abs_delta, below: 1e-4}
floor: false
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with eleven of the shipped pairs, of which the first comes twice."""
    lines = (ROOT / "recipes" / "reward.jsonl").read_text("utf-8").splitlines(keepends=True)[:11]
    (tmp_path / "pairs.jsonl").write_text("".join([*lines, lines[0]]), "utf-8")
    return tmp_path


def bisected(folder: Path, body: str) -> dict[str, object]:
    (folder / "recipe.yaml").write_text(HEAD + body, "utf-8")
    done = inside("bisect", folder / "recipe.yaml", "--device", "cpu", "--json", folder / "report.json")
    assert done.returncode in {0, 1, 3}, done.stdout + done.stderr
    report: dict[str, object] = json.loads((folder / "report.json").read_text("utf-8"))
    return report


def live_losses(folder: Path) -> list[float]:
    """Of each different pair, its loss of transformers' scores in bf16, both sequences in one call and padded to the
    width of the file.
    """
    model = AutoModelForSequenceClassification.from_pretrained(ROOT / "checkpoints" / "reward", dtype=torch.bfloat16)
    pairs = [json.loads(line) for line in (folder / "pairs.jsonl").read_text("utf-8").splitlines()[:11]]
    width, losses = max(len(pair["chosen"]) for pair in pairs), []
    for pair in pairs:
        rows = [pair[side] + [0] * (width - len(pair[side])) for side in ("chosen", "rejected")]
        mask = [[1] * len(pair[side]) + [0] * (width - len(pair[side])) for side in ("chosen", "rejected")]
        with torch.no_grad():
            scores = model.eval()(torch.tensor(rows), attention_mask=torch.tensor(mask), use_cache=False).logits
        losses.append(math.log1p(math.exp(float(scores[1]) - float(scores[0]))))
    return losses


def test_the_losses_are_those_of_transformers(folder: Path) -> None:
    """On the reference in micro-batches of a pair; on the candidate, a pair lies in two of them."""
    section = bisected(folder, BODY.replace("micro_batch: 6", "micro_batch: 2"))["rewards"]
    assert isinstance(section, dict)
    assert section["pairs"] == 11, "a pair that is repeated counts once"
    losses = live_losses(folder)
    # The same scores; the sums are of fp64 in another order.
    assert section["reference"]["estimate"] == pytest.approx(sum(losses) / 11, rel=1e-13)
    assert section["reference_accuracy"] == sum(loss < math.log(2) for loss in losses) / 11


@pytest.mark.parametrize(
    ("settings", "culprit"),
    [
        ('{"score:inputs": fp16, "score:output": fp16}', "score"),
        ('{"preference:difference": bf16}', "preference:difference"),
        ('{"layers[1].mlp.swiglu:activation": fp32}', "swiglu:activation"),
    ],
)
def test_a_planted_difference_is_named(folder: Path, settings: str, culprit: str) -> None:
    body = BODY.replace("micro_batch: 1}", f"micro_batch: 6, set: {settings}}}")
    report = bisected(folder, body)
    toggles = report["toggles"]
    assert isinstance(toggles, list)
    assert toggles
    assert all(culprit in toggle["name"] for toggle in toggles)
    section = report["rewards"]
    assert isinstance(section, dict)
    assert section["largest"] > 0


def test_equal_sides_are_parity(folder: Path) -> None:
    report = bisected(folder, BODY.replace("micro_batch: 1", "micro_batch: 6"))
    verdict = report["verdict"]
    assert isinstance(verdict, dict)
    assert verdict["status"] == "pass"
    section = report["rewards"]
    assert isinstance(section, dict)
    assert (section["largest"], section["turned"], section["change"]["estimate"]) == (0.0, 0, 0.0)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (BODY.replace("mean_abs_delta", "k3"), "k3 estimates a KL from what was sampled"),
        (BODY.replace("micro_batch: 1", "schedule: {decode: {from: 2}}"), "computed of whole sequences alone"),
        (f"{BODY}spikes: {{draws: 2}}\n", "so no token can spike"),
    ],
)
def test_what_a_reward_model_is_not_asked_for(folder: Path, body: str, says: str) -> None:
    (folder / "recipe.yaml").write_text(HEAD + body, "utf-8")
    done = inside("bisect", folder / "recipe.yaml", "--device", "cpu")
    assert done.returncode == 2
    assert says in " ".join((done.stdout + done.stderr).split())


def test_variance_compares_compositions_of_pairs(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(HEAD + BODY, "utf-8")
    done = inside("variance", folder / "recipe.yaml", "--batches", "1,3,4", "--side", "candidate", "--device", "cpu")
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    assert "12 pairs" in " ".join(done.stdout.split())


def test_the_tokens_of_a_recipe_are_shown_as_they_are_scored(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(HEAD + BODY, "utf-8")
    done = inside("tokens", folder / "recipe.yaml")
    assert done.returncode == 0, done.stderr
    assert re.match(r"24 sequences of up to \d+ tokens, 12 scored", done.stdout)


def test_init_says_that_it_has_no_pairs(tmp_path: Path) -> None:
    done = inside("init", ROOT / "checkpoints" / "reward", "--out", tmp_path / "recipe.yaml")
    assert done.returncode == 2
    assert "this checkpoint gives scores" in " ".join((done.stdout + done.stderr).split())


def test_pairs_that_turn_and_tie_are_counted() -> None:
    section = rewards(torch.tensor([2.0, -1.0, 0.0, 1.0]).double(), torch.tensor([1.0, 1.0, 1.0, 1.0]).double())
    assert (section.pairs, section.turned, section.tied) == (4, 2, 1)
    assert (section.reference_accuracy, section.candidate_accuracy) == (0.5, 1.0)
    assert section.reference.estimate == pytest.approx(sum(math.log1p(math.exp(-d)) for d in (2, -1, 0, 1)) / 4)
    assert section.largest == pytest.approx(math.log1p(math.exp(1)) - math.log1p(math.exp(-1)))
