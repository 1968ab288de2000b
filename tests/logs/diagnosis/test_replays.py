"""The trainer's routes held to the sampler's: replayed rightly, at another place, not at all, or otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.logs.diagnosis import CAUSES
from moeparity.logs.diagnosis.finding import Finding
from moeparity.logs.diagnosis.replays import FILLER, NAMES, REPLAYED
from moeparity.logs.log_files import measure_files
from moeparity.logs.request import MetricsRequest

SHAPE = (24, 12, 3, 4)
EXPERTS = 32


def routes(seed: int) -> Tensor:
    """Different experts for each token and layer: int64 [B, T, L, K]."""
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(*SHAPE[:3], EXPERTS, generator=draw).argsort(-1)[..., : SHAPE[-1]]


def some_flipped(of: Tensor, share: float) -> Tensor:
    """Another last expert at a share of the token-layers."""
    draw = torch.Generator().manual_seed(9)
    flipped = of.clone()
    at = torch.rand(of.shape[:3], generator=draw) < share
    others = [min(set(range(EXPERTS)) - set(row)) for row in of[at].tolist()]
    flipped[..., -1][at] = torch.tensor(others, dtype=torch.int64)
    return flipped


def findings_of(folder: Path, sampler: Tensor, trainer: Tensor) -> dict[str, Finding]:
    """The findings about replays of a log with these routes, -1 for none, by name."""
    draw = torch.Generator().manual_seed(1)
    logprobs = -torch.rand(SHAPE[:2], generator=draw)
    path = folder / "log.jsonl"

    def lists(of: Tensor) -> list[Any]:
        return [None if bool((token < 0).any()) else token.tolist() for token in of]

    with path.open("w") as file:
        for row in range(SHAPE[0]):
            record = {
                "id": str(row),
                "input_ids": [row, *range(100, 99 + SHAPE[1])],
                "mask": [0, 0, 0, 0] + [1] * (SHAPE[1] - 4),
                "logprobs": logprobs[row].tolist(),
                "trainer_logprobs": logprobs[row].tolist(),
                "routed_experts": lists(sampler[row]),
                "trainer_routed_experts": lists(trainer[row]),
            }
            file.write(json.dumps(record) + "\n")
    diagnosis = measure_files([path], MetricsRequest()).diagnosis
    return {finding.name: finding for finding in diagnosis.findings if finding.name in NAMES}


def moved(of: Tensor, tokens: int, layers: int) -> Tensor:
    """Routes of the token and of the layer so much further on; where there is none, routes of nobody."""
    wrong = routes(77)
    for token in range(SHAPE[1]):
        for layer in range(SHAPE[2]):
            if 0 <= token + tokens < SHAPE[1] and 0 <= layer + layers < SHAPE[2]:
                wrong[:, token, layer] = of[:, token + tokens, layer + layers]
    return wrong


PLACES = [
    ("1 token before", -1, 0),
    ("1 token behind", 1, 0),
    ("2 tokens before", -2, 0),
    ("2 tokens behind", 2, 0),
    ("the layer before", 0, -1),
    ("the layer behind", 0, 1),
]


@pytest.mark.parametrize(("name", "tokens", "layers"), PLACES)
@pytest.mark.parametrize("share", [0.0, 0.005])
def test_each_mistake_is_named(tmp_path: Path, name: str, tokens: int, layers: int, share: float) -> None:
    sampler = routes(1)
    of = findings_of(tmp_path, sampler, moved(some_flipped(sampler, share), tokens, layers))
    assert [(name, finding.verdict) for name, finding in of.items()] == [(f"{REPLAYED} of {name}", "named")]
    assert f"{REPLAYED} of {name}" in CAUSES


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
def test_a_replay_without_a_mistake_or_none_is_silent(tmp_path: Path, share: float) -> None:
    """With its own routers a trainer has the sampler's experts at most token-layers; the order of slots is its own."""
    sampler = routes(1)
    of = findings_of(tmp_path, sampler, some_flipped(sampler, share).flip(-1))
    assert [(name, finding.verdict) for name, finding in of.items()] == [(REPLAYED, "ruled out")]
    assert ("at the same tokens and layers" in of[REPLAYED].reason) == (share == 0)


@pytest.mark.parametrize("mistake", ["two at once", "three tokens before", "half of the log", "other numbers"])
def test_a_mistake_that_is_not_listed_gets_no_name(tmp_path: Path, mistake: str) -> None:
    sampler = routes(1)
    trainer = moved(sampler, -1, 1) if mistake == "two at once" else moved(sampler, -3, 0)
    if mistake == "half of the log":
        trainer = torch.cat([moved(sampler, -1, 0)[:12], moved(sampler, 0, 1)[12:]])
    if mistake == "other numbers":
        trainer = torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(4))[sampler]
    of = findings_of(tmp_path, sampler, trainer)
    assert [(name, finding.verdict) for name, finding in of.items()] == [(REPLAYED, "undecided")]


def test_in_a_text_that_repeats_itself_places_are_told_apart(tmp_path: Path) -> None:
    """All tokens but one of a sequence are routed alike, so that the token before is as good as the token itself."""
    sampler = routes(1)[:, :1].repeat(1, SHAPE[1], 1, 1)
    sampler[:, 6] = routes(2)[:, 6]
    of = findings_of(tmp_path, sampler, moved(sampler, -1, 0))
    assert [(name, finding.verdict) for name, finding in of.items()] == [(f"{REPLAYED} of 1 token before", "named")]
    sampler[:, 6] = sampler[:, 5]
    assert findings_of(tmp_path, sampler, sampler)[REPLAYED].verdict == "ruled out"


@pytest.mark.parametrize("recorded", [True, False])
def test_a_filler_is_named(tmp_path: Path, recorded: bool) -> None:
    """Prompts whose routes the trainer lacks, and that the sampler has recorded or not."""
    sampler = routes(1)
    trainer = sampler.clone()
    trainer[:, :4] = torch.arange(SHAPE[-1])
    if not recorded:
        sampler[:, :4] = -1
    of = findings_of(tmp_path, sampler, trainer)
    assert of[FILLER].verdict == "named"
    assert of[FILLER].evidence[0].value == 24 * 4
    assert of[REPLAYED].verdict == "ruled out"


def test_a_log_without_routes_of_both_sides_says_nothing(tmp_path: Path) -> None:
    nothing = torch.full(SHAPE, -1)
    nothing[:, 0] = routes(1)[:, 0]
    trainer = torch.full(SHAPE, -1)
    trainer[:, 5] = routes(1)[:, 5]
    assert findings_of(tmp_path, nothing, trainer)[REPLAYED].verdict == "not tested"
