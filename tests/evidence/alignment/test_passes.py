"""Where forward passes begin, and what each was given: as `diff`, `explain` and trace recipes read it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import moeparity
from moeparity.errors import Where
from moeparity.evidence.alignment.passes import GivenTokens, Sources, cut, given_tokens, named_sources
from moeparity.evidence.diff.run import diff
from moeparity.evidence.maps.forwards import forwards
from moeparity.evidence.maps.module_map import load_map
from moeparity.evidence.trace.reader import open_trace
from moeparity.evidence.trace.records import Batch, Call

EMBED = "model.embed_tokens"


def module(number: int, path: str, inside: int | None = None) -> Call:
    return Call(id=number, level="module", name="M", path=path, inside=inside)


def op(number: int, inside: int | None = None) -> Call:
    return Call(id=number, level="op", name="aten.add.Tensor", inside=inside)


@pytest.mark.parametrize(
    ("calls", "entries", "expected"),
    [
        ([], (EMBED,), []),
        ([op(0), op(1)], (EMBED,), [[0, 1]]),
        (
            [op(0), module(1, ""), module(2, EMBED, 1), op(3), module(4, ""), module(5, EMBED, 4)],
            (EMBED,),
            [[0, 1, 2, 3], [4, 5]],
        ),
        # One module around both, as a trainer's may be.
        (
            [module(0, "t"), module(1, "", 0), module(2, EMBED, 1), module(3, "", 0), module(4, EMBED, 3)],
            (EMBED,),
            [[0, 1, 2], [3, 4]],
        ),
        ([module(0, ""), module(1, "a", 0), module(2, "b"), module(3, "")], (EMBED,), [[0, 1, 2], [3]]),
        ([module(0, "", 7), module(1, EMBED, 0)], ("other", EMBED), [[0, 1]]),
    ],
    ids=["nothing", "no module", "two passes", "two passes in one module", "no ids", "what is around was not recorded"],
)  # fmt: skip
def test_a_pass_begins_around_the_module_that_ids_go_into(
    calls: list[Call], entries: tuple[str, ...], expected: list[list[int]]
) -> None:
    assert [[call.id for call in part] for part in cut(calls, entries)] == expected


def read_tokens(
    tensors: dict[int, Tensor], masks: tuple[int, ...] = (), positions: tuple[int, ...] = (), batch: Batch | None = None
) -> GivenTokens:
    tokens = given_tokens(Sources([0], masks, positions), [], batch, tensors.get)
    assert tokens is not None
    return tokens


@pytest.mark.parametrize("ids", [torch.tensor([[5]]), torch.tensor([5])])
def test_one_token_of_one_sequence(ids: Tensor) -> None:
    tokens = read_tokens({0: ids})
    assert [(part.ids, part.places, part.start) for part in tokens.tokens.sequences] == [((5,), (0,), 0)]
    assert (tokens.mask, tokens.positions, tokens.unknown) == (None, None, "")


@pytest.mark.parametrize("ids", [torch.tensor([[1.5]]), torch.zeros(0, dtype=torch.int64), torch.ones(1, 1, 1).long()])
def test_what_are_no_ids_are_none(ids: Tensor) -> None:
    assert given_tokens(Sources([0], (), ()), [], None, {0: ids}.get) is None


def test_a_mask_that_cannot_be_read_says_why() -> None:
    ids = torch.tensor([[1, 2], [3, 4]])
    assert read_tokens({0: ids}, masks=(1,)).unknown == "its attention mask was not kept whole."
    assert read_tokens({0: ids, 1: torch.ones(3, 2)}, masks=(1,)).unknown == "its attention mask has the shape [3, 2]."
    # The first of them that was kept counts.
    recorded_mask = read_tokens({0: ids, 2: torch.tensor([[0, 1], [1, 1]])}, masks=(1, 2))
    assert (recorded_mask.unknown, [part.places for part in recorded_mask.tokens.sequences]) == ("", [(1,), (2, 3)])


def test_positions_of_other_tokens_or_with_nan_say_nothing() -> None:
    ids = torch.tensor([[1, 2, 3]])
    assert (
        read_tokens({0: ids, 1: torch.tensor([0.0, float("nan"), 2.0]), 2: torch.arange(4)}, positions=(1, 2)).positions
        is None
    )
    packed = read_tokens({0: ids, 2: torch.arange(4), 3: torch.tensor([0, 1, 0])}, positions=(2, 3))
    assert [part.places for part in packed.tokens.sequences] == [(0, 1), (2,)]


def test_rows_of_a_server_count_where_they_are_as_many_as_the_ids() -> None:
    ids = torch.tensor([7, 8, 9])
    single_row = Batch(step=0, requests=("a",), starts=(4,), tokens=(1,), padding=2)
    assert [
        (part.request, part.start, part.places) for part in read_tokens({0: ids}, batch=single_row).tokens.sequences
    ] == [("a", 4, (0,))]
    row_alone = Batch(step=0, requests=("a",), starts=(4,), tokens=(1,))
    assert [part.request for part in read_tokens({0: ids}, batch=row_alone).tokens.sequences] == [""]


def test_ids_without_a_name_are_what_the_outermost_module_is_given_first() -> None:
    calls = [Call(id=0, level="module", name="M", inputs={"0": 3, "1": 4, "position_ids": 5})]
    assert named_sources(calls) == Sources([3], [], [5])


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(16, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.norm(self.embed_tokens(input_ids))


class Outer(nn.Module):
    """Calls what it is around once for each sequence, as a reward model does that is given pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Inner()

    def forward(self, *sequences: Tensor) -> list[Tensor]:
        return [self.model(sequence) for sequence in sequences]


def test_two_passes_in_one_module_are_compared_by_their_tokens(tmp_path: Path) -> None:
    """Whatever their order; by `diff`, and as forwards with a map."""
    program, chosen, rejected = Outer(), torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])
    with moeparity.capture(tmp_path / "a", save="*"), torch.no_grad():
        program(rejected)
        program(chosen)
    with moeparity.capture(tmp_path / "b", save="*"), torch.no_grad():
        program(chosen, rejected)
    for part, expected in (("a", [[[4, 5]], [[1, 2, 3]]]), ("b", [[[1, 2, 3]], [[4, 5]]])):
        ways = forwards(open_trace(tmp_path / part).ranks[0], load_map("transformers", Where(tmp_path)))
        assert [way.ids.tolist() for way in ways] == expected
    assert diff(tmp_path / "a", tmp_path / "b").status == "pass"
    program.model.norm.eps = 1.0
    with moeparity.capture(tmp_path / "c", save="*"), torch.no_grad():
        program(chosen, rejected)
    report = diff(tmp_path / "a", tmp_path / "c")
    assert (report.status, report.starts[0].path) == ("fail", "model.norm")
