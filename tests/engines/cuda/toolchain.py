"""nvcc and other projects' CUDA sources, in a folder of their own below the environment's prefix; never a dependency.

`python -m tests.engines.cuda.toolchain install` fetches them (820 MB on disk; of cuBLAS and cuRAND headers are kept);
`... programs` compiles `tests/ptx/programs` anew. Tests that need them are marked `live` and say where they are absent.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(sys.prefix) / "live" / "cuda"
PROGRAMS = Path(__file__).parents[2] / "ptx" / "programs"
COMPILER = ("nvidia-cuda-nvcc==13.5.37", "nvidia-cuda-runtime==13.5.37", "nvidia-cuda-cccl==13.3.5.0.6",
            "nvidia-cuda-crt==13.5.37", "nvidia-nvvm==13.5.37")  # fmt: skip
HEADERS = ("nvidia-cublas==13.10.0.20", "nvidia-curand==10.4.5.25")
_METADATA = ("setuptools", "setuptools-scm", "setuptools-rust", "packaging", "jinja2", "cmake", "ninja", "wheel",
             "grpcio-tools")  # fmt: skip
"""What vLLM's sdist is asked for its metadata with."""
FLASHINFER = "flashinfer-python==0.7.2.post1"
VLLM = "0.33.0"
ARCHITECTURE = "sm_90"


def install() -> None:
    """The compiler, headers, FlashInfer's wheel, vLLM's sdist."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    _pip("install", "--target", str(FOLDER / "toolkit"), *COMPILER)
    with tempfile.TemporaryDirectory() as place:
        _pip("download", "-d", place, *HEADERS, FLASHINFER)
        for wheel in Path(place).glob("*.whl"):
            to = FOLDER / ("flashinfer" if wheel.name.startswith("flashinfer") else "toolkit")
            with zipfile.ZipFile(wheel) as archive:
                wanted = [name for name in archive.namelist() if "/include/" in name or "/csrc/" in name]
                archive.extractall(to, wanted)  # noqa: S202 (a ZipFile leaves no folder)
    _vllm()


def _vllm() -> None:
    """vLLM's sources as its sdist has them; what its metadata is built with comes along, into a folder of its own."""
    with tempfile.TemporaryDirectory() as place:
        tools = Path(place) / "tools"
        _pip("install", "--target", str(tools), *_METADATA, dependencies=True)
        environment = {
            "VLLM_TARGET_DEVICE": "empty",
            "VLLM_VERSION_OVERRIDE": VLLM,
            "SETUPTOOLS_SCM_PRETEND_VERSION": VLLM,
            "PYTHONPATH": str(tools),
        }
        options = ("--no-binary", ":all:", "--no-build-isolation", "-d", place, f"vllm=={VLLM}")
        _pip("download", *options, environment=environment)
        with tarfile.open(Path(place) / f"vllm-{VLLM}.tar.gz") as archive:
            archive.extractall(FOLDER / "vllm", filter="data")


def _pip(command: str, *arguments: str, environment: dict[str, str] | None = None, dependencies: bool = False) -> None:
    only = [] if dependencies else ["--no-deps"]
    subprocess.run(
        [sys.executable, "-m", "pip", command, "--quiet", *only, *arguments],
        check=True,
        env={**os.environ, **(environment or {})},
    )


def compiled(source: Path, *flags: str) -> str:
    """The PTX that nvcc makes of a file. Skips the test that asks where there is no nvcc."""
    nvcc = compiler()
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "out.ptx"
        command = [str(nvcc), "-ptx", f"-arch={ARCHITECTURE}", "-std=c++17", *flags, str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return out.read_text()


def compiler() -> Path:
    """nvcc, below the environment's prefix. Skips the test that asks where there is none."""
    nvcc = FOLDER / "toolkit" / "nvidia" / "cu13" / "bin" / "nvcc"
    if not nvcc.exists():
        pytest.skip("not run through PTX: no nvcc (python -m tests.engines.cuda.toolchain install)")
    return nvcc


def vllm(name: str) -> str:
    """The PTX of one of vLLM's `.cu` files, by its path below `csrc`, with the flags of its own build."""
    root = FOLDER / "vllm" / f"vllm-{VLLM}" / "csrc"
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch = Path(spec.origin).parent / "include"
    kit = FOLDER / "toolkit" / "nvidia" / "cu13"
    folders = (
        root,
        (root / name).parent,
        torch,
        torch / "torch/csrc/api/include",
        kit / "include",
        kit / "cccl/include",
    )
    flags = (
        "--expt-relaxed-constexpr",
        "--expt-extended-lambda",
        "-DUSE_CUDA",
        "-DTORCH_TARGET_VERSION=0x020b000000000000",
    )
    return _cached(root / name, *flags, *(f"-I{folder}" for folder in folders))


def flashinfer(header: str, instances: str) -> str:
    """The PTX of instances of templates in one of FlashInfer's headers, with the flags of its JIT (-use_fast_math)."""
    data = FOLDER / "flashinfer" / "flashinfer" / "data"
    kit = FOLDER / "toolkit" / "nvidia" / "cu13"
    compiler()
    source = FOLDER / f"{Path(header).stem}.cu"
    source.write_text(f"#include <{header}>\n{instances}")
    folders = (data / "include", kit / "cccl/include", kit / "include", data / "cutlass/include")
    return _cached(source, "-use_fast_math", "-DENABLE_BF16", "-DENABLE_FP8", *(f"-I{folder}" for folder in folders))


def _cached(source: Path, *flags: str) -> str:
    """Compiled once: the PTX lies beside the compiler."""
    kept = FOLDER / f"{source.stem}.{ARCHITECTURE}.ptx"
    if not kept.exists() or (
        source.exists() and kept.stat().st_mtime < source.stat().st_mtime and source.parent != FOLDER
    ):
        kept.write_text(compiled(source, *flags))
    return kept.read_text()


def programs() -> None:
    """Compiles the programs of this project's own, with contraction and without."""
    for source in PROGRAMS.glob("*.cu"):
        source.with_suffix(".ptx").write_text(compiled(source))
        source.with_name(f"{source.stem}.nofma.ptx").write_text(compiled(source, "-fmad=false"))


if __name__ == "__main__":
    assert shutil.disk_usage(Path(sys.prefix)).free > 2 << 30, "2 GB of free space are needed."
    {"install": install, "programs": programs}[sys.argv[1]]()
