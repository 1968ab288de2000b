"""transformers itself, whose rows are padded elsewhere or come in steps: keys of one token meet, and nothing begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from moeparity.evidence.alignment.tokens import Sequence as TokenSequence
from moeparity.evidence.alignment.tokens import Tokens
from moeparity.evidence.diff.key_columns import KeyColumns
from moeparity.evidence.diff.report import DiffReport
from moeparity.evidence.diff.run import diff
from tests.checkpoint_factory import make_random
from tests.evidence.recorded import recorded
from tests.hf.reference import load
from tests.small_models import SMALL

LENGTHS, WIDTH, PROMPT = (4, 12, 9, 6), 12, 10


def _rows(*, at_left: bool) -> tuple[Tensor, Tensor]:
    """Ids and mask, int64 [4, 12]: as many sequences as there are heads."""
    ids, mask = torch.zeros(2, len(LENGTHS), WIDTH, dtype=torch.int64)
    random = torch.Generator().manual_seed(5)
    for row, length in enumerate(LENGTHS):
        columns = slice(WIDTH - length, WIDTH) if at_left else slice(length)
        ids[row, columns], mask[row, columns] = torch.randint(1, 300, (length,), generator=random), 1
    return ids, mask


def _captured(program: PreTrainedModel, folder: Path, rows: tuple[Tensor, Tensor], ends: Sequence[int]) -> Path:
    """The rows in steps that end there; one step needs no cache."""
    (ids, mask), cache = rows, DynamicCache(config=program.config) if len(ends) > 1 else None
    with recorded(folder, level="op,module"), torch.no_grad():
        for start, end in zip((0, *ends[:-1]), ends, strict=True):
            positions = (mask[:, :end].cumsum(-1) - 1).clamp_min(0)[:, start:]
            program(
                ids[:, start:end], attention_mask=mask[:, :end], position_ids=positions, past_key_values=cache,
                use_cache=cache is not None,
            )  # fmt: skip
    return folder


def _compared(name: str, folder: Path, ends: Sequence[int]) -> DiffReport:
    checkpoint = make_random({**SMALL[name], "num_hidden_layers": 2}, folder / "checkpoint")
    program = load(checkpoint, "hf-eager", torch.bfloat16)
    whole = _captured(program, folder / "a", _rows(at_left=False), [WIDTH])
    return diff(whole, _captured(program, folder / "b", _rows(at_left=True), ends))


@pytest.mark.parametrize("name", ["gpt_oss", "deepseek_v3"])
def test_rows_padded_at_the_other_side(name: str, tmp_path: Path) -> None:
    report = _compared(name, tmp_path, [WIDTH])
    assert (report.status, report.starts) == ("pass", ()), report.reason


@pytest.mark.parametrize("name", ["gpt_oss", "mixtral", "deepseek_v3"])
def test_a_prompt_and_two_steps_of_decoding(name: str, tmp_path: Path) -> None:
    """A GEMM of fewer rows may add up in another order (oneDNN's does with AMX): it is named, and nothing else."""
    report = _compared(name, tmp_path, [PROMPT, PROMPT + 1, WIDTH])
    begun = {(start.slot, start.orders is not None and start.orders.verdict) for start in report.starts}
    assert begun <= {("0 of aten.mm.default", "inside"), ("0 of aten.addmm.default", "inside")}, report.reason
    assert report.status == ("fail" if begun else "pass")


def test_a_softmax_over_more_padding_may_add_in_another_order(tmp_path: Path) -> None:
    """Its vectors are cut elsewhere; the orders of its sums are told by the columns that both sides have."""
    checkpoint = make_random({**SMALL["qwen3_moe"], "num_hidden_layers": 1}, tmp_path / "checkpoint")
    program, (ids, mask) = load(checkpoint, "hf-eager", torch.bfloat16), _rows(at_left=False)
    narrow = _captured(program, tmp_path / "a", (ids, mask), [WIDTH])
    wider = [torch.cat([x, x.new_zeros(len(x), 7)], 1) for x in (ids, mask)]
    report = diff(narrow, _captured(program, tmp_path / "b", (wider[0], wider[1]), [WIDTH + 7]))
    begun = {(start.slot, start.orders.verdict) for start in report.starts}
    assert begun <= {("0 of aten._softmax.default", "inside")}
    assert report.status == ("fail" if begun else "pass")


def test_rows_that_differ_are_those_of_two_sequences_in_their_keys() -> None:
    """A pads at the right and B at the left; token 2 of the second sequence differs, and a column of padding."""
    a = Tokens(
        (2, 3), (TokenSequence((1, 2), (0, 1), keys=(0, 1)), TokenSequence((4, 5, 6), (3, 4, 5), keys=(0, 1, 2))), 3
    )
    b = Tokens(
        (2, 4), (TokenSequence((1, 2), (2, 3), keys=(2, 3)), TokenSequence((4, 5, 6), (5, 6, 7), keys=(1, 2, 3))), 4
    )
    shared = torch.tensor([0, 1, 3, 4, 5]), torch.tensor([2, 3, 5, 6, 7])
    ours, theirs = torch.zeros(6, 3), torch.zeros(8, 4)
    ours[5, 1], theirs[2, 0] = 1.0, 9.0
    parts = KeyColumns(a, b, shared).differing((ours, theirs), (*shared, *shared))
    assert parts is not None
    assert [part.rows.tolist() for part in parts] == [[5], [7]]
    assert [part.of(x).tolist() for part, x in zip(parts, (ours, theirs), strict=True)] == [[[0, 1, 0]], [[0, 0, 0]]]
