"""A trace reads back as it was written, also when its writer was killed; what is damaged is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from moeparity.errors import TraceError
from moeparity.evidence.trace import digest
from moeparity.evidence.trace.digest import row_digests, value_digest
from moeparity.evidence.trace.reader import RankTrace, open_trace
from moeparity.evidence.trace.records import Call, Head, Note, Value
from moeparity.evidence.trace.writer import TraceWriter
from moeparity.numerics.bits import same_bits

HIDDEN = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(7)).bfloat16()


def _written(folder: Path, *, whole: bool = True, buffer: int = 1 << 20) -> RankTrace:
    """A trace of one call with a kept input, a view of it, and an output of which rows are kept."""
    writer = TraceWriter(folder, Head(made_by="a test", rank=1, ranks=2, environment={"torch": "2"}), buffer=buffer)
    rows = row_digests(HIDDEN)
    digest = value_digest(rows, HIDDEN.shape, "bfloat16")
    writer.value(
        Value(id=0, dtype="bfloat16", shape=(3, 4, 8), strides=(32, 8, 1), digest=digest, stats={"max": math.inf}),
        rows=rows,
        tensor=HIDDEN,
    )
    writer.value(Value(id=1, dtype="bfloat16", shape=(4, 3), strides=(8, 32), offset=2, base=0))
    writer.note("a sentence")
    stack = writer.stack(["a.py:1 f", "b.py:2 g"])
    assert writer.stack(["a.py:1 f", "b.py:2 g"]) == stack
    writer.call(
        Call(
            id=0,
            level="op",
            name="aten.mm",
            path="m",
            inputs={"0": 0},
            outputs={"0": 1},
            stack=stack,
            flags=("random",),
        )
    )
    writer.close(whole=whole)
    return open_trace(folder).ranks[0]


@pytest.mark.parametrize("buffer", [1, 1 << 20])
def test_a_trace_reads_back_as_it_was_written(tmp_path: Path, buffer: int) -> None:
    trace = _written(tmp_path / "t", buffer=buffer)
    contents = trace.contents
    assert (trace.head.rank, trace.head.ranks, trace.head.environment) == (1, 2, {"torch": "2"})
    (call,) = contents.calls
    assert (call.name, call.inputs, call.outputs, call.flags) == ("aten.mm", {"0": 0}, {"0": 1}, ("random",))
    assert contents.stacks[0].frames == ("a.py:1 f", "b.py:2 g")
    assert contents.notes == ("a sentence",)
    assert contents.whole
    assert contents.values[0].stats == {"max": math.inf}


def test_tensors_rows_and_views_of_kept_values_have_their_bits(tmp_path: Path) -> None:
    trace = _written(tmp_path / "t")
    whole, view = trace.contents.values[0], trace.contents.values[1]
    tensor, rows, part = trace.tensor(whole), trace.rows(whole), trace.tensor(view)
    assert tensor is not None
    assert same_bits(tensor, HIDDEN)
    assert rows is not None
    assert torch.equal(rows, row_digests(HIDDEN))
    assert part is not None
    assert same_bits(part, HIDDEN.as_strided((4, 3), (8, 32), 2))
    assert trace.rows(view) is None


def test_a_trace_cut_in_its_last_line_holds_what_lies_before(tmp_path: Path) -> None:
    trace = _written(tmp_path / "t", whole=False)
    events = trace.folder / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-9])
    again = RankTrace(trace.folder)
    assert not again.contents.whole
    assert [type(record) for record in again.records()][:3] == [Value, Value, Note]
    assert again.contents.calls == ()


def test_what_is_damaged_is_refused_by_file_and_line(tmp_path: Path) -> None:
    trace = _written(tmp_path / "t")
    events = trace.folder / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    for damaged, words in (
        ("{\n", "events.jsonl:2: no JSON"),
        ('{"e":"picture"}\n', "events.jsonl:2: no record of a trace"),
        ('{"e":"value","id":3,"colour":1}\n', "expected the fields"),
    ):
        events.write_text(lines[0] + damaged + "".join(lines[2:]))
        with pytest.raises(TraceError, match=words):
            list(RankTrace(trace.folder).records())
    events.unlink()
    with pytest.raises(TraceError, match="can't be read: No such file"):
        list(RankTrace(trace.folder).records())


def test_a_missing_or_damaged_file_of_tensors_is_named_with_its_value(tmp_path: Path) -> None:
    trace = _written(tmp_path / "t")
    value = trace.contents.values[0]
    path = trace.folder / "tensors" / "000000.safetensors"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(TraceError, match="value 0 can't be read"):
        trace.tensor(value)
    path.unlink()
    with pytest.raises(TraceError, match=r"000000\.safetensors: can't be read"):
        trace.tensor(value)


def test_a_head_that_is_none_and_a_folder_without_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace: expected a folder with rank-0"):
        open_trace(tmp_path)
    trace = _written(tmp_path / "t")
    head = trace.folder / "head.json"
    for text, words in (
        ("{", "no JSON"),
        ("[]", "schema None"),
        (json.dumps({"schema": "moeparity.trace/9"}), "this version reads moeparity.trace/1"),
        (json.dumps({"schema": "moeparity.trace/1"}), "expected the fields"),
    ):
        head.write_text(text)
        with pytest.raises(TraceError, match=words):
            RankTrace(trace.folder)
    head.unlink()
    with pytest.raises(TraceError, match="No such file"):
        RankTrace(trace.folder)


def test_a_folder_that_holds_that_rank_already_is_refused(tmp_path: Path) -> None:
    _written(tmp_path / "t")
    with pytest.raises(TraceError, match="there is something already"):
        _written(tmp_path / "t")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_rows_have_equal_digests_where_bits_are_equal_and_no_others(dtype: torch.dtype) -> None:
    tensor = (torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(3)) * 9).to(dtype)
    tensor[4] = tensor[1]
    rows = row_digests(tensor).reshape(5, 7)
    bits = tensor.contiguous().view(torch.uint8).reshape(35, -1)
    equal = (bits[:, None] == bits[None]).all(-1)
    assert torch.equal(rows.reshape(35)[:, None] == rows.reshape(35)[None], equal)
    assert torch.equal(row_digests(tensor.transpose(0, 1)).reshape(7, 5).T, rows)


def test_a_sign_an_exchange_of_columns_or_of_rows_and_a_shape_change_the_digest() -> None:
    tensor = torch.randn(4, 16, generator=torch.Generator().manual_seed(3))
    others = [tensor.clone() for _ in range(4)]
    others[0][1, 3] = -others[0][1, 3]
    others[1] = others[1][:, torch.arange(16).roll(1)]
    others[2] = others[2].flip(0)
    others[3][0, 5] = math.nan
    digests = [value_digest(row_digests(each), each.shape, "float32") for each in (tensor, *others)]
    digests.append(value_digest(row_digests(tensor), (2, 2, 16), "float32"))
    digests.append(value_digest(row_digests(tensor.view(torch.int32)), tensor.shape, "int32"))
    assert len(set(digests)) == len(digests)
    zeros = torch.zeros(2, 4), -torch.zeros(2, 4)
    assert not torch.equal(row_digests(zeros[0]), row_digests(zeros[1]))


def test_signs_flipped_in_pairs_change_the_digest() -> None:
    """A sum of words times odd numbers would not see two highest bits that change together."""
    words = torch.arange(1, 9)
    flipped = words.clone()
    flipped[[2, 5]] ^= -(2**63)
    assert row_digests(words).item() != row_digests(flipped).item()


def test_what_adds_floats_and_what_adds_bytes_have_equal_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and keys at both ends of their ranges: their products are whole numbers that floats hold exactly."""
    segments = torch.full((3, 1000), -128, dtype=torch.int8)
    segments[1], segments[2] = 127, torch.arange(1000).to(torch.int8)
    keys = digest._keys(1000, segments.device)
    assert (int(keys.min()), int(keys.max()), int((keys == 0).sum())) == (-63, 63, 0)
    assert torch.equal(digest._products_of_floats(segments).long(), segments.long() @ keys.long())
    rows = row_digests(segments), row_digests(HIDDEN)
    opposite = not digest._multiplies_bytes()
    monkeypatch.setattr(digest, "_multiplies_bytes", lambda: opposite)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(row_digests(segments), rows[0])
        assert torch.equal(row_digests(HIDDEN), rows[1])


@pytest.mark.parametrize("width", [1, 7, 1021, 1024, 1500, 4099, (1 << 18) + 3])
def test_any_changed_element_of_a_row_of_any_width_changes_its_digest_alone(width: int) -> None:
    tensor = torch.zeros(9, width)
    tensor[::2] = torch.randn(width, generator=torch.Generator().manual_seed(width))
    before = row_digests(tensor)
    assert len(before.unique()) == 2
    for row, column in ((0, 0), (3, width // 2), (8, width - 1)):
        changed = tensor.clone()
        changed[row, column] += 1
        assert (row_digests(changed) != before).nonzero().tolist() == [[row]]


def test_pieces_shown_while_digests_are_taken_hold_all_that_is_not_zero() -> None:
    tensor = torch.zeros(64, 4096, dtype=torch.bfloat16)
    tensor[40, 7], tensor[63, 4095] = -3, 5
    shown: list[torch.Tensor] = []
    row_digests(tensor, shown.append)
    together = torch.cat(shown)
    assert together.dtype == torch.bfloat16
    assert together[together != 0].tolist() == [-3, 5]


def test_empty_values_and_scalars_have_digests() -> None:
    assert row_digests(torch.zeros(0, 8)).shape == (0,)
    assert row_digests(torch.zeros(3, 0)).shape in ((0,), (3,))
    assert row_digests(torch.tensor(2.0)).shape == (1,)
    assert len(value_digest(row_digests(torch.zeros(0, 8)), (0, 8), "float32")) == 16


def test_a_row_wider_than_what_is_mixed_at_once_has_one_digest() -> None:
    wide = torch.randn(2, (1 << 17) + 5, generator=torch.Generator().manual_seed(1))
    changed = wide.clone()
    changed[1, -1] = 0
    same = row_digests(wide) == row_digests(changed)
    assert same.tolist() == [True, False]


def test_a_view_of_a_value_whose_axes_lie_in_another_order_has_its_elements(tmp_path: Path) -> None:
    """Attention gives [B, T, heads, width] as a transposed [B, heads, T, width]; what reads it joins the last two."""
    heads = torch.randn(2, 3, 4, 5).transpose(1, 2)
    joined = heads.transpose(1, 2).reshape(2, 3, 20)
    assert joined.data_ptr() == heads.data_ptr()
    with TraceWriter(tmp_path / "t", Head(made_by="a test")) as writer:
        for number, value in enumerate((heads, joined)):
            strides = tuple(value.stride())
            base = 0 if number else None
            record = Value(id=number, dtype="float32", shape=tuple(value.shape), strides=strides, base=base)
            writer.value(record, tensor=None if number else value)
    trace = open_trace(tmp_path / "t").ranks[0]
    part = trace.tensor(trace.contents.values[1])
    assert part is not None
    assert same_bits(part, joined)


def test_a_column_has_digests_of_its_own_bits() -> None:
    column = torch.arange(12).reshape(4, 3)[:, 1:2]
    turned = torch.arange(4).reshape(1, 4).t()
    assert torch.equal(row_digests(column), row_digests(column.clone()))
    assert torch.equal(row_digests(turned), row_digests(turned.clone(memory_format=torch.contiguous_format)))


def test_a_single_element_of_a_strided_tensor_is_kept(tmp_path: Path) -> None:
    """Such as the last column of one row, which torch calls contiguous whatever its stride."""
    writer = TraceWriter(tmp_path / "trace", Head(made_by="a test"))
    column = torch.arange(64).reshape(2, 32)[:1, -1]
    writer.value(Value(id=0, dtype="int64", shape=(1,), strides=column.stride()), tensor=column)
    writer.close()
    rank = open_trace(tmp_path / "trace").ranks[0]
    assert column.stride() == (32,)
    assert rank.tensor(rank.contents.values[0]).tolist() == [31]
