"""Token files of speculative decoding: drafts read or drawn, and the steps as a recipe reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from moeparity.errors import MoeparityError, TokensError, Where
from moeparity.inputs.tokens.drafted import step_lines, with_drafts
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.schedule.recorded import read_batches
from tests.command import ROOT, inside

IDS = torch.tensor([[5, 6, 7, 8, 9, 4], [5, 6, 7, 1, 0, 0]])
REAL = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], dtype=torch.bool)
SCORED = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0]], dtype=torch.bool)
TOKENS = TokenSet(input_ids=IDS, loss_mask=SCORED, attention_mask=REAL, logprobs=-torch.ones(2, 6).double())


def drafts(folder: Path, *lines: object) -> str:
    path = folder / "drafts.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def test_rejected_drafts_add_unscored_sequences(tmp_path: Path) -> None:
    tokens, of = with_drafts(TOKENS, drafts(tmp_path, [[], [8, 3], [9, 9]], [[]]), flat=True)
    assert tokens.input_ids.tolist() == [
        [5, 6, 7, 8, 9, 4, 0],
        [5, 6, 7, 1, 0, 0, 0],
        [5, 6, 7, 8, 3, 0, 0],
        [5, 6, 7, 8, 9, 9, 9],
    ]
    assert of.added == ((5, 6, 7, 8, 3), (5, 6, 7, 8, 9, 9, 9))
    assert not bool(tokens.loss_mask[2:].any())
    assert tokens.attention_mask.sum(1).tolist() == [6, 4, 5, 7]
    assert bool(tokens.logprobs[2:].isnan().all()) if tokens.logprobs is not None else False


def test_the_steps_are_read_as_they_were_written(tmp_path: Path) -> None:
    for flat, of_first in ((True, [[], [8, 3], [4]]), (False, [[7, 2], [9]])):
        _, of = with_drafts(TOKENS, drafts(tmp_path, of_first, [[]]), flat=flat)
        (tmp_path / "steps.jsonl").write_text("\n".join(step_lines(of.steps)))
        recorded = read_batches("steps.jsonl", "tokens", Where(tmp_path / "recipe.yaml"))
        assert recorded.schedule.steps == of.steps


@pytest.mark.parametrize(("rate", "low", "high"), [("0", 0, 0), ("1", 1, 1), ("0.5", 0.2, 0.6)])
def test_drawn_drafts_are_right_at_their_rate(rate: str, low: float, high: float) -> None:
    ids = torch.randint(0, 50, (8, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids, dtype=torch.bool)
    scored = mask.clone()
    scored[:, :5] = False
    tokens = TokenSet(input_ids=ids, loss_mask=scored, attention_mask=mask)
    first, again = (with_drafts(tokens, f"3:{rate}", flat=True)[1] for _ in range(2))
    assert first == again
    assert low <= first.accepted / first.drafted <= high
    assert (len(first.added) == 0) == (rate == "1")


def test_padding_in_front_is_refused() -> None:
    padded_left = TokenSet(input_ids=IDS, loss_mask=SCORED, attention_mask=REAL.flip(1))
    with pytest.raises(TokensError, match="Pad on the right"):
        with_drafts(padded_left, "3:0.5", flat=True)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["[[]]"], "1 line; expected one for each of 2 sequences"),
        (["[[]", "[[]]"], "drafts.jsonl:1: '[[]'; expected a list of ids for each step"),
        (["[[], [-1]]", "[[]]"], "drafts.jsonl:1: -1 is no token id"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, lines: list[str], says: str) -> None:
    (tmp_path / "drafts.jsonl").write_text("\n".join(lines))
    with pytest.raises(MoeparityError) as caught:
        with_drafts(TOKENS, str(tmp_path / "drafts.jsonl"), flat=True)
    assert says in str(caught.value)


def test_the_command(tmp_path: Path) -> None:
    arguments = ["recipes/schedules.jsonl", "--tokenizer", "bytes", "--checkpoint", "checkpoints/quickstart"]
    out: list[str | Path] = ["--out", tmp_path / "tokens.safetensors", "--schedule", tmp_path / "steps.jsonl"]
    done = inside("tokens", *arguments, "--drafts", "3:0.6", "--server", *out)
    assert (done.returncode, done.stderr) == (0, "")
    assert "6 steps; 94 of 260 drafts accepted" in " ".join(done.stdout.split())
    for name, shipped in (
        ("tokens.safetensors", "speculative.safetensors"),
        ("steps.jsonl", "speculative.steps.jsonl"),
    ):
        assert (tmp_path / name).read_bytes() == (ROOT / "recipes" / shipped).read_bytes()
    refused: tuple[tuple[list[str | Path], str], ...] = (
        (["--drafts", "3:0.6", *out[:2]], "--drafts and --schedule, the steps to write, go together"),
        (["--drafts", "3:0.6", "--from-log", *out], "Give one of them"),
        (["--drafts", "nowhere.jsonl", *out], "Expected JSON lines, or `K:RATE` in place of a file"),
    )
    for wrong, says in refused:
        done = inside("tokens", *arguments, *wrong)
        assert (done.returncode, says in " ".join(done.stderr.split())) == (2, True)
