"""Recorded routes beside those of simulations: a program's own, those of one that routes otherwise, and strangers'."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.doctor.readings import Replay
from moeparity.doctor.routes import replayed
from moeparity.inputs.tokens.tokenset import TokenSet
from tests.doctor.faulty import replaying, routes_of
from tests.doctor.programs import command, log, scored, tokens


@pytest.fixture(scope="module")
def routes(small: Path, few_ids: torch.Tensor) -> torch.Tensor:
    """What transformers routes: int64 [6, 16, 2, K]."""
    return routes_of(small, few_ids)


def examined(folder: Path, routes: torch.Tensor, small: Path, out: Path) -> tuple[dict[str, Any], str]:
    """The examination of a log with these routes, and what is said of them."""
    path = folder / "log.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record, of_sequence in zip(records, routes.tolist(), strict=True):
        record["routed_experts"] = of_sequence
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    of = command(folder, "--checkpoint", small, "--sampler", "hf-eager", out=out)
    (says,) = [clue["says"] for clue in of["clues"] if "routes" in clue["says"]]
    return of, says


def test_a_programs_own_routes_are_noise(run_folder: Path, routes: torch.Tensor, small: Path, tmp_path: Path) -> None:
    of, says = examined(run_folder, routes, small, tmp_path / "out.json")
    share = re.search(r"nothing wrong at ([\d.]+)% of 192 token-layers; hf-eager and vllm, which make no mistake", says)
    assert share is not None
    assert float(share[1]) < 2
    assert "more than noise" not in says
    flipped = of["noise"]["statistics"][-1]
    assert flipped["name"] == "flipped"
    assert 0 <= flipped["recorded"] <= flipped["bound"] <= 1
    assert 0 < flipped["middle"] < flipped["bound"]
    assert "with routes" in of["evidence"][0]


def test_it_says_from_which_layer_on_routes_are_others(
    run_folder: Path, routes: torch.Tensor, small: Path, tmp_path: Path
) -> None:
    moved = routes.clone()
    moved[:, :, 1] = (moved[:, :, 1] + 1) % 24
    of, says = examined(run_folder, moved, small, tmp_path / "out.json")
    assert "more than noise from layer 1 on" in says
    assert of["noise"]["statistics"][-1]["recorded"] == 1


@pytest.mark.parametrize(
    ("places", "layers", "name"),
    [(0, 0, ""), (-1, 0, "replayed routes of 1 token before"), (0, 1, "replayed routes of the layer behind")],
)
def test_a_trainer_that_replays_routes_of_another_place_is_named(
    tmp_path: Path, small: Path, places: int, layers: int, name: str
) -> None:
    """The sampler's routes stand in the log; the trainer takes over those of another token, or of another layer. What
    it takes over at the right place is noise.
    """
    ids = tokens(16, 24)
    recorded = routes_of(small, ids)
    misplaced = torch.full_like(recorded, -1)
    for token in range(max(0, -places), 24):
        for layer in range(2 - layers):
            misplaced[:, token, layer] = recorded[:, token + places, layer + layers]
    wrong = scored(small, ids, 1, patch=replaying(misplaced))
    path = log(tmp_path / "log.jsonl", ids, scored(small, ids, 4), wrong)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    with path.open("w", encoding="utf-8") as file:
        for record, of_sequence in zip(records, recorded.tolist(), strict=True):
            file.write(json.dumps({**record, "routed_experts": of_sequence}) + "\n")
    of = command(path, "--checkpoint", small, "--sampler", "hf-eager", out=tmp_path / "out.json")
    if not name:
        assert of["answer"] == "noise"
        return
    # Where so much goes wrong, what rounding makes beside it may leave more open than a name allows.
    assert of["blame"]["named"] == ([name] if layers == 0 else [])
    assert of["rivals"] == []
    assert (of["explanations"][0]["name"], of["explanations"][0]["party"]) == (name, "trainer")


def test_routes_of_another_model_are_not_compared(
    run_folder: Path, routes: torch.Tensor, small: Path, tmp_path: Path
) -> None:
    _, says = examined(run_folder, routes[..., :1], small, tmp_path / "out.json")
    assert "of another model, and not compared" in says


def test_a_server_is_simulated_on_its_steps(
    run_folder: Path, routes: torch.Tensor, small: Path, tmp_path: Path
) -> None:
    steps = [[[row, place, place + 1] for row in range(6)] for place in range(15)]
    (run_folder / "steps.jsonl").write_text("".join(json.dumps({"spans": step}) + "\n" for step in steps))
    _, says = examined(run_folder, routes, small, tmp_path / "out.json")
    assert "hf-eager on its recorded steps with nothing wrong" in says
    assert "more than noise" not in says


def test_routes_are_moved_by_token_by_layer_and_by_pads() -> None:
    """A sequence of four tokens, and one of two with two pads before it; two layers, one expert a token."""
    real = torch.tensor([[True] * 4, [False, False, True, True]])
    routes = torch.arange(16).view(2, 4, 2, 1).where(real[..., None, None], -1)
    grid = TokenSet(input_ids=torch.zeros(2, 4).long(), loss_mask=real, attention_mask=real, routed_experts=routes)

    def moved(replay: Replay) -> list[list[int]]:
        return replayed(grid, replay).flatten(1).tolist()

    assert moved(Replay()) == [[0, 1, 2, 3, 4, 5, 6, 7], [-1, -1, -1, -1, 12, 13, 14, 15]]
    assert moved(Replay(tokens=-1)) == [[-1, -1, 0, 1, 2, 3, 4, 5], [-1, -1, -1, -1, -1, -1, 12, 13]]
    assert moved(Replay(layers=1)) == [[1, -1, 3, -1, 5, -1, 7, -1], [-1, -1, -1, -1, 13, -1, 15, -1]]
    assert moved(Replay(pads=-1)) == [[0, 1, 2, 3, 4, 5, 6, 7], [-1] * 8]
