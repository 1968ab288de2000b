"""JSON lines as tokens: text and ids, ragged lengths, and what may stand beside them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.errors import CheckpointError, TokensError
from moeparity.inputs.tokens import TokenSet, read_tokens


def read(tmp_path: Path, *lines: Any, **options: Any) -> TokenSet:
    path = tmp_path / "tokens.jsonl"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    return read_tokens(path, **options)


def checkpoint(tmp_path: Path, **fields: Any) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "vocab_size": 300, **fields}), "utf-8")
    return tmp_path


def test_text_becomes_bytes_and_nothing_is_added(tmp_path: Path) -> None:
    tokens = read(tmp_path, {"text": "Grüße"}, tokenizer="bytes")
    assert tokens.input_ids.tolist() == [[71, 114, 195, 188, 195, 159, 101]]
    assert tokens.loss_mask.tolist() == [[False, *[True] * 6]]
    assert tokens.attention_mask.all()
    assert (tokens.labels, tokens.logprobs, tokens.routed_experts, tokens.pads) == (None, None, None, 0)
    assert not tokens.has_records


@pytest.mark.parametrize(
    ("padding", "ids", "scored"),
    [
        ("right", [[5, 6, 7], [8, 9, 0]], [[0, 1, 1], [0, 1, 0]]),
        ("left", [[5, 6, 7], [0, 8, 9]], [[0, 1, 1], [0, 0, 1]]),
    ],
)
def test_shorter_sequences_are_padded_and_pads_never_scored(
    tmp_path: Path, padding: str, ids: list[list[int]], scored: list[list[int]]
) -> None:
    tokens = read(tmp_path, {"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}, padding=padding)
    assert tokens.input_ids.tolist() == ids
    assert tokens.attention_mask.long().tolist() == [[1, 1, 1], [int(i > 0) for i in ids[1]]]
    assert tokens.loss_mask.long().tolist() == scored
    assert tokens.pads == 1


@pytest.mark.parametrize(("fields", "pad"), [({"pad_token_id": 7}, 7), ({"pad_token_id": None}, 0), ({}, 0)])
def test_pads_are_the_configs_pad_token(tmp_path: Path, fields: dict[str, Any], pad: int) -> None:
    folder = checkpoint(tmp_path, **fields)
    assert read(tmp_path, {"input_ids": [5, 6]}, {"input_ids": [9]}, checkpoint=folder).input_ids[1, 1] == pad


@pytest.mark.parametrize("pad", [300, -1, "0", [1]])
def test_a_pad_token_outside_the_vocabulary_is_refused(tmp_path: Path, pad: Any) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json:1: pad_token_id is"):
        read(tmp_path, {"input_ids": [5, 6]}, checkpoint=checkpoint(tmp_path, pad_token_id=pad))


def test_everything_beside_a_sequence_moves_with_its_tokens(tmp_path: Path) -> None:
    first = {
        "text": "abc",
        "mask": [0, 0, True],
        "labels": ["text", "text", "image"],
        "logprobs": [None, -1, -0.25],
        "routed_experts": [[[0, 1], [2, 3]], [[1, 0], [3, 2]], None],
    }
    second = {"text": "de", "labels": "image"}
    tokens = read(tmp_path, first, second, tokenizer="bytes", padding="left")
    assert tokens.loss_mask.long().tolist() == [[0, 0, 1], [0, 0, 1]]
    assert tokens.label_names == ("text", "image")
    assert tokens.labels is not None
    assert tokens.labels[0].tolist() == [0, 0, 1]
    assert tokens.labels[1, 1:].tolist() == [1, 1]
    assert tokens.logprobs is not None
    assert tokens.logprobs.dtype == torch.float64
    assert [x for x in tokens.logprobs.flatten().tolist() if not math.isnan(x)] == [-1.0, -0.25]
    assert tokens.logprobs[0, 1:].tolist() == [-1.0, -0.25]
    assert tokens.routed_experts is not None
    assert tokens.routed_experts[0].tolist() == [[[0, 1], [2, 3]], [[1, 0], [3, 2]], [[-1, -1], [-1, -1]]]
    assert bool((tokens.routed_experts[1] == -1).all())


def test_blank_lines_are_passed_over_and_line_numbers_kept(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text('\n{"input_ids": [1, 2]}\n\n{"input_ids": [1, "2"]}\n', "utf-8")
    with pytest.raises(TokensError, match=r"tokens\.jsonl:4: input_ids is no list"):
        read_tokens(path)


def test_line_separators_inside_a_string_do_not_cut_it(tmp_path: Path) -> None:
    assert read(tmp_path, {"text": "a\u2028b\x85c"}, tokenizer="bytes").input_ids.shape == (1, 8)


def test_prompts_that_are_not_scored_may_be_of_one_token(tmp_path: Path) -> None:
    assert read(tmp_path, {"input_ids": [5]}, scored=False).input_ids.tolist() == [[5]]
    with pytest.raises(TokensError, match="no token to score"):
        read(tmp_path, {"input_ids": [5]})


def test_a_mask_for_text_has_to_be_as_long_as_the_text_in_tokens(tmp_path: Path) -> None:
    with pytest.raises(TokensError, match=r"mask has 2 entries; expected a list of 3, one entry per token of the text"):
        read(tmp_path, {"text": "abc", "mask": [0, 1]}, tokenizer="bytes")
