"""What a capture holds while it runs, what it writes when it is told to keep whole tensors, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import moeparity
from moeparity.errors import MoeparityError, TraceError
from moeparity.evidence.capture.context import Capture
from moeparity.evidence.trace.digest import row_digests
from moeparity.evidence.trace.tensors import TensorFile
from moeparity.numerics.bits import same_bits
from tests.evidence.capture.test_values import calls, captured


def _remembered(capture: Capture) -> int:
    """Storages, values of them, and calls that a capture remembers."""
    recorder = capture._recorder
    return len(recorder.storages) + sum(len(each.values) for each in recorder.storages) + len(recorder._returned)


def test_what_is_held_does_not_grow_with_the_steps(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    sizes = []
    with moeparity.capture(tmp_path / "t") as capture:
        capture._recorder.most_calls = 100
        for step in range(120):
            model(torch.full((4, 8), float(step))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 40 == 39:
                capture.flush()
                sizes.append(_remembered(capture))
    assert sizes[2] <= sizes[1] + 20
    assert len(list((tmp_path / "t" / "rank-0" / "tensors").iterdir())) > 20


def test_a_slice_of_what_is_not_written_is_remembered_for_the_last_few_only(tmp_path: Path) -> None:
    data = torch.randn(2000)

    def program() -> None:
        data.sum()
        for start in range(1500):
            data[start : start + 2].exp()

    with moeparity.capture(tmp_path / "t", level="op", stacks=False) as capture:
        program()
        assert _remembered(capture) < 5000 + 1000
        (storage,) = [each for each in capture._recorder.storages if len(each.values) > 100]
        assert len(storage.values) <= 256


def test_whole_tensors_are_kept_up_to_the_budget_and_a_note_says_where_it_ended(tmp_path: Path) -> None:
    hidden = torch.randn(10, 25)
    trace = captured(tmp_path / "t", lambda: hidden.exp().cos().sin().tan(), save="aten.*", budget=2500)
    whole_values = [value for value in trace.contents.values.values() if value.tensor]
    assert len(whole_values) == 2
    first = trace.tensor(trace.contents.values[calls(trace, "aten.exp")[0].outputs["0"]])
    assert first is not None
    assert same_bits(first, hidden.exp())
    (note,) = trace.contents.notes
    assert note.startswith("the budget of 2,500 bytes for whole tensors was used up in step 0")


def test_a_selector_keeps_what_it_names_and_what_was_seen_before(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    hidden = torch.randn(3, 4)
    trace = captured(tmp_path / "t", lambda: model(hidden), save=["1"])
    (second,) = [call for call in trace.contents.calls if call.level == "module" and call.path == "1"]
    tensor = trace.tensor(trace.contents.values[second.inputs["0"]])
    assert tensor is not None
    assert same_bits(tensor, model[0](hidden))
    (first,) = [call for call in trace.contents.calls if call.level == "module" and call.path == "0"]
    assert trace.tensor(trace.contents.values[first.inputs["0"]]) is None


def test_a_file_of_tensors_is_what_safetensors_reads_and_zeros_take_no_room(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    file = TensorFile(path)
    tensors = {f"a name that is long {number}": torch.randn(number % 5, 3).bfloat16() for number in range(300)}
    middle, end = torch.zeros(1 << 20), torch.zeros((1 << 20) + 3)
    middle[500_000], end[0], end[300_000] = 1, -0.0, float("nan")
    tensors |= {"begins and ends with zeros": middle, "ends with zeros": end, "from an odd place": end[1:], "not": end}
    for key, tensor in tensors.items():
        file.add(key, tensor)
    assert not path.exists()
    file.close()
    with safe_open(path, framework="pt") as tensors_file:
        assert set(tensors_file.keys()) == set(tensors)
        assert all(same_bits(tensors_file.get_tensor(key), tensor) for key, tensor in tensors.items())
    status = path.stat()
    assert status.st_size > 4 * middle.nbytes
    assert status.st_blocks * 512 < 1.5 * middle.nbytes  # what lies at an odd place is written as it is


def test_more_tensors_than_a_header_names_go_to_further_files(tmp_path: Path) -> None:
    hidden = torch.randn(3, 5)

    def program() -> None:
        for number in range(1200):
            hidden.add(number)

    trace = captured(tmp_path / "t", program, save="*", stacks=False)
    outputs = [trace.contents.values[call.outputs["0"]] for call in trace.contents.calls]
    assert len({value.tensor_file for value in outputs}) > 1
    for number, value in enumerate(outputs):
        whole, rows = trace.tensor(value), trace.rows(value)
        assert whole is not None
        assert rows is not None
        assert same_bits(whole, hidden.add(number))
        assert torch.equal(rows, row_digests(whole))


def test_a_folder_that_holds_a_trace_and_a_second_capture_are_refused(tmp_path: Path) -> None:
    captured(tmp_path / "t", lambda: torch.ones(2).exp())
    with pytest.raises(TraceError, match="there is something already"), moeparity.capture(tmp_path / "t"):
        pass
    with (
        moeparity.capture(tmp_path / "u"),
        pytest.raises(MoeparityError, match="another capture is going on"),
        moeparity.capture(tmp_path / "v"),
    ):
        pass
    captured(tmp_path / "w", lambda: torch.ones(2).exp())


def test_a_program_that_raises_leaves_a_trace_without_an_end(tmp_path: Path) -> None:
    def program() -> None:
        torch.ones(2, 3).exp()
        torch.ones(2, 3) @ torch.ones(2, 3)

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        captured(tmp_path / "t", program)
    from moeparity.evidence.trace.reader import open_trace

    contents = open_trace(tmp_path / "t").ranks[0].contents
    assert not contents.whole
    assert contents.calls[-1].flags == ("raised",)


@pytest.mark.parametrize("batch", [1, 4])
def test_one_and_two_threads_give_traces_of_the_same_calls(tmp_path: Path, batch: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(768, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 64))
    hidden = torch.randn(batch, 768)
    traces = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            traces.append(captured(tmp_path / str(threads), lambda: model(hidden)))
        finally:
            torch.set_num_threads(1)
    keys = [[(call.level, call.name, call.path, call.nth) for call in trace.contents.calls] for trace in traces]
    assert keys[0] == keys[1]
    assert [trace.head.environment["threads"] for trace in traces] == ["1", "2"]
