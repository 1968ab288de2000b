"""`moeparity flips --mine`: what it ranks first flips more often, and what it writes can be used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moeparity.bisection.mine.report import SCHEMA
from moeparity.bisection.mine.run import MineRequest, _repeats, mine
from moeparity.bisection.mine.show import document
from moeparity.engine.forward import forward
from moeparity.errors import MoeparityError
from moeparity.inputs.tokens import read_tokens
from tests.command import ROOT, inside
from tests.planted.places import random_tokens, write_recipe
from tests.printed import printed

OWN = {"layers[0].moe.router:scores": "bf16"}


def prompts(folder: Path, ids: torch.Tensor) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in ids.tolist()), "utf-8")
    return path


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> Path:
    return write_recipe(
        tmp_path_factory.mktemp("mine"), qwen3_moe, {"input_ids": random_tokens(4, 24)}, {}, {"set": OWN}
    )


@pytest.fixture(scope="module")
def prompt_ids(recipe: Path) -> torch.Tensor:
    return torch.randint(512, (9, 30), generator=torch.Generator().manual_seed(7))


def test_flips_of_a_first_layer_with_equal_inputs_are_known_not_guessed(
    recipe: Path, prompt_ids: torch.Tensor, qwen3_moe: Path
) -> None:
    mined = mine(recipe, MineRequest(file=prompts(recipe.parent, prompt_ids), top=9, draws=8), device="cpu")
    sides = [forward(qwen3_moe, prompt_ids, settings=settings, device="cpu") for settings in ({}, OWN)]
    routes = [side["layers.0.router.ids"].view(9, 30, -1).sort(-1).values for side in sides]
    flipped = (routes[0] != routes[1]).any(-1)
    assert 0 < int(flipped.sum()) < flipped.numel() / 4
    got = torch.zeros(9, 30)
    for prompt in mined.prompts:
        got[prompt.prompt] = torch.tensor(prompt.probability)
    assert bool((got[flipped] == 1).all())
    first = sum(token.layer == 0 and token.probability == 1 for token in mined.tokens)
    assert all(token.margin >= 0 for token in mined.tokens)
    assert len({token.margin for token in mined.tokens}) > 1
    assert first == min(len(mined.tokens), int(flipped.sum()))


def test_sides_that_are_alike_have_nothing_to_mine(tmp_path: Path, qwen3_moe: Path, prompt_ids: torch.Tensor) -> None:
    alike = write_recipe(tmp_path, qwen3_moe, {"input_ids": random_tokens(2, 16)}, {}, {})
    mined = mine(alike, MineRequest(file=prompts(tmp_path, prompt_ids), top=3, check=True), device="cpu")
    assert mined.expected == 0
    assert mined.check is not None
    assert (mined.check.drawn.flipped, mined.check.drawn.expected) == (0, 0)
    assert json.loads(mined.to_json())["check"]["drawn"]["lift"] == "nan"
    note = "No draw flips a token: tokens are listed by their plain margin, prompts as in the file."
    assert note in printed(document(mined, "recipe.yaml"), 120)


def test_on_the_shipped_checkpoint_it_beats_the_plain_margin(tmp_path: Path) -> None:
    # English that nobody edits: over pages of docs the lift is larger in 51 of 52, so an edited text could turn it.
    text = (ROOT / "LICENSE").read_text("utf-8")
    lines = [json.dumps({"text": text[i : i + 64]}) for i in range(0, 72 * 96, 96)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines), "utf-8")
    request = MineRequest(
        file=tmp_path / "prompts.jsonl", top=24, tokenizer="bytes", check=True, draws=32, calibrate=16
    )
    mined = mine(ROOT / "recipes" / "moe-aggregation.yaml", request, device="cpu")
    assert mined.check is not None
    drawn = mined.check.drawn
    assert drawn.ceiling > drawn.lift > drawn.margin_lift > 1
    assert 0.6 < drawn.expected / drawn.flipped < 1.6
    shares = [prompt.share for prompt in mined.prompts]
    assert shares == sorted(shares, reverse=True)
    probabilities = [token.probability for token in mined.tokens]
    assert probabilities == sorted(probabilities, reverse=True)
    assert mined == mine(ROOT / "recipes" / "moe-aggregation.yaml", request, device="cpu")


def test_groups_and_a_correction_bias(tmp_path: Path, deepseek_v3: Path) -> None:
    settings = {"layers[1:3].moe.gate:output": "bf16"}
    recipe = write_recipe(tmp_path, deepseek_v3, {"input_ids": random_tokens(4, 24)}, {}, {"set": settings})
    ids = torch.randint(512, (6, 24), generator=torch.Generator().manual_seed(3))
    mined = mine(recipe, MineRequest(file=prompts(tmp_path, ids), top=6, draws=16, check=True), device="cpu")
    assert mined.check is not None
    assert mined.check.drawn.flipped > 0
    assert {token.layer for token in mined.tokens} <= {1, 2}


def test_what_cannot_be_mined(recipe: Path, tmp_path: Path, qwen3: Path) -> None:
    same = prompts(tmp_path, random_tokens(4, 24))
    with pytest.raises(MoeparityError, match="every prompt is among the 32 sequences"):
        mine(recipe, MineRequest(file=same, top=2, check=True), device="cpu")
    assert mine(recipe, MineRequest(file=same, top=2), device="cpu").repeated == 4
    dense = write_recipe(tmp_path, qwen3, {"input_ids": random_tokens(2, 8) % 301}, {}, {})
    with pytest.raises(MoeparityError, match="qwen3 has no router, so nothing can flip"):
        mine(dense, MineRequest(file=same, top=2), device="cpu")
    updates = {"schedule": {"decode": {"from": 4}, "updates": {"at": 5}}}
    versions = [[{"name": "weights-scaled", "values": {"factor": 0.9}}]]
    ids = {"input_ids": random_tokens(2, 8) % 301}
    across = write_recipe(tmp_path, qwen3, ids, {}, updates, earlier=versions)
    with pytest.raises(MoeparityError, match="the weights change under this recipe's sequences"):
        mine(across, MineRequest(file=same, top=2), device="cpu")
    with pytest.raises(MoeparityError, match="no such token file"):
        mine(recipe, MineRequest(file=tmp_path / "none.jsonl", top=2), device="cpu")


def test_prompts_whose_images_differ_are_not_repeats() -> None:
    """Image tokens have one id whatever they show."""
    tokens = read_tokens(ROOT / "recipes" / "pictures.safetensors", checkpoint=ROOT / "checkpoints" / "pictures")
    assert tokens.images is not None
    embeds = tokens.images.embeds.clone()
    embeds[0, int(tokens.images.mask[0].nonzero()[0]), 0] += 1
    others = replace(tokens, images=replace(tokens.images, embeds=embeds))
    assert _repeats(tokens, tokens) == {*range(len(tokens.input_ids))}
    assert _repeats(others, tokens) == {*range(1, len(tokens.input_ids))}


def test_command_line(recipe: Path, prompt_ids: torch.Tensor, tmp_path: Path) -> None:
    out, whole = tmp_path / "mined.jsonl", tmp_path / "mined.json"
    prompt_file = prompts(tmp_path, prompt_ids)
    options: list[str | Path] = ["--top", "3", "--draws", "8", "--check", "--out", out, "--json", whole]
    done = inside("flips", recipe, "--mine", prompt_file, "--device", "cpu", *options)
    assert done.returncode == 0, done.stderr
    assert "9 prompts, 270 tokens, ranked from one pass of the reference" in done.stdout
    assert "How well it held" in done.stdout
    mined = mine(recipe, MineRequest(file=prompt_file, top=3, draws=8, check=True), device="cpu")
    as_json = json.loads(whole.read_text("utf-8"))
    assert as_json["schema"] == SCHEMA
    assert [p["prompt"] for p in as_json["prompts"]] == [p.prompt for p in mined.prompts]
    tokens = read_tokens(out)
    assert tokens.input_ids.tolist() == [prompt_ids[p.prompt].tolist() for p in mined.prompts]
    assert replace(mined, check=None) == mine(recipe, MineRequest(file=prompt_file, top=3, draws=8), device="cpu")
