"""Ctrl-C and SIGTERM, at many moments: one line, the right exit code, and no file that is not whole."""

from __future__ import annotations

import itertools
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.progress import on_interruption, tidy_up
from tests.command import Forked

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "checkpoints" / "quickstart"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
CLI = [sys.executable, "-m", "moeparity.cli"]

# Raises the signal in the process itself at the first call of a function.
AT = """
import sys
from tests.hostile.moments import Moment, signal_at
module, name, number, when = sys.argv[1:5]
del sys.argv[1:5]
signal_at(Moment(module, name, when), int(number))
from moeparity.cli import main
main()
"""

LONG, SHORT = (64, 96), (4, 6)
"""Sequences and tokens of a forward of some seconds, to be killed at any time, and of one with certain moments only."""


def forward_in(folder: Path, shape: tuple[int, int]) -> tuple[list[str], Path]:
    """A forward, and the file it is to write, alone in its folder."""
    tokens, out = folder / "tokens.safetensors", folder / "out" / "out.safetensors"
    save_file({"input_ids": torch.randint(0, 256, shape)}, tokens)
    out.parent.mkdir(parents=True)
    options = ["--tokens", str(tokens), "--out", str(out), "--micro-batch", "4", "--device", "cpu", "--dtype", "fp32"]
    return ["forward", str(CHECKPOINT), *options], out


@pytest.fixture
def forward(tmp_path: Path) -> tuple[list[str], Path]:
    return forward_in(tmp_path, LONG)


@dataclass(frozen=True)
class Ended:
    """A process that has come to its end, some seconds after it was looked at."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float


def started(command: Sequence[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=ROOT)


def listening(process: subprocess.Popen[str]) -> None:
    """Wait until the process handles SIGTERM: until then it is Python that starts, which no program can mend."""
    status, begun = Path(f"/proc/{process.pid}/status"), time.monotonic()
    while not int(status.read_text().partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1:
        assert time.monotonic() - begun < 60, "SIGTERM is not handled"
        time.sleep(0.005)


def ended(process: subprocess.Popen[str]) -> Ended:
    begun = time.monotonic()
    stdout, stderr = process.communicate(timeout=60)
    return Ended(process.returncode, stdout, stderr, time.monotonic() - begun)


def judge(process: Ended, number: signal.Signals, out: Path, shape: tuple[int, int] = SHORT) -> int:
    """Its exit code: that of the signal, with all that goes with it, unless it had finished before."""
    stdout, stderr = process.stdout, process.stderr
    assert "Traceback" not in stderr
    if out.exists():
        assert load_file(out)["logits"].shape == (*shape, 256)
    assert [path.name for path in out.parent.iterdir()] == ([out.name] if out.exists() else [])
    if process.returncode:
        assert process.returncode == CODES[number]
        assert stderr.startswith(f"interrupted: {number.name}; no file is half-written. ")
        assert stderr.count("\n") == 1
        assert not stdout
    else:
        assert not stderr
        assert out.exists()
    return process.returncode


def test_killed_at_any_moment(forward: tuple[list[str], Path]) -> None:
    """By either signal: which one it is decides the exit code, and nothing else."""
    command, out = forward
    codes = set()
    for seconds, number in zip((0.0, 0.3, 0.7, 1.2, 1.7), itertools.cycle(CODES)):
        out.unlink(missing_ok=True)
        process = started([*CLI, *command])
        listening(process)
        time.sleep(seconds)
        process.send_signal(number)
        codes.add(judge(ended(process), number, out, LONG))
    assert codes >= {*CODES.values()}


MOMENTS: dict[str, tuple[str, str, str]] = {
    "while the weights are checked": ("moeparity.inputs.model", "check", "before"),
    "while a layer is read": ("moeparity.inputs.weights.store", "WeightStore.load", "before"),
    "while an op runs": ("moeparity.ops.kernels.experts", "experts", "after"),
    "while the file is written": ("safetensors.torch", "save_file", "before"),
    "when the file is written and not yet named": ("safetensors.torch", "save_file", "after"),
    "when the file has its name": ("pathlib", "Path.replace", "after"),
    "while it is cleaned up": ("pathlib", "Path.unlink", "before"),
}
FIRST_OP = ("moeparity.ops.kernels.elementwise", "embedding", "after")
# Reading any layer takes 30 s.
SLOW = (
    "from moeparity.inputs.weights.store import WeightStore\nload = WeightStore.load\n"
    "def slowly(self, segment, dtypes):\n"
    "    if segment.name != 'before':\n        time.sleep(30)\n    return load(self, segment, dtypes)\n"
    "WeightStore.load = slowly\n"
)
IGNORED = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
JOBS: dict[str, tuple[str, tuple[str, str, str], signal.Signals]] = {
    **{name: ("", moment, signal.SIGTERM) for name, moment in MOMENTS.items()},
    "while the next layer is read": (SLOW, FIRST_OP, signal.SIGINT),
    "when the file is told": ("", ("moeparity.cli.render", "console", "before"), signal.SIGTERM),
    "ignored": (IGNORED, FIRST_OP, signal.SIGINT),
}
"""What runs first in the process, the moment, and the signal."""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ended, Path]]:
    """How each job ended, and the file that it was to write."""
    ends_of = {}
    for number, (name, (line, (module, function, when), sent)) in enumerate(JOBS.items()):
        folder = tmp_path_factory.mktemp(f"job-{number}")
        command, out = forward_in(folder, SHORT)
        arguments = [line, module, function, str(int(sent)), when, *command]
        with (folder / "stdout").open("w+") as output, (folder / "stderr").open("w+") as errors:
            begun = time.monotonic()
            process = Forked("tests.cli.moment", *arguments, variables={}, output=output, errors=errors)
            end = process.ended(begun + 60)
            if end is None:
                os.kill(process.process, signal.SIGKILL)
            assert end is not None, f"{name}: has not ended"
            code, at = end
            output.seek(0)
            errors.seek(0)
            ends_of[name] = (Ended(code, output.read(), errors.read(), at - begun), out)
    return ends_of


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_certain_moment(ends: dict[str, tuple[Ended, Path]], moment: str) -> None:
    end, out = ends[moment]
    assert judge(end, signal.SIGTERM, out) == 143
    assert out.exists() == (moment in {"when the file has its name", "while it is cleaned up"})


def test_a_signal_after_the_file_is_written_does_not_undo_it(ends: dict[str, tuple[Ended, Path]]) -> None:
    end, out = ends["when the file is told"]
    assert judge(end, signal.SIGTERM, out) == 0
    assert end.stdout.startswith(str(out))


def test_killed_while_torch_is_imported(forward: tuple[list[str], Path]) -> None:
    command, out = forward
    place = ["moeparity.inputs.machine", "choose", str(int(signal.SIGTERM)), "before"]
    assert judge(ended(started([sys.executable, "-c", AT, *place, *command])), signal.SIGTERM, out, LONG) == 143
    assert not out.exists()


def test_the_thread_that_reads_the_next_layer_does_not_hold_up_the_exit(ends: dict[str, tuple[Ended, Path]]) -> None:
    """Reading takes 30 s here; the signal comes in the first op, while the next layer is being read."""
    end, out = ends["while the next layer is read"]
    assert judge(end, signal.SIGINT, out) == 130
    assert end.seconds < 20


SWALLOWED = {
    "by a destructor": "class A:\n    def __del__(self):\n        signalled()\nA()\n",
    "by code that catches all": "try:\n    signalled()\nexcept BaseException:\n    pass\n",
    "by an error in its stead": "try:\n    signalled()\nexcept BaseException:\n    raise ValueError from None\n",
}


@pytest.mark.parametrize("place", SWALLOWED)
def test_a_signal_ends_the_process_where_an_exception_would_be_swallowed(place: str) -> None:
    """As in `import torch`, whose native part goes on without numpy when importing that raised anything."""
    code = (
        "import os, signal\nfrom moeparity.cli.signals import listen\nlisten()\n"
        f"def signalled():\n    os.kill(os.getpid(), signal.SIGINT)\n{SWALLOWED[place]}print('went on')\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (130, "")
    assert process.stderr == (
        "interrupted: SIGINT; no file is half-written. No finished pass was kept; start it again.\n"
    )


def test_what_is_left_to_do_is_done_once_newest_first() -> None:
    calls = []

    def act(name: str, words: str | None) -> str | None:
        calls.append(name)
        if words is None:
            raise RuntimeError("reentrant call")
        return words

    with on_interruption(lambda: act("first", "kept")), on_interruption(lambda: act("fails", None)):
        with on_interruption(lambda: act("over", "never")):
            pass
        with on_interruption(lambda: act("silent", "")):
            assert tidy_up() == ["kept"]
    assert calls == ["silent", "fails", "first"]
    assert tidy_up() == []


def test_the_progress_line_gives_the_cursor_back(tmp_path: Path) -> None:
    """On a terminal, which a shell goes on to use."""
    code = (
        "import os, signal\nfrom moeparity.cli.progress import progress_line\n"
        "from moeparity.cli.signals import listen\nfrom moeparity.progress import Progress\n"
        "listen()\nwith progress_line() as report:\n"
        "    report(Progress(step='pass', at='layers[0]', done=1, total=9, work=5.0, unit='ops'))\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment)
    assert process.wait(timeout=60) == 143
    os.close(theirs)
    drawn = os.read(ours, 65536).decode()
    os.close(ours)
    hidden, shown = drawn.rfind("\x1b[?25l"), drawn.rfind("\x1b[?25h")
    assert 0 <= hidden < shown < drawn.index("interrupted: SIGTERM")


def test_an_ignored_signal_stays_ignored(ends: dict[str, tuple[Ended, Path]]) -> None:
    """As under nohup, or in a job that a script has put in the background."""
    end, out = ends["ignored"]
    assert judge(end, signal.SIGINT, out) == 0


def test_the_line_says_what_was_kept(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom moeparity.cli.signals import listen\n"
        "from moeparity.bisection.resume.codec import Codec\nfrom moeparity.bisection.resume.pieces import PieceStore\n"
        f"listen()\nwith PieceStore('f' * 64, Codec([]), Path({str(tmp_path)!r})) as store:\n"
        "    store.save('0', [1])\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 143
    assert process.stderr == (
        "interrupted: SIGTERM; no file is half-written. "
        f"1 finished pass is kept in {tmp_path}/passes/{'f' * 64}: the same command goes on from there.\n"
    )


@pytest.mark.parametrize("run", ["main", "app"])
def test_a_command_that_has_finished_ignores_signals_only_where_it_listened(run: str) -> None:
    """Where another program calls the commands, its signals are its own."""
    code = (
        "import os, signal, sys\nfrom moeparity.cli import commands, main\n"
        "from moeparity.cli.signals import ignore_signals\n"
        "def told(): ignore_signals(); print([signal.getsignal(n).name for n in (signal.SIGINT, signal.SIGTERM)])\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\ncommands.app.command('told')(told)\nsys.argv[1:] = ['told']\n"
        f"{'main' if run == 'main' else 'commands.app'}()\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    expected = "SIG_IGN" if run == "main" else "SIG_DFL"
    assert (process.returncode, process.stdout, process.stderr) == (0, f"{[expected] * 2}\n", "")
