"""Ctrl-C and SIGTERM, at many moments: one line, the right exit code, and no file that is not whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "checkpoints" / "quickstart"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
CLI = [sys.executable, "-m", "moeparity.cli"]

# Raises the signal in the process itself at the first call of a function: a moment no sleep could hit.
AT = """
import os, signal, sys
from unittest.mock import patch
module, name, number, when = sys.argv[1:5]
del sys.argv[1:5]
found = __import__(module, fromlist=["x"])
owner, _, attribute = name.rpartition(".")
owner = getattr(found, owner) if owner else found
original = getattr(owner, attribute)
def interrupted(*args, **kwargs):
    setattr(owner, attribute, original)
    if when == "after":
        result = original(*args, **kwargs)
    os.kill(os.getpid(), int(number))
    return result if when == "after" else original(*args, **kwargs)
setattr(owner, attribute, interrupted)
from moeparity.cli import main
main()
"""


@pytest.fixture
def forward(tmp_path: Path) -> tuple[list[str], Path]:
    """A forward of some seconds, and the file it is to write, alone in its folder."""
    tokens, out = tmp_path / "tokens.safetensors", tmp_path / "out" / "out.safetensors"
    save_file({"input_ids": torch.randint(0, 256, (64, 96))}, tokens)
    out.parent.mkdir()
    options = ["--tokens", str(tokens), "--out", str(out), "--micro-batch", "4", "--device", "cpu", "--dtype", "fp32"]
    return ["forward", str(CHECKPOINT), *options], out


def started(command: Sequence[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def listening(process: subprocess.Popen[str]) -> None:
    """Wait until the process handles SIGTERM: until then it is Python that starts, which no program can mend."""
    status = Path(f"/proc/{process.pid}/status")
    while not int(status.read_text().partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1:
        time.sleep(0.005)


def judge(process: subprocess.Popen[str], number: signal.Signals, out: Path) -> int:
    """Its exit code: that of the signal, with all that goes with it, unless it had finished before."""
    stdout, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr
    if out.exists():
        assert load_file(out)["logits"].shape == (64, 96, 256)
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


@pytest.mark.parametrize("number", CODES)
def test_killed_at_any_moment(forward: tuple[list[str], Path], number: signal.Signals) -> None:
    command, out = forward
    codes = []
    for seconds in (0.0, 0.5, 1.2, 2.0, 2.5):
        out.unlink(missing_ok=True)
        process = started([*CLI, *command])
        listening(process)
        time.sleep(seconds)
        process.send_signal(number)
        codes.append(judge(process, number, out))
    assert CODES[number] in codes


MOMENTS: dict[str, tuple[str, str, str]] = {
    "while torch is imported": ("moeparity.engine.device", "choose", "before"),
    "while the weights are checked": ("moeparity.model", "check", "before"),
    "while a layer is read": ("moeparity.weights.store", "WeightStore.load", "before"),
    "while an op runs": ("moeparity.ops.kernels.experts", "experts", "after"),
    "while the file is written": ("safetensors.torch", "save_file", "before"),
    "when the file is written and not yet named": ("safetensors.torch", "save_file", "after"),
    "when the file has its name": ("pathlib", "Path.replace", "after"),
    "while it is cleaned up": ("pathlib", "Path.unlink", "before"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_certain_moment(forward: tuple[list[str], Path], moment: str) -> None:
    command, out = forward
    module, name, when = MOMENTS[moment]
    process = started([sys.executable, "-c", AT, module, name, str(int(signal.SIGTERM)), when, *command])
    assert judge(process, signal.SIGTERM, out) == 143
    assert out.exists() == (moment in {"when the file has its name", "while it is cleaned up"})


def test_the_thread_that_reads_the_next_layer_does_not_hold_up_the_exit(
    forward: tuple[list[str], Path],
) -> None:
    """Reading takes 30 s here; the signal comes in the first op, while the next layer is being read."""
    slow = (
        "import time\nfrom moeparity.weights.store import WeightStore\nload = WeightStore.load\n"
        "def slowly(self, segment, dtypes):\n"
        "    if segment.name != 'before':\n        time.sleep(30)\n    return load(self, segment, dtypes)\n"
        "WeightStore.load = slowly\n"
    )
    command, out = forward
    place = ["moeparity.ops.kernels.elementwise", "embedding", str(int(signal.SIGINT)), "after"]
    begun = time.monotonic()
    process = started([sys.executable, "-c", slow + AT, *place, *command])
    assert judge(process, signal.SIGINT, out) == 130
    assert time.monotonic() - begun < 20


def test_an_interruption_that_native_code_turns_into_its_own_error_is_one_still() -> None:
    """safetensors calls back into Python, and raises a ValueError of its own for whatever that raised."""
    code = (
        "import os, signal\nfrom moeparity.cli.signals import interruptible\n"
        "with interruptible():\n    try:\n        os.kill(os.getpid(), signal.SIGINT)\n    except BaseException:\n"
        "        raise ValueError('could not determine the shape') from None\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == ("interrupted: SIGINT; no file is half-written. No finished pass was kept; start it again.\n")


def test_an_ignored_signal_stays_ignored(forward: tuple[list[str], Path]) -> None:
    """As under nohup, or in a job that a script has put in the background."""
    command, out = forward
    ignoring = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    place = ["moeparity.ops.kernels.elementwise", "embedding", str(int(signal.SIGINT)), "after"]
    process = started([sys.executable, "-c", ignoring + AT, *place, *command])
    assert judge(process, signal.SIGINT, out) == 0


def test_the_line_says_what_was_kept(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom moeparity.cli.signals import interruptible\n"
        "from moeparity.resume.codec import Codec\nfrom moeparity.resume.passes import Passes\n"
        f"with interruptible(), Passes('f' * 64, Codec([]), Path({str(tmp_path)!r})) as store:\n"
        "    store.save('0', [1])\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 143
    assert done.stderr == (
        "interrupted: SIGTERM; no file is half-written. "
        f"1 finished pass is kept in {tmp_path}/passes/{'f' * 64}: the same command goes on from there.\n"
    )
