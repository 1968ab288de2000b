"""Pairs of a reward model: files of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.errors import TokensError, Where
from moeparity.inputs.tokens import TokenSet, read_tokens
from moeparity.inputs.tokens.pairs import first_pairs, paired
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from tests.command import ROOT

SHIPPED = ROOT / "checkpoints" / "reward"


@pytest.fixture(scope="module")
def graph() -> Graph:
    """That of the shipped reward model."""
    return expand(Config(SHIPPED / "config.json"))


def lines(folder: Path, *objects: dict[str, Any]) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in objects), "utf-8")
    return path


def test_a_line_is_two_sequences_scored_at_the_end_of_the_first(tmp_path: Path, graph: Graph) -> None:
    path = lines(tmp_path, {"chosen": [5, 6, 7], "rejected": [5, 8]}, {"chosen": [9, 9], "rejected": [4, 4, 4, 4]})
    tokens = paired(read_tokens(path), graph, Where(path))
    assert tokens.input_ids.tolist() == [[5, 6, 7, 0], [5, 8, 0, 0], [9, 9, 0, 0], [4, 4, 4, 4]]
    assert tokens.loss_mask.nonzero().tolist() == [[0, 2], [2, 1]]
    left_padded = paired(read_tokens(path, padding="left"), graph, Where(path))
    assert left_padded.loss_mask.nonzero().tolist() == [[0, 3], [2, 3]]


def test_a_prompt_stands_before_both(tmp_path: Path, graph: Graph) -> None:
    path = lines(tmp_path, {"prompt": "ab", "chosen": "c", "rejected": "de", "id": "one"})
    tokens = paired(read_tokens(path, tokenizer="bytes"), graph, Where(path))
    assert tokens.input_ids.tolist() == [[*b"abc", 0], [*b"abde"]]


def test_the_pairs_of_a_tensor_file_are_rows_in_turn(graph: Graph) -> None:
    ids, real = torch.tensor([[3, 4], [5, 6], [7, 8], [9, 1]]), torch.ones(4, 2, dtype=torch.bool)
    tokens = paired(TokenSet(input_ids=ids, loss_mask=real, attention_mask=real), graph, Where(Path("t")))
    assert tokens.loss_mask.nonzero().tolist() == [[0, 1], [2, 1]]


def test_a_pair_repeats_another_only_if_both_sequences_do(tmp_path: Path) -> None:
    first, second = {"chosen": [5, 6], "rejected": [5, 7]}, {"chosen": [5, 6], "rejected": [5, 8]}
    tokens = read_tokens(lines(tmp_path, first, second, first))
    assert first_pairs(tokens).tolist() == [0, 1, 2, 3, 0, 1]


REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "odd": ([{"input_ids": [1, 2]}] * 3, "3 sequences; the checkpoint gives scores, so that"),
    "without-rejected": ([{"chosen": [1, 2]}], "no 'rejected'; a pair needs"),
    "with-a-mask": ([{"chosen": [1, 2], "rejected": [1, 3], "mask": [1, 1]}], "'mask' in a pair; expected"),
    "of-two-kinds": ([{"chosen": "ab", "rejected": [1, 3]}], "a pair holds 'ab'; expected text in all of it, or"),
    "mixed": ([{"chosen": [1, 2], "rejected": [1, 3]}, {"input_ids": [1, 2]}], "no pair, as .* is. Expected 'chosen'"),
    "ends-with-the-pad": ([{"chosen": [1, 0], "rejected": [1, 3]}], "sequence 0 ends with token 0, the pad_token_id"),
    "one-token": ([{"chosen": [1, 2], "rejected": [3]}], "sequence 1 has one token; expected at least two"),
    "recorded": ([{"input_ids": [1, 2], "logprobs": [None, -1.0]}] * 2, "has log-probabilities or labels of tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(tmp_path: Path, graph: Graph, name: str) -> None:
    objects, says = REFUSED[name]
    path = lines(tmp_path, *objects)
    with pytest.raises(TokensError, match=says):
        paired(read_tokens(path), graph, Where(path))


def test_a_language_model_takes_no_pairs(tmp_path: Path) -> None:
    model = expand(Config(ROOT / "checkpoints" / "quickstart" / "config.json"))
    path = lines(tmp_path, {"chosen": [5, 6], "rejected": [5, 7]})
    with pytest.raises(TokensError, match="holds pairs, 'chosen' and 'rejected', and the checkpoint gives no scores"):
        paired(read_tokens(path), model, Where(path))
