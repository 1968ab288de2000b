"""Programs that torch.compile has compiled: they stay compiled under a capture, and it says what it did not see."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import moeparity
from moeparity.evidence.trace.reader import RankTrace, open_trace


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 8)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.up(hidden)).sin()


class Around(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.gate(hidden).exp()


def waves(hidden: torch.Tensor) -> torch.Tensor:
    return (hidden.sin() * 2).cos()


class Backend:
    """A backend of torch.compile that counts how often its graphs were made and run."""

    def __init__(self) -> None:
        self.compiled = self.ran = 0

    def __call__(self, graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.ran += 1
            return graph.forward(*args)

        return run


@pytest.fixture(autouse=True)
def _compiled_anew() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _captured(folder: Path, program: Callable[[], object]) -> RankTrace:
    with moeparity.capture(folder):
        program()
    return open_trace(folder).ranks[0]


def _program(kind: str, backend: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    if kind == "function":
        return torch.compile(waves, backend=backend)
    around = Around()
    if kind == "module":
        return torch.compile(around, backend=backend)
    around.gate.compile(backend=backend)
    return around


_NAMES = {"function": "waves", "module": "Around.forward", "part": "Gate.forward"}


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("kind", ["function", "module", "part"])
def test_what_is_compiled_stays_compiled_and_is_named(tmp_path: Path, kind: str, warm: bool) -> None:
    backend, hidden = Backend(), torch.randn(4, 8)
    program = _program(kind, backend)
    if warm:
        program(hidden)
        assert (backend.compiled, backend.ran) == (1, 1)
    trace = _captured(tmp_path / "t", lambda: program(hidden))
    assert (backend.compiled, backend.ran) == (1, 1 + warm)
    notes = [note for note in trace.contents.notes if "torch.compile has compiled" in note]
    assert any(f"compiled {_NAMES[kind]} ({__file__}:" in note for note in notes), trace.contents.notes
    assert any("in a region that torch.compile has compiled" in sentence for sentence in trace.head.unseen)


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_compiled_function_is_told_while_the_program_runs_and_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, hidden = _program("function", Backend()), torch.randn(4, 8)
    with moeparity.capture(tmp_path / "t") as capture:
        hidden.exp()
        capture.flush()
        assert capsys.readouterr().err == ""
        program(hidden)
        capture.flush()
        notes = open_trace(tmp_path / "t").ranks[0].contents.notes
        errors = capsys.readouterr().err
        program(hidden)
    assert any("torch.compile has compiled waves" in note for note in notes)
    assert errors.startswith("moeparity capture: torch.compile has compiled waves")
    assert capsys.readouterr().err == ""
    assert open_trace(tmp_path / "t").ranks[0].contents.notes == notes


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_backends_that_run_op_by_op_show_the_ops_of_their_graph_and_no_modules_inside(
    tmp_path: Path, backend: str
) -> None:
    program, hidden = _program("part", backend), torch.randn(4, 8, requires_grad=True)
    trace = _captured(tmp_path / "t", lambda: program(hidden).sum().backward())
    names = [call.name for call in trace.contents.calls if call.level == "op" and call.phase == "forward"]
    assert names[:4] == ["aten.addmm.default", "aten.gelu.default", "aten.sin.default", "aten.exp.default"]
    assert any(call.name == "aten.gelu_backward.default" for call in trace.contents.calls)
    assert not [call for call in trace.contents.calls if call.path.startswith("gate")]


def test_where_nothing_was_compiled_no_function_is_named(tmp_path: Path) -> None:
    trace = _captured(tmp_path / "t", lambda: Around()(torch.randn(4, 8)))
    assert trace.contents.notes == ()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_kernels_of_inductor_are_not_seen_and_their_function_is_named(tmp_path: Path) -> None:
    program, hidden = torch.compile(waves), torch.randn(4, 8)
    trace = _captured(tmp_path / "t", lambda: program(hidden) + 1)
    assert [call.name for call in trace.contents.calls] == ["aten.add.Tensor"]
    assert any("compiled waves" in note for note in trace.contents.notes)
