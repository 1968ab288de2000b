"""Where a call stands: module path, phase, step, and whose gradient it is."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

import moeparity
from tests.evidence.capture.test_values import calls, captured


class Expert(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(6, 6)

    def forward(self, *, hidden: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.up(hidden).sigmoid() * scale


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList([Expert(), Expert()])

    def forward(self, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": self.experts[0](hidden=hidden) + self.experts[1](hidden=hidden, scale=2.0)}


class Guarded(Block):
    """Its first expert raises, is let go, and the second one computes."""

    def forward(self, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        with contextlib.suppress(RuntimeError):
            self.experts[0](hidden=hidden[:, :1])
        return {"sum": self.experts[1](hidden=hidden)}


@pytest.mark.filterwarnings("error")
def test_behind_a_forward_that_raised_modules_have_their_own_paths(tmp_path: Path) -> None:
    model, hidden = Guarded(), torch.randn(3, 6)
    trace = captured(tmp_path / "t", lambda: model(hidden))
    modules = [call for call in trace.contents.calls if call.level == "module"]
    assert {call.path: list(call.flags) for call in modules} == {
        "": [],
        "experts.0": ["raised"],
        "experts.0.up": ["raised"],
        "experts.1": [],
        "experts.1.up": [],
    }


def test_modules_have_paths_inputs_by_name_outputs_and_what_is_inside(tmp_path: Path) -> None:
    model, hidden = Block(), torch.randn(3, 6)
    trace = captured(tmp_path / "t", lambda: model(hidden))
    modules = {call.path: call for call in trace.contents.calls if call.level == "module"}
    assert {path: call.name for path, call in modules.items()} == {
        "": "Block",
        "experts.0": "Expert",
        "experts.0.up": "Linear",
        "experts.1": "Expert",
        "experts.1.up": "Linear",
    }
    assert modules["experts.1"].scalars == {"scale": 2.0}
    assert set(modules["experts.1"].inputs) == {"hidden"}
    assert set(modules[""].outputs) == {"sum"}
    assert modules["experts.1.up"].inside == modules["experts.1"].id
    (multiply,) = [call for call in calls(trace, "aten.mul") if call.path == "experts.1"]
    assert multiply.outputs["0"] == modules["experts.1"].outputs["0"]
    assert multiply.inside == modules["experts.1"].id
    assert modules[""].id < modules["experts.0"].id < calls(trace, "aten.addmm")[0].id


def test_a_backward_op_has_the_path_and_the_call_whose_gradient_it_is(tmp_path: Path) -> None:
    model, hidden = Block(), torch.randn(3, 6)
    trace = captured(tmp_path / "t", lambda: model(hidden)["sum"].sum().backward())
    by_id = {call.id: call for call in trace.contents.calls}
    backward = [call for call in calls(trace, "aten.sigmoid_backward") if call.phase == "backward"]
    assert sorted(call.path for call in backward) == ["experts.0", "experts.1"]
    for call in backward:
        assert call.forward_call is not None
        forward = by_id[call.forward_call]
        assert (forward.name, forward.path, forward.phase) == ("aten.sigmoid.default", call.path, "forward")


def _train(model: torch.nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 6))["sum"].sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_an_optimizer_ends_a_step_and_its_ops_have_its_phase(tmp_path: Path) -> None:
    trace = captured(tmp_path / "t", lambda: _train(Block(), 3))
    roots = [call for call in trace.contents.calls if call.name == "Block"]
    assert [(call.step, call.nth) for call in roots] == [(0, 0), (1, 0), (2, 0)]
    updates = [call for call in trace.contents.calls if call.phase == "optimizer"]
    assert {call.step for call in updates} == {0, 1, 2}
    assert len({call.id for call in updates}) > 6


def test_steps_that_a_program_marks_count_and_optimizers_do_not(tmp_path: Path) -> None:
    model = Block()

    def program() -> None:
        moeparity.capture.step()
        _train(model, 2)
        moeparity.capture.step()
        model(torch.ones(2, 6))

    trace = captured(tmp_path / "t", program)
    roots = [(call.step, call.nth) for call in trace.contents.calls if call.name == "Block"]
    assert roots == [(1, 0), (1, 1), (2, 0)]
    moeparity.capture.step()


def test_only_the_steps_asked_for_are_recorded(tmp_path: Path) -> None:
    model = Block()
    trace = captured(tmp_path / "t", lambda: _train(model, 4), steps="1:3")
    assert {call.step for call in trace.contents.calls} == {1, 2}
    weights = {
        call.step: trace.contents.values[call.inputs["2"]] for call in calls(trace, "aten.addmm") if call.nth == 0
    }
    assert weights[1].base != weights[2].base


def test_the_stack_of_a_call_is_the_programs(tmp_path: Path) -> None:
    trace = captured(tmp_path / "t", lambda: Block()(torch.randn(1, 6)))
    (add,) = [call for call in calls(trace, "aten.add.Tensor") if call.path == ""]
    assert add.stack is not None
    frames = trace.contents.stacks[add.stack].frames
    line = 1 + Path(__file__).read_text().splitlines().index(
        '        return {"sum": self.experts[0](hidden=hidden) + self.experts[1](hidden=hidden, scale=2.0)}'
    )
    assert frames[-1] == f"{__file__}:{line} forward"
    assert not any("evidence/capture/dispatch" in frame for frame in frames)


def test_the_module_level_alone_has_the_same_digests(tmp_path: Path) -> None:
    model, hidden = Block(), torch.randn(3, 6)
    digests = []
    for level in ("module", "op,module"):
        trace = captured(tmp_path / level, lambda: model(hidden), level=level)
        (root,) = [call for call in trace.contents.calls if call.name == "Block"]
        digests.append(trace.contents.values[root.outputs["sum"]].digest)
        assert {call.level for call in trace.contents.calls} == set(level.split(","))
    assert digests[0] == digests[1]
