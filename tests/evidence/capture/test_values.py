"""Which values a capture tells apart, which it digests, and what it says of those it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import moeparity
from moeparity.evidence.trace.digest import Watch, row_digests, value_digest
from moeparity.evidence.trace.reader import RankTrace, open_trace
from moeparity.evidence.trace.records import Call
from moeparity.numerics.bits import same_bits


def captured(folder: Path, program: Callable[[], object], **options: Any) -> RankTrace:
    """The trace of a program of one rank."""
    with moeparity.capture(folder, **options):
        program()
    return open_trace(folder).ranks[0]


def calls(trace: RankTrace, name: str) -> list[Call]:
    return [call for call in trace.contents.calls if call.name.startswith(name)]


def test_an_op_has_its_inputs_outputs_scalars_and_digests(tmp_path: Path) -> None:
    left, right = torch.randn(5, 3), torch.randn(5, 3)
    trace = captured(tmp_path / "t", lambda: torch.add(left, right, alpha=2))
    (call,) = trace.contents.calls
    values = trace.contents.values
    assert (call.level, call.name, call.scalars) == ("op", "aten.add.Tensor", {"alpha": 2})
    for slot, tensor in (("0", left), ("1", right)):
        value = values[call.inputs[slot]]
        rows = trace.rows(value)
        assert rows is not None
        assert torch.equal(rows, row_digests(tensor))
        assert value.digest == value_digest(rows, tensor.shape, "float32")
    result = values[call.outputs["0"]]
    expected = left + 2 * right
    assert result.digest == value_digest(row_digests(expected), expected.shape, "float32")
    assert result.stats is not None
    assert result.stats["max"] == expected.max().item()
    assert result.stats["absmax"] == expected.abs().max().item()


def test_what_torch_has_only_marked_as_conjugate_or_negative_is_a_value_of_its_own(tmp_path: Path) -> None:
    class Given(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.real + x.imag if x.is_complex() else x + 1

    plain = torch.view_as_complex(torch.randn(3, 2))
    arguments = (plain, plain.conj(), plain.conj().imag)

    def program() -> None:
        for x in arguments:
            Given()(x)

    trace = captured(tmp_path / "t", program, level="module", save="*")
    numbers = [call.inputs["0"] for call in calls(trace, "Given")]
    assert len(set(numbers)) == 3
    for x, number in zip(arguments, numbers, strict=True):
        tensor = trace.tensor(trace.contents.values[number])
        assert tensor is not None
        assert same_bits(tensor, x.resolve_conj().resolve_neg())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_program_of_nested_tensors_goes_on_and_a_note_says_what_has_no_digest(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 3)

    def program() -> None:
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], requires_grad=True)
        layer(nested).to_padded_tensor(0.0).sum().backward()

    for levels in ("op,module", "module,gradient"):
        trace = captured(tmp_path / levels, program, level=levels, save="*")
        assert any("nested" in note for note in trace.contents.notes)
        assert calls(trace, "Linear.weight" if "gradient" in levels else "aten")


def test_a_view_has_its_base_and_no_digest_and_the_bits_it_looks_at(tmp_path: Path) -> None:
    base = torch.randn(6, 4)

    def program() -> None:
        product = base * 2
        product.t().contiguous()
        product[2:4].exp()

    trace = captured(tmp_path / "t", program, save="*")
    transposed = trace.contents.values[calls(trace, "aten.clone")[0].inputs["0"]]
    part = trace.contents.values[calls(trace, "aten.exp")[0].inputs["0"]]
    product = calls(trace, "aten.mul")[0].outputs["0"]
    assert (transposed.base, transposed.digest, part.base, part.digest) == (product, None, product, None)
    whole, cut = trace.tensor(transposed), trace.tensor(part)
    assert whole is not None
    assert cut is not None
    assert same_bits(whole, (base * 2).t())
    assert same_bits(cut, (base * 2)[2:4])


def test_what_was_digested_is_not_digested_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from moeparity.evidence.capture import recorder

    digested = []

    def counted(tensor: torch.Tensor, watch: Watch | None = None) -> torch.Tensor:
        digested.append(tuple(tensor.shape))
        return row_digests(tensor, watch)

    monkeypatch.setattr(recorder, "row_digests", counted)
    weight, hidden = torch.randn(7, 7), torch.randn(2, 7)

    def program() -> None:
        for _ in range(3):
            torch.nn.functional.linear(hidden, weight)

    trace = captured(tmp_path / "t", program)
    assert digested.count((7, 7)) == 1
    assert len({call.inputs["0"] for call in calls(trace, "aten.mm")}) == 1


def _in_place(tensor: torch.Tensor) -> None:
    tensor.mul_(3)


def _data(tensor: torch.Tensor) -> None:
    tensor.data.mul_(3)


def _under_no_grad(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(3)


def _out(tensor: torch.Tensor) -> None:
    torch.mul(tensor, 3, out=tensor)


def _foreach(tensor: torch.Tensor) -> None:
    torch._foreach_mul_([tensor], 3)


def _numpy(tensor: torch.Tensor) -> None:
    tensor.numpy()[:] *= 3
    torch._C._autograd._unsafe_set_version_counter((tensor,), (tensor._version + 1,))


@pytest.mark.parametrize("write", [_in_place, _data, _under_no_grad, _out, _foreach, _numpy])
def test_a_value_that_was_written_is_another_value(tmp_path: Path, write: Callable[[torch.Tensor], None]) -> None:
    tensor = torch.randn(3, 4)

    def program() -> None:
        tensor.exp()
        write(tensor)
        tensor.exp()

    trace = captured(tmp_path / "t", program)
    before, after = (trace.contents.values[call.inputs["0"]] for call in calls(trace, "aten.exp"))
    assert before.storage == after.storage
    assert after.digest == value_digest(row_digests(tensor), (3, 4), "float32")
    assert before.digest != after.digest


def test_a_storage_at_the_address_of_a_freed_one_is_another(tmp_path: Path) -> None:
    digests = []

    def program() -> None:
        for turn in range(20):
            tensor = torch.full((64,), float(turn))
            digests.append(value_digest(row_digests(tensor), (64,), "float32"))
            tensor.exp()
            del tensor

    trace = captured(tmp_path / "t", program)
    inputs = [trace.contents.values[call.inputs["0"]] for call in calls(trace, "aten.exp")]
    assert [value.digest for value in inputs] == digests
    assert len({value.storage for value in inputs}) == 20


def test_what_was_allocated_has_no_digest_until_it_is_written(tmp_path: Path) -> None:
    def program() -> None:
        buffer = torch.empty(4, 3)
        buffer[:2] = 1
        buffer.exp()
        buffer[2:] = 2
        buffer.exp()

    trace = captured(tmp_path / "t", program)
    (allocated,) = calls(trace, "aten.empty")
    value = trace.contents.values[allocated.outputs["0"]]
    assert (value.label, value.digest) == ("unwritten", None)
    half, whole = (trace.contents.values[call.inputs["0"]] for call in calls(trace, "aten.exp"))
    assert (half.label, whole.label) == ("partly", None)
    expected = torch.tensor([[1.0] * 3] * 2 + [[2.0] * 3] * 2)
    assert whole.digest == value_digest(row_digests(expected), (4, 3), "float32")


def test_random_ops_are_labelled_and_dropout_that_drops_nothing_is_none(tmp_path: Path) -> None:
    query = torch.randn(1, 1, 4, 8)

    def program() -> None:
        torch.nn.functional.dropout(query, 0.5)
        torch.nn.functional.scaled_dot_product_attention(query, query, query)

    trace = captured(tmp_path / "t", program)
    drawn = [call for call in trace.contents.calls if "random" in call.flags]
    assert len(drawn) == 1
    assert "drop" in drawn[0].name or "bernoulli" in drawn[0].name
    results = {**drawn[0].outputs, **drawn[0].written}
    labels = {trace.contents.values[value].label for value in results.values()}
    assert labels == {"random"}


def test_a_nan_and_an_infinity_are_flagged_where_they_are_born_and_nowhere_else(tmp_path: Path) -> None:
    zeros = torch.zeros(2, 2)

    def program() -> None:
        infinite = (zeros + 1) / zeros
        (infinite - infinite).exp()

    trace = captured(tmp_path / "t", program)
    assert [(call.name, call.flags) for call in trace.contents.calls] == [
        ("aten.add.Tensor", ()),
        ("aten.div.Tensor", ("inf_born",)),
        ("aten.sub.Tensor", ("nan_born",)),
        ("aten.exp.default", ()),
    ]
    last = trace.contents.values[trace.contents.calls[-1].outputs["0"]]
    assert last.stats == {"nan": 4.0, "inf": 0.0}


class Doubling(torch.nn.Module):
    """Overwrites what it is given by place and by name."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(1)
        return x.mul_(2)


@pytest.mark.parametrize("level", ["module", "op,module"])
def test_a_write_under_inference_mode_makes_another_value(tmp_path: Path, level: str) -> None:
    """Torch counts none there. Where no ops are seen either, what may have been overwritten is not shown."""
    with torch.inference_mode():
        trace = captured(tmp_path / "t", lambda: Doubling()(torch.ones(3), y=torch.ones(3)), level=level, save="*")
        (call,) = calls(trace, "Doubling")
        values = trace.contents.values
        read, doubled = trace.tensor(values[call.inputs["0"]]), trace.tensor(values[call.outputs["0"]])
    assert read is not None
    assert doubled is not None
    assert (read.tolist(), doubled.tolist()) == ([1.0] * 3, [2.0] * 3)
    assert "y" not in call.inputs
    assert any("inference mode" in note for note in trace.contents.notes) == (level == "module")
