"""Finds nvcc and compiles a CUDA source to PTX."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from moeparity import paths
from moeparity.errors import MoeparityError, Where

PACKAGES = "nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt nvidia-nvvm"
SECONDS = 600
_SHOWN = 5


def find_nvcc() -> Path | None:
    """nvcc on PATH, below CUDA_HOME or CUDA_PATH, or from NVIDIA's Python packages; None without one."""
    return next((path for path in _places() if paths.is_file(path)), None)


def _places() -> Iterator[Path]:
    on_path = shutil.which("nvcc")
    if on_path is not None:
        yield Path(on_path)
    yield from (Path(os.environ[name]) / "bin" / "nvcc" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name))
    for folder in sys.path:
        yield from sorted(Path(folder or ".").glob("nvidia/c*/bin/nvcc"), reverse=True)


def compiled(source: Path, flags: Sequence[str], architecture: str, where: Where) -> str:
    """The PTX that nvcc makes of a file. Raises MoeparityError if there is no nvcc, or if it refuses the file."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise MoeparityError(
            f"{where}: no nvcc was found on PATH, below CUDA_HOME or among Python's packages. Install one "
            f"(`pip install {PACKAGES}`), or compile the file elsewhere (nvcc -ptx -arch={architecture} ...) and name "
            "what comes of it with `ptx:` in place of `cuda:`."
        )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.ptx"
        command = [str(nvcc), "-ptx", f"-arch={architecture}", *flags, str(source), "-o", str(out)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MoeparityError(f"{where}: {nvcc} did not run: {error}.") from None
        if done.returncode or not out.exists():
            lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            reason = " ".join(next(([a] for a in lines if "error" in a), lines[:_SHOWN]))
            raise MoeparityError(f"{where}: {nvcc} does not compile it: {reason}")
        return out.read_text("utf-8")


def text_of(path: Path, where: Where) -> str:
    """The text of a PTX file. Raises MoeparityError."""
    try:
        return paths.contents(path, "PTX file").decode("utf-8")
    except OSError as error:
        raise MoeparityError(f"{where}: {path} cannot be read: {error.strerror}. Check the path.") from None
    except UnicodeDecodeError:
        raise MoeparityError(f"{where}: {path} is no text. Is it a cubin? PTX is expected (nvcc -ptx).") from None
