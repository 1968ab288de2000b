"""Which forwards go on from which, by masks and positions alone; what is not known is said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from moeparity.errors import Where
from moeparity.evidence.alignment.tokens import tokens_in
from moeparity.evidence.maps.continued import Context, contexts
from moeparity.evidence.maps.forwards import Forward, forwards
from moeparity.evidence.maps.module_map import load_map
from moeparity.evidence.trace.reader import open_trace
from tests.evidence.recorded import recorded

Call = tuple[Tensor | None, Tensor | None, int]
"""An attention mask, positions, and how many tokens each of its sequences has, two where nothing says so."""


class Rotary(nn.Module):
    def forward(self, x: Tensor, position_ids: Tensor | None) -> Tensor:
        return x if position_ids is None else x + position_ids.min()


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens, self.rotary_emb = nn.Embedding(9, 4), Rotary()

    def forward(self, ids: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None) -> Tensor:
        out: Tensor = self.rotary_emb(self.embed_tokens(ids), position_ids)
        return out if attention_mask is None else out * attention_mask.any()


class Program(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Decoder()

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        out: Tensor = self.model(ids, attention_mask, position_ids)
        return out


def met(folder: Path, calls: Sequence[Call], save: str = "*") -> list[Context]:
    """What is known of each call of a program."""
    program = Program()
    with recorded(folder, save=save), torch.no_grad():
        for mask, positions, length in calls:
            shown = mask if mask is not None else positions
            program(torch.ones(2 if shown is None else len(shown), length, dtype=torch.int64), mask, positions)
    (trace,) = open_trace(folder).ranks
    module_map = load_map("transformers", Where(Path("a test")))
    return contexts(forwards(trace, module_map))


def mask(*rows: str) -> Tensor:
    """A mask of rows such as `0011`."""
    return torch.tensor([[int(token) for token in row] for row in rows])


def at(*rows: Sequence[int]) -> Tensor:
    return torch.tensor(rows)


PROMPT_MASK = mask("0011", "1111")
PROMPT = (PROMPT_MASK, at([1, 1, 0, 1], [0, 1, 2, 3]), 4)
STEP = (mask("00111", "11111"), at([2], [4]), 1)


def test_a_step_goes_on_from_its_prompt_with_its_positions(tmp_path: Path) -> None:
    first, second, third = met(tmp_path, [PROMPT, STEP, (mask("001111", "111111"), at([7], [5]), 1)])
    assert [context.phase for context in (first, second, third)] == ["prefill", "decode", "decode"]
    assert [context.earlier for context in (first, second, third)] == [(), (0,), (0, 1)]
    assert first.mask is not None
    assert first.positions is not None
    assert first.mask.tolist() == [[False, False, True, True], [True] * 4]
    assert first.positions.tolist() == [[1, 1, 0, 1], [0, 1, 2, 3]]
    assert third.positions is not None
    assert third.positions.tolist() == [[3], [5]], "as they go on, not as the program has them"


def test_of_two_runs_each_step_goes_on_from_its_own(tmp_path: Path) -> None:
    """By the mask where both are as long, else from the latest."""
    as_long = (mask("1111", "0111"), at([0, 1, 2, 3], [1, 0, 1, 2]), 4)
    assert [context.earlier for context in met(tmp_path, [PROMPT, as_long, STEP])] == [(), (), (0,)]


def test_a_mask_that_is_other_in_a_step_is_that_of_each_tokens_own_forward(tmp_path: Path) -> None:
    _, step = met(tmp_path, [PROMPT, (mask("01111", "11111"), at([2], [4]), 1)])
    assert step.earlier == (0,)
    assert step.mask is not None
    assert step.mask.tolist() == [[True], [True]]


def test_columns_are_counted_where_the_program_counts_them(tmp_path: Path) -> None:
    (context,) = met(tmp_path, [(mask("0011", "1111"), at([0, 1, 2, 3]), 4)])
    assert context.positions is not None
    assert context.positions.tolist() == [[0, 1, 2, 3]] * 2


def test_without_a_mask_positions_say_what_a_step_reads(tmp_path: Path) -> None:
    first, second = met(tmp_path, [(None, at([0, 1, 2], [0, 1, 2]), 3), (None, at([3], [3]), 1)])
    assert (second.earlier, second.phase, first.has_mask) == ((0,), "decode", False)


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([STEP], "it reads 4 keys of earlier tokens, and no recorded forward ends there"),
        ([PROMPT, (mask("0111", "1111"), at([2], [4]), 1)], "it reads 3 keys of earlier tokens"),
        ([(None, None, 1)], "neither an attention mask nor positions"),
        (
            [PROMPT, (mask("001111", "111111"), at([2, 0], [4, 0]), 2)],
            "anew inside of a row that reads a cache",
        ),
        ([(torch.eye(4, dtype=torch.bool).expand(2, 1, 4, 4), at([0, 1, 2, 3]), 4)], "hides more than padding"),
        ([(torch.ones(2, 3, 4), at([0, 1, 2, 3]), 4)], "has the shape [2, 3, 4]"),
    ],
    ids=["begun before", "cropped", "nothing said", "packed", "another mask", "another shape"],
)
def test_what_is_not_known_is_said(tmp_path: Path, calls: Sequence[Call], reason: str) -> None:
    *_, last = met(tmp_path, calls)
    assert reason in last.unknown
    assert last.mask is None


def test_positions_that_begin_anew_are_those_of_another_sequence(tmp_path: Path) -> None:
    """Each counts by itself, whatever stands in padding; a mask for each query has to say the same."""
    positions = at([0, 1, 0, 1, 2, 0], [7, 0, 1, 2, 0, 0])
    padded = mask("111111", "011111")
    (context,) = met(tmp_path / "a", [(padded, positions, 6)])
    assert context.sequences is not None
    assert context.sequences.tolist() == [[0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 1, 2]]
    assert context.positions is not None
    assert context.positions.tolist() == positions.tolist()
    assert context.visible is not None
    assert context.visible[1].int().tolist() == [[0, 1, 1, 1, 0, 0]] * 4 + [[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]]
    by_query = (context.visible & torch.ones(6, 6, dtype=torch.bool).tril())[:, None]
    (same,) = met(tmp_path / "b", [(by_query, positions, 6)])
    assert not same.unknown
    (opened,) = met(tmp_path / "c", [(torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 1, 6, 6), positions, 6)])
    assert "hides more than padding, what comes later and other sequences" in opened.unknown


def test_a_static_cache_is_as_long_as_its_last_query_sees(tmp_path: Path) -> None:
    causal = torch.ones(4, 6, dtype=torch.bool).tril() & mask("001111", "111111").bool()[:, None, None]
    (context,) = met(tmp_path, [(causal, PROMPT[1], 4)])
    assert context.mask is not None
    assert context.mask.tolist() == [[False, False, True, True], [True] * 4]


def test_a_mask_that_was_not_kept_is_not_guessed(tmp_path: Path) -> None:
    """Whole numbers are always kept."""
    (context,) = met(tmp_path, [(PROMPT_MASK.float(), None, 4)], save="model.embed_tokens")
    assert "was not kept whole" in context.unknown


def test_borders_alone_say_who_sees_whom_and_no_positions() -> None:
    """Whether rotations begin anew there is not known, so none is called wrong."""
    ids = torch.ones(1, 5, dtype=torch.int64)
    way = Forward(ids, tokens_in(ids, starts=torch.tensor([0, 2])), {})
    (context,) = contexts([way])
    assert context.positions is None
    assert context.visible is not None
    assert context.visible[0].int().tolist() == [[1, 1, 0, 0, 0]] * 2 + [[0, 0, 1, 1, 1]] * 3
