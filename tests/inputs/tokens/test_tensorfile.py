"""Token files in the safetensors format, read and written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from moeparity.errors import TokensError
from moeparity.inputs.tokens import TokenSet, read_tokens
from moeparity.inputs.tokens.tensorfile import file_contents
from moeparity.output.writing import write_tensors

IDS = torch.tensor([[3, 4, 5], [6, 7, 0]])
REAL = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)


def everything() -> TokenSet:
    routes = torch.tensor([[[[0, 1]], [[2, 1]], [[-1, -1]]], [[[3, 0]], [[-1, -1]], [[-1, -1]]]])
    return TokenSet(
        input_ids=IDS,
        loss_mask=torch.tensor([[0, 1, 0], [0, 1, 0]], dtype=torch.bool),
        attention_mask=REAL,
        labels=torch.tensor([[0, 1, 1], [0, 0, 0]]),
        label_names=("text", "image, large"),
        logprobs=torch.tensor([[torch.nan, -1.5, -2.0], [torch.nan, -0.0, torch.nan]], dtype=torch.float64),
        routed_experts=routes,
    )


def test_what_is_written_reads_the_same(tmp_path: Path) -> None:
    tokens = everything()
    write_tensors(tmp_path / "t.safetensors", *file_contents(tokens))
    copy = read_tokens(tmp_path / "t.safetensors")
    assert copy.label_names == tokens.label_names
    for name in ("input_ids", "loss_mask", "attention_mask", "labels", "routed_experts"):
        assert torch.equal(getattr(copy, name), getattr(tokens, name)), name
    assert copy.logprobs is not None
    assert tokens.logprobs is not None
    assert torch.equal(copy.logprobs.view(torch.int64), tokens.logprobs.view(torch.int64))


def test_what_a_file_lacks_is_none(tmp_path: Path) -> None:
    save_file({"input_ids": IDS}, tmp_path / "t.safetensors")
    tokens = read_tokens(tmp_path / "t.safetensors")
    assert (tokens.labels, tokens.logprobs, tokens.routed_experts, tokens.label_names) == (None, None, None, ())
    assert tokens.loss_mask.tolist() == [[False, True, True]] * 2


def test_classes_without_names_go_by_their_numbers_and_other_dtypes_are_taken(tmp_path: Path) -> None:
    tensors = {"input_ids": IDS, "labels": torch.tensor([[0, 2, 0], [0, 0, 0]], dtype=torch.uint8)}
    tensors |= {"logprobs": torch.full((2, 3), -1.0, dtype=torch.bfloat16)}
    tensors |= {"routed_experts": torch.tensor([0, 1], dtype=torch.int16).expand(2, 3, 4, 2).contiguous()}
    save_file(tensors, tmp_path / "t.safetensors")
    tokens = read_tokens(tmp_path / "t.safetensors")
    assert tokens.label_names == ("0", "1", "2")
    assert tokens.logprobs is not None
    assert tokens.logprobs.dtype == torch.float64
    assert tokens.routed_experts is not None
    assert tokens.routed_experts.shape == (2, 3, 4, 2)


@pytest.mark.parametrize("names", ['["a"]', "[1, 2, 3, 4, 5, 6, 7, 8]", '{"a": 1}', "nonsense", "3"])
def test_too_few_names_are_refused(tmp_path: Path, names: str) -> None:
    save_file({"input_ids": IDS, "labels": IDS.clone()}, tmp_path / "t.safetensors", {"label_names": names})
    with pytest.raises(TokensError, match=r"names . classes; expected a JSON list of at least 8"):
        read_tokens(tmp_path / "t.safetensors")
