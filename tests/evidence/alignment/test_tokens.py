"""What ids, masks, positions and borders say of the rows of a forward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from moeparity.errors import Where
from moeparity.evidence.alignment.key_masks import key_mask
from moeparity.evidence.alignment.tokens import Tokens, tokens_in
from moeparity.evidence.maps.forwards import forwards
from moeparity.evidence.maps.module_map import load_map
from moeparity.evidence.trace.reader import open_trace
from tests.evidence.recorded import recorded


def spans(tokens: Tokens) -> list[tuple[tuple[int, ...], int]]:
    """Of each sequence its places, and the position of the first."""
    return [(sequence.places, sequence.start) for sequence in tokens.sequences]


def test_rows_with_several_sequences_each_and_padding_at_either_end() -> None:
    """Positions begin anew behind a token; what stands in padding says nothing."""
    ids = torch.arange(12).view(2, 6)
    positions = torch.tensor([[0, 1, 0, 1, 2, 0], [0, 0, 1, 0, 0, 0]])
    mask = key_mask(torch.tensor([[1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 0]]), (2, 6))
    tokens = tokens_in(ids, mask, positions)
    assert spans(tokens) == [((0, 1), 0), ((2, 3, 4), 0), ((7, 8), 0), ((9,), 0), ((10,), 0)]
    assert tokens.positions().tolist() == [0, 1, 0, 1, 2, 0, 0, 0, 1, 0, 0, 0]
    assert tokens.numbers_in_rows().tolist() == [[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 2, 2]]
    assert [sequence.keys for sequence in tokens.sequences][:3] == [(0, 1), (2, 3, 4), (1, 2)], "its own columns alone"
    assert tokens.is_packed


def test_in_flat_rows_a_sequence_may_go_on_at_any_position() -> None:
    """As in a server's step of a chunk, a prompt and a decoding request; in a batch of rows a jump is no border."""
    positions = torch.tensor([4, 5, 0, 1, 2, 9])
    assert spans(tokens_in(torch.arange(6), None, positions)) == [((0, 1), 4), ((2, 3, 4), 0), ((5,), 9)]
    assert spans(tokens_in(torch.arange(3)[None], None, torch.tensor([[0, 2, 4]]))) == [((0, 1, 2), 0)]


def test_borders_of_a_pack_say_where_sequences_end() -> None:
    """Each begins at its own position."""
    tokens = tokens_in(torch.arange(6), None, torch.tensor([3, 4, 5, 6, 0, 1]), torch.tensor([0, 2, 4]))
    assert spans(tokens) == [((0, 1), 3), ((2, 3), 5), ((4, 5), 0)]


def test_a_mask_for_each_query_says_which_keys_were_there_before() -> None:
    """Of a static cache of six places of which five are used; the first row was padded by one token."""
    visible = torch.tensor([[False, True, True, True, False, False], [True, True, True, True, True, False]])
    mask = torch.stack([visible[0], visible[1]])[:, None, None].clone()
    mask[0, ..., 4] = True
    tokens = tokens_in(torch.tensor([[7], [8]]), key_mask(mask, (2, 1)))
    assert [(sequence.start, sequence.keys) for sequence in tokens.sequences] == [
        (3, (1, 2, 3, 4)),
        (4, (0, 1, 2, 3, 4)),
    ]
    assert (tokens.columns, tokens.before) == (5, 4)


class _Attention(nn.Module):
    def forward(self, x: Tensor, **borders: Tensor) -> Tensor:
        return x + len(borders)


class _Packed(nn.Module):
    """Gives its attention the borders of a pack, under a name that kernels have for them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"embed_tokens": nn.Embedding(9, 4)})
        self.attention, self.name = _Attention(), name

    def forward(self, ids: Tensor, borders: Tensor) -> Tensor:
        return self.attention(self.model["embed_tokens"](ids), **{self.name: borders})


@pytest.mark.parametrize(
    ("name", "borders", "places"),
    [
        ("cu_seqlens", [0, 2, 5, 6], [(0, 1), (2, 3, 4), (5,)]),
        ("cu_seq_lens_q", [0, 2, 6], [(0, 1), (2, 3, 4, 5)]),
        ("query_start_loc", [0, 4, 6, 6], [(0, 1, 2, 3), (4, 5)]),
        ("cu_seqlens", [0, 2, 4], [(0, 1, 2, 3, 4, 5)]),
    ],
    ids=["a pack", "as transformers calls it", "a server's, with places for more", "of other rows"],
)
def test_a_trace_that_has_borders_has_its_sequences(
    tmp_path: Path, name: str, borders: list[int], places: list[tuple[int, ...]]
) -> None:
    """Without positions and without a mask."""
    with recorded(tmp_path), torch.no_grad():
        _Packed(name)(torch.ones(1, 6, dtype=torch.int64), torch.tensor(borders, dtype=torch.int32))
    (trace,) = open_trace(tmp_path).ranks
    (way,) = forwards(trace, load_map("transformers", Where(tmp_path)))
    assert [places for places, _ in spans(way.tokens)] == places
