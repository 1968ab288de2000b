"""A trainer that scored a text tokenised again: named by the log, from the checkpoint's own tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.doctor.programs import command, scored, two_layers
from tests.logs.vocabulary import ids, tokenizer_file


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of the shipped checkpoint, with a tokenizer that it was not trained with."""
    folder = two_layers(tmp_path_factory.mktemp("weights") / "current")
    tokenizer_file(folder, "abcdefghijklmnopqrstuvwxyz")
    return folder


def _written(path: Path, rows: torch.Tensor, logprobs: torch.Tensor, prompt: int) -> Path:
    with path.open("w") as file:
        for number, (of, values) in enumerate(zip(rows.tolist(), logprobs.tolist(), strict=True)):
            mask = [int(place >= prompt) for place in range(len(of))]
            file.write(
                json.dumps({"id": f"{number}", "input_ids": of, "mask": mask, "logprobs": [None, *values]}) + "\n"
            )
    return path


def test_it_is_named_and_placed(tmp_path: Path, checkpoint: Path) -> None:
    drawn = torch.randint(2, 28, (12, 10), generator=torch.Generator().manual_seed(3))
    pair, whole = (torch.tensor(ids(checkpoint / "tokenizer.json", *words)) for words in (("ab", "c"), ("abc",)))
    sampled = torch.cat([drawn[:, :4], pair.expand(12, 2), drawn[:, 4:]], 1)
    again = torch.cat([drawn[:, :4], whole.expand(12, 1), drawn[:, 4:]], 1)
    sampler = _written(tmp_path / "sampled.jsonl", sampled, scored(checkpoint, sampled, 4), 3)
    trainer = _written(tmp_path / "scored.jsonl", again, scored(checkpoint, again, 4), 3)
    report = command(sampler, "--checkpoint", checkpoint, "--trainer-log", trainer, out=tmp_path / "out.json")
    assert (report["exit"], "retokenised" in report["logged"]) == (1, True)
    assert "The ids of 12 of 12 sequences differ between the sides (same text in 12 sequences)" in report["printed"]
    assert "token 4 of sequence 0, same text: 'ab' (" in report["printed"]
