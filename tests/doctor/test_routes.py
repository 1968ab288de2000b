"""Recorded routes beside those of simulations: a program's own, those of one that routes otherwise, and strangers'."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.doctor.conftest import EXPERTS
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


def of_another_place(recorded: torch.Tensor, places: int, layers: int) -> torch.Tensor:
    """Routes of the token `places` further on, and of the layer `layers` further on; -1 where there is none."""
    misplaced = torch.full_like(recorded, -1)
    for token in range(max(0, -places), min(24, 24 - places)):
        for layer in range(max(0, -layers), min(2, 2 - layers)):
            misplaced[:, token, layer] = recorded[:, token + places, layer + layers]
    return misplaced


def of_replay(
    folder: Path, small: Path, recorded: torch.Tensor, replayed: torch.Tensor | None, *, by_slot: bool = False
) -> dict[str, Any]:
    """The examination of a log of 16 sequences, 8 of whose 24 tokens are prompt, with the sampler's routes. The
    trainer's routers take others over; None: they choose themselves.
    """
    ids = tokens(16, 24)
    patch = None if replayed is None else replaying(replayed, by_slot=by_slot)
    path = log(folder / "log.jsonl", ids, scored(small, ids, 4), scored(small, ids, 1, patch=patch), prompt=8)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    with path.open("w", encoding="utf-8") as file:
        for record, of_sequence in zip(records, recorded.tolist(), strict=True):
            routes = [None if min(map(min, of_token)) < 0 else of_token for of_token in of_sequence]
            file.write(json.dumps({**record, "routed_experts": routes}) + "\n")
    return command(path, "--checkpoint", small, "--sampler", "hf-eager", out=folder / "out.json")


@pytest.fixture(scope="module")
def longer(fewer: Path) -> torch.Tensor:
    """What transformers routes of longer sequences: int64 [16, 24, 2, K]."""
    return routes_of(fewer, tokens(16, 24))


@pytest.mark.parametrize(
    ("trap", "name"),
    [
        ("1 token before", "replayed routes of 1 token before"),
        ("layer behind", "replayed routes of the layer behind"),
        ("prompts of expert 0", "replayed routes, prompts as expert 0"),
        ("prompts of the first experts", "replayed routes, prompts as the first experts"),
        ("ends of expert 0", "replayed routes, expert 0 behind token 16"),
        ("weights", "replayed routes, own weights by slot"),
    ],
)
def test_a_trainer_that_replays_routes_wrongly_is_named(
    tmp_path: Path, fewer: Path, longer: torch.Tensor, trap: str, name: str
) -> None:
    """The sampler's routes stand in the log; the trainer takes over those of another token or layer, has none for some
    tokens, or keeps the weights of its own experts.
    """
    wrong = longer.clone()
    if trap == "1 token before":
        wrong = of_another_place(longer, -1, 0)
    elif trap == "layer behind":
        wrong = of_another_place(longer, 0, 1)
    elif trap == "ends of expert 0":
        wrong[:, 16:] = 0
    elif trap != "weights":
        wrong[:, :8] = 0 if trap == "prompts of expert 0" else torch.arange(wrong.shape[-1])
    # Beside sorted slots on both sides, own weights by slot are hardly others: this sampler does not sort.
    recorded, wrong = (x.sort(-1).values if trap == "weights" else x for x in (longer, wrong))
    of = of_replay(tmp_path, fewer, recorded, wrong, by_slot=trap == "weights")
    assert of["blame"]["named"] == [name]
    assert of["rivals"] == []
    assert (of["explanations"][0]["name"], of["explanations"][0]["party"]) == (name, "trainer")


@pytest.mark.parametrize("replays", [True, False])
def test_a_replay_without_a_mistake_is_noise(tmp_path: Path, fewer: Path, longer: torch.Tensor, replays: bool) -> None:
    of = of_replay(tmp_path, fewer, longer, longer if replays else None)
    assert (of["answer"], of["blame"]["named"]) == ("noise", [])


def test_tokens_without_a_route_may_be_sent_to_expert_0(tmp_path: Path, fewer: Path, longer: torch.Tensor) -> None:
    """The record has no routes of the first six tokens, which a prefix cache held."""
    cached, wrong = longer.clone(), longer.clone()
    cached[:, :6], wrong[:, :6] = -1, 0
    of = of_replay(tmp_path, fewer, cached, wrong)
    assert of["blame"]["named"] == ["replayed routes, no route as expert 0"]


@pytest.mark.parametrize("trap", ["two at once", "five tokens before", "other numbers"])
def test_a_mistake_that_is_not_listed_gets_no_name(
    tmp_path: Path, fewer: Path, longer: torch.Tensor, trap: str
) -> None:
    """Routes of the token before and of the layer behind at once; of a token further away than any that is tried; and
    experts under the numbers of other experts, as a load balancer places them.
    """
    wrong = of_another_place(longer, -1, 1) if trap == "two at once" else of_another_place(longer, -5, 0)
    if trap == "other numbers":
        wrong = torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(2))[longer]
    of = of_replay(tmp_path, fewer, longer, wrong)
    assert of["answer"] in {"not explained", "undecided"}
    assert of["blame"]["named"] == []


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
