"""A capture changes nothing of what a program computes, says and ends with; and says what it missed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import moeparity
from moeparity.evidence.trace.reader import open_trace
from tests.command import ROOT, launcher
from tests.evidence.capture.unchanged import PROGRAMS, Counting, Program

LEVELS = ("op,module", "module,gradient")


def _bits(value: Any) -> Any:
    """What a program gave, so that equal is equal bits."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().as_subclass(torch.Tensor)
        kind = str(plain.dtype), tuple(plain.shape), str(plain.device)
        if plain.device.type != "cpu" or not plain.numel():
            return kind
        return *kind, bytes(plain.contiguous().view(-1).view(torch.uint8).numpy())
    if isinstance(value, dict):
        return {key: _bits(part) for key, part in value.items()}
    return [_bits(part) for part in value] if isinstance(value, (list, tuple)) else repr(value)


def _run(program: Program) -> Any:
    torch.manual_seed(0)
    torch.compiler.reset()
    try:
        return _bits(program())
    except Exception as error:  # noqa: BLE001  that it raises, and what, is compared
        return f"{type(error).__name__}: {error}".splitlines()[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_gives_the_same_bits_alone_and_under_a_mode_of_its_own(
    tmp_path: Path, program: Program, level: str
) -> None:
    for kind in (contextlib.nullcontext, Counting):
        with kind() as bare_mode:
            bare = _run(program)
        with kind() as mode:
            capture = moeparity.capture(tmp_path / kind.__name__, level=level, save="*")
            with capture:
                captured = _run(program)
        assert captured == bare
        # A mode that the program is in sees the ops of the program, and none of the capture's.
        assert getattr(mode, "names", None) == getattr(bare_mode, "names", None)
        assert not capture._recorder._failures


def test_what_a_capture_fails_at_is_a_note_and_no_stale_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = torch.ones(3, 4)
    with moeparity.capture(tmp_path / "t", level="op") as capture:
        hidden.exp()
        with monkeypatch.context() as patch:
            patch.setattr(capture._recorder, "see", lambda *_, **__: 1 / 0)
            hidden.mul_(2)
        result = hidden.exp()
    assert torch.equal(result, torch.full((3, 4), 2.0).exp())
    trace = open_trace(tmp_path / "t").ranks[0].contents
    assert [note for note in trace.notes if "aten.mul_.Tensor is not recorded" in note]
    first, last = (trace.values[call.inputs["0"]].digest for call in trace.calls if call.name == "aten.exp.default")
    assert first != last


PROBED = """
import importlib.util, pkgutil, sys
for _ in range(2):
    assert importlib.util.find_spec("torch").origin.endswith("__init__.py")
assert "torch" in {module.name for module in pkgutil.iter_modules()}
assert "torch" not in sys.modules
before = list(sys.path)
import torch
assert importlib.util.find_spec("torch") is torch.__spec__
assert sys.path == before
importlib.reload(torch.nn.init)
print(torch.ones(3).cos().sum().item())
sys.exit(3)
"""
LAZY = """
import importlib.util, sys
spec = importlib.util.find_spec("torch")
spec.loader = importlib.util.LazyLoader(spec.loader)
torch = sys.modules["torch"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch)
class Front:
    def find_spec(self, name, path=None, target=None):
        return None
sys.meta_path.insert(0, Front())
print(torch.ones(3).cos().sum().item())
"""
PROCESSES = """
import multiprocessing, subprocess, sys
def work():
    import torch
    print(torch.ones(3).cos().sum().item(), flush=True)
if __name__ == "__main__":
    for method in ("spawn", "fork", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == 0
    assert "torch" not in sys.modules
    subprocess.run([sys.executable, "-c", "import torch; print(torch.ones(3).cos().sum().item())"], check=True)
"""
FORKED = """
import multiprocessing, torch
def work():
    print(torch.ones(3).cos().sum().item(), flush=True)
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
print(torch.ones(3).cos().sum().item())
"""
THREADED = """
import threading
def work():
    import torch
    print(torch.ones(3).cos().sum().item(), flush=True)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def _processes(folder: Path, program: str, python: str = sys.executable) -> tuple[list[str], int, Path, str]:
    """What a program under a capture printed, its exit code, its trace, and what was said."""
    (folder / "program.py").write_text(program)
    command = [*launcher(), "capture", "--out", str(folder / "t"), "--", python, str(folder / "program.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)
    return done.stdout.splitlines(), done.returncode, folder / "t", done.stderr


@pytest.mark.parametrize(
    ("program", "lines", "code", "ranks"),
    [(PROBED, 1, 3, 1), (LAZY, 1, 0, 1), (PROCESSES, 4, 0, 4), (FORKED, 2, 0, 1), (THREADED, 1, 0, 1)],
    ids=["probed", "lazy", "processes", "forked", "threaded"],
)
def test_torch_is_captured_however_it_is_imported(
    tmp_path: Path, program: str, lines: int, code: int, ranks: int
) -> None:
    printed, returned, folder, errors = _processes(tmp_path, program)
    assert printed == [str(torch.ones(3).cos().sum().item())] * lines, errors
    assert returned == code
    assert "Traceback" not in errors
    traces = open_trace(folder).ranks
    assert len(traces) == ranks
    for trace in traces:
        assert trace.contents.whole
        assert [call.name for call in trace.contents.calls].count("aten.cos.default") == 1


def test_torch_imported_by_a_pth_file_in_an_environment_without_moeparity(tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    lent = [folder for folder in sys.path if Path(folder).name == "site-packages"]
    (site / "early.pth").write_text("\n".join([*lent, "import torch"]) + "\n")
    printed, code, folder, errors = _processes(
        tmp_path, "import torch; print(torch.ones(3).cos().sum().item())", str(environment / "bin" / "python")
    )
    assert (printed, code) == ([str(torch.ones(3).cos().sum().item())], 0), errors
    assert "aten.cos.default" in {call.name for call in open_trace(folder).ranks[0].contents.calls}


def test_where_a_capture_cannot_begin_the_program_runs_and_it_is_said(tmp_path: Path) -> None:
    broken = "import sys; sys.modules['safetensors'] = None; import torch; print(torch.ones(3).sum().item())"
    printed, code, _, errors = _processes(tmp_path, broken)
    assert printed == ["3.0"]
    assert code == 2, "nothing was recorded"
    assert "moeparity capture: nothing is recorded here: " in errors
    assert "Traceback" not in errors
