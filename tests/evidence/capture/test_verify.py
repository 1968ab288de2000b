"""A program held to its trace: what is said of the first call that gave other values, and what of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import moeparity
from moeparity.errors import MismatchError, MoeparityError, TraceError
from moeparity.evidence.capture.verify.report import RankReport, read, text, write


def _net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))


def _train(*, planted: float = 0.0, steps: int = 3) -> None:
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        hidden = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        result = net(hidden)
        shifted = result + torch.tensor(planted if step == 1 else 0.0)
        shifted.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "trace"
    with moeparity.capture(folder):
        _train()
    return folder


def _verified(recorded: Path, **program: Any) -> RankReport:
    with moeparity.capture(verify=recorded) as capture:
        _train(**program)
    assert capture.verifier is not None
    return capture.verifier.report


def test_the_same_program_again_is_as_recorded(recorded: Path) -> None:
    report = _verified(recorded)
    assert report.exit_code == 0
    assert report.compared > 60
    assert (report.differing, report.unmatched, report.missing, report.untold) == (0, 0, 0, 0)
    assert text(report) == f"rank 0: {report.compared:,} calls compared, all as recorded"


def test_the_first_difference_is_named_with_values_and_both_stacks(recorded: Path) -> None:
    report = _verified(recorded, planted=1e-3)
    assert report.exit_code == 1
    first = report.first
    assert first is not None
    assert (first.step, first.name, first.path, first.phase) == (1, "aten.add.Tensor", "", "forward")
    # What `torch.tensor` holds comes from no op: the addition is the first call that meets it.
    assert (first.inputs, set(first.slots)) == ("differ", {"input 1", "output 0"})
    line = 1 + Path(__file__).read_text().splitlines().index(
        "        shifted = result + torch.tensor(planted if step == 1 else 0.0)"
    )
    for stack in (first.stack, first.recorded_stack):
        assert stack[-1] == f"{__file__}:{line} _train"
    words = text(report)
    assert "the first that differs" in words
    assert "max 0.001" in words
    assert report.root is None or report.root.step > 1


def test_an_op_that_computes_otherwise_is_told_from_one_that_reads_what_differs(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = torch.nn.functional.gelu
    monkeypatch.setattr(torch.nn.functional, "gelu", lambda hidden, **_: plain(hidden, approximate="tanh"))
    report = _verified(recorded)
    assert report.first is not None
    assert report.first == report.root
    assert (report.first.step, report.first.name, report.first.path) == (0, "aten.gelu.default", "1")
    assert report.first.inputs == "equal"
    assert report.first.scalars == {"approximate": (None, "tanh")}


def test_calls_that_only_one_side_has_are_counted_and_no_parity_is_claimed(recorded: Path) -> None:
    shorter = _verified(recorded, steps=2)
    assert shorter.differing == shorter.unmatched == 0
    assert shorter.missing > 10
    assert "step 2" in shorter.first_missing
    assert shorter.exit_code == 1
    longer = _verified(recorded, steps=4)
    assert longer.missing == longer.differing == 0
    assert longer.unmatched > 10
    assert "step 3" in longer.first_unmatched
    assert longer.exit_code == 1
    assert f"{__file__}:" in longer.first_unmatched


def test_nothing_compared_is_no_parity(recorded: Path) -> None:
    with moeparity.capture(verify=recorded) as capture:
        torch.ones(3).cos()
    report = capture.verifier.report
    assert report.exit_code == 2
    assert "no call of the program is in the record" in text(report)


def test_statistics_may_differ_by_a_tolerance_and_nans_may_not(recorded: Path) -> None:
    with moeparity.capture(verify=recorded, atol=1e-2, rtol=1e-2) as capture:
        _train(planted=1e-6)
    report = capture.verifier.report
    assert report.exit_code == 0
    assert 0 < report.near < report.compared
    assert text(report).startswith(
        f"rank 0: {report.compared} calls compared, none differs by more than the tolerance; "
        f"{report.near} have other bits, of which statistics only were compared"
    )
    with moeparity.capture(verify=recorded, atol=1e9) as capture:
        _train(planted=float("nan"))
    assert capture.verifier.report.exit_code == 1


def test_rows_in_another_order_pass_under_a_tolerance_and_the_report_says_what_was_compared(tmp_path: Path) -> None:
    rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(5))
    with moeparity.capture(tmp_path / "t"):
        rows.exp()
    with moeparity.capture(verify=tmp_path / "t", rtol=1e-3) as capture:
        rows.flip(0).contiguous().exp()
    report = capture.verifier.report
    assert (report.compared, report.near, report.differing) == (1, 1, 0)
    assert "all as recorded" not in text(report)
    with moeparity.capture(verify=tmp_path / "t") as capture:
        rows.flip(0).contiguous().exp()
    assert capture.verifier.report.differing == 1


def _noisy(noise: torch.Tensor) -> None:
    hidden = torch.arange(12.0).view(3, 4)
    noisy = hidden + noise
    noisy.t().contiguous()
    torch.nn.functional.gelu(noisy)


def test_elements_are_compared_where_the_record_has_whole_values_and_the_report_says_so(tmp_path: Path) -> None:
    none, near, far = torch.zeros(3, 4), torch.full((3, 4), 1e-5), torch.zeros(3, 4)
    far[1, 2] = 0.5
    with moeparity.capture(tmp_path / "whole", save="*"):
        _noisy(none)
    with moeparity.capture(tmp_path / "half", save="aten.add.Tensor"):
        _noisy(none)
    reports = {}
    for name, noise in (("near", near), ("far", far)):
        for recorded in ("whole", "half"):
            with moeparity.capture(verify=tmp_path / recorded, atol=1e-3) as capture:
                _noisy(noise)
            reports[name, recorded] = capture.verifier.report
    # 6.5 in place of 6 moves neither bound; its mean moves by 0.04.
    with moeparity.capture(verify=tmp_path / "whole", atol=0.1) as capture:
        _noisy(far)
    assert capture.verifier.report.first.name == "aten.add.Tensor"
    assert set(capture.verifier.report.first.slots) >= {"output 0"}
    whole, half = reports["near", "whole"], reports["near", "half"]
    assert (whole.differing, whole.near, whole.near_by_elements) == (0, 3, 3)
    assert text(whole).endswith("; 3 have other bits, of which each element was compared")
    assert (half.differing, half.near, half.near_by_elements) == (0, 3, 1)
    assert text(half).endswith("; 3 have other bits: of 1 each element was compared, of 2 statistics only")
    assert reports["far", "whole"].differing == 3
    assert reports["far", "half"].differing > 0


def test_inputs_within_the_tolerance_are_not_said_to_have_equal_bits(tmp_path: Path) -> None:
    rows = torch.full((2, 3), 1.0)
    with moeparity.capture(tmp_path / "t"):
        rows * 1e6
    with moeparity.capture(verify=tmp_path / "t", atol=1e-3) as capture:
        (rows + 1e-4) * 1e6
    report = capture.verifier.report
    assert report.root is not None
    assert report.root.inputs == "near"
    assert "its inputs have other bits and lie within the tolerance, its results don't" in text(report)


def test_a_program_stops_at_the_first_difference_where_it_is_asked_to(recorded: Path) -> None:
    steps = []

    def program() -> None:
        for _ in range(100):
            steps.append(1)
            _train(planted=1e-3)

    with (
        pytest.raises(MismatchError, match=r"step 1, aten\.add\.Tensor"),
        moeparity.capture(verify=recorded, stop=True),
    ):
        program()
    assert len(steps) < 4


def test_a_trace_of_fewer_ranks_has_nothing_to_compare(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    report = _verified(recorded)
    assert report.exit_code == 2
    assert "no rank 3" in text(report)


def test_a_report_reads_back(recorded: Path, tmp_path: Path) -> None:
    report = _verified(recorded, planted=1e-3)
    write(report, tmp_path / "report.json")
    assert text(read(tmp_path / "report.json")) == text(report)


def test_what_can_not_be_verified_is_said(tmp_path: Path) -> None:
    with pytest.raises(MoeparityError, match="neither a folder to write to nor a trace to verify"):
        moeparity.capture()
    with pytest.raises(TraceError, match="no trace"), moeparity.capture(verify=tmp_path):
        pass
