"""nvcc and other projects' CUDA sources, in a folder of their own below the environment's prefix; never a dependency.

`python -m tests.engines.cuda.toolchain install` fetches them (820 MB on disk; of cuBLAS and cuRAND headers are kept);
`... programs` compiles `tests/ptx/programs` anew. Tests that need them are marked `live` and say where they are absent.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.engines import live

FOLDER = Path(sys.prefix) / "live" / "cuda"
PROGRAMS = Path(__file__).parents[2] / "ptx" / "programs"
COMPILER = ("nvidia-cuda-nvcc==13.5.37", "nvidia-cuda-nvdisasm==13.5.37", "nvidia-cuda-runtime==13.5.37",
            "nvidia-cuda-cccl==13.3.5.0.6", "nvidia-cuda-crt==13.5.37", "nvidia-nvvm==13.5.37")  # fmt: skip
HEADERS = ("nvidia-cublas==13.10.0.20", "nvidia-curand==10.4.5.25", "nvidia-nvtx==13.5.25")
_METADATA = ("setuptools", "setuptools-scm", "setuptools-rust", "packaging", "jinja2", "cmake", "ninja", "wheel",
             "grpcio-tools")  # fmt: skip
"""What vLLM's sdist is asked for its metadata with."""
FLASHINFER = "flashinfer-python==0.7.2.post1"
TVM = "apache-tvm-ffi==0.1.15.post2"
"""Headers that FlashInfer's host code includes."""
VLLM = "0.33.0"
TRANSFORMER_ENGINE = "2.20.2"
"""Of transformer_engine_torch, whose sdist holds the headers of the common library, the norms' kernels among them."""
ARCHITECTURE = "sm_90"
FLASHINFER_DATA = FOLDER / "flashinfer" / "flashinfer" / "data"
FAST_MATH = ("-use_fast_math",)
TENSORRT_LLM = "flashinfer-0.6.18"
"""The folder of tests/engines/live.py with the FlashInfer that TensorRT-LLM 1.4.0rc1 asks for."""


def install() -> None:
    """The compiler, headers, FlashInfer's wheel, vLLM's and TransformerEngine's sdists."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    _pip("install", "--target", str(FOLDER / "toolkit"), *COMPILER)
    with tempfile.TemporaryDirectory() as place:
        _pip("download", "-d", place, *HEADERS, FLASHINFER)
        for wheel in Path(place).glob("*.whl"):
            to = FOLDER / ("flashinfer" if wheel.name.startswith("flashinfer") else "toolkit")
            with zipfile.ZipFile(wheel) as archive:
                wanted = [name for name in archive.namelist() if _wanted(name)]
                archive.extractall(to, wanted)  # noqa: S202 (a ZipFile leaves no folder)
        _pip("install", "--target", str(FOLDER / "tvm"), TVM)
    _vllm()
    _transformer_engine()


def _wanted(name: str) -> bool:
    """Sources of kernels, and the Python file that holds FlashInfer's activations as text."""
    return "/include/" in name or "/csrc/" in name or name.endswith("/jit/activation.py")


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


def _transformer_engine() -> None:
    """TransformerEngine's headers as its sdist has them. pip would run its setup, which asks for CUDA's torch."""
    name = f"transformer_engine_torch-{TRANSFORMER_ENGINE}"
    with urllib.request.urlopen("https://pypi.org/simple/transformer-engine-torch/", timeout=60) as page:
        links = re.findall(r'href="(https://[^"#]+)#sha256=([0-9a-f]{64})"', page.read().decode())
    url, expected = next(link for link in links if link[0].endswith(f"/{name}.tar.gz"))
    with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310 (from a page of https links)
        content = response.read()
    assert hashlib.sha256(content).hexdigest() == expected, url
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        headers = [member for member in archive if "/common_headers/" in member.name]
        archive.extractall(FOLDER / "transformer-engine", headers, filter="data")


def _pip(command: str, *arguments: str, environment: dict[str, str] | None = None, dependencies: bool = False) -> None:
    only = [] if dependencies else ["--no-deps"]
    subprocess.run(
        [sys.executable, "-m", "pip", command, "--quiet", *only, *arguments],
        check=True,
        env={**os.environ, **(environment or {})},
    )


def compiled(source: Path, *flags: str, architecture: str) -> str:
    """The PTX that nvcc makes of a file. Skips the test that asks where there is no nvcc."""
    nvcc = compiler()
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "out.ptx"
        command = [str(nvcc), "-ptx", f"-arch={architecture}", "-std=c++17", *flags, str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return out.read_text()


def machine_code(text: str, kernel: str = "") -> list[str]:
    """Instructions that ptxas makes of a PTX file, or of one kernel in it, as nvdisasm prints them."""
    tools = compiler().parent
    with tempfile.TemporaryDirectory() as place:
        source, out = Path(place) / "in.ptx", Path(place) / "out.cubin"
        source.write_text(text)
        subprocess.run(
            [str(tools / "ptxas"), f"-arch={ARCHITECTURE}", str(source), "-o", str(out)], check=True, timeout=300
        )
        if not (tools / "nvdisasm").exists():
            pytest.skip("machine code not read: no nvdisasm (python -m tests.engines.cuda.toolchain install)")
        command = [str(tools / "nvdisasm"), "-c", str(out)]
        code = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    part = code.partition(f".text.{kernel}:")[2].partition(".section")[0] if kernel else code
    return re.findall(r"^ *[/][*][0-9a-f]{4,}[*][/] +(.*)$", part, re.MULTILINE)


def compiler() -> Path:
    """nvcc, below the environment's prefix. Skips the test that asks where there is none."""
    nvcc = FOLDER / "toolkit" / "nvidia" / "cu13" / "bin" / "nvcc"
    if not nvcc.exists():
        pytest.skip("not run through PTX: no nvcc (python -m tests.engines.cuda.toolchain install)")
    return nvcc


def vllm(name: str) -> str:
    """The PTX of one of vLLM's `.cu` files, by its path below `csrc`, with the flags of its own build."""
    compiler()
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
        "-DENABLE_FP8",
        "-DTORCH_TARGET_VERSION=0x020b000000000000",
    )
    return _cached(root / name, *flags, *(f"-I{folder}" for folder in folders), architecture=ARCHITECTURE)


def flashinfer(header: str, instances: str, *flags: str) -> str:
    """The PTX of instances of templates in one of FlashInfer's files, with the flags of its JIT (-use_fast_math)."""
    compiler()
    defined = (f"-DFLASHINFER_ENABLE_{name}" for name in ("F16", "BF16", "FP8_E4M3", "FP8_E5M2"))
    options = (*FAST_MATH, *defined, "-DENABLE_BF16", "-DENABLE_FP8", *flags)
    folders = (f"-I{folder}" for folder in _of_flashinfer(FLASHINFER_DATA))
    return _cached(_written(header, instances), *options, *folders, architecture=f"{ARCHITECTURE}a")


def tensorrt_llm(header: str, instances: str, *flags: str) -> str:
    """The PTX of instances of templates in one of TensorRT-LLM's files, which FlashInfer's wheel holds copies of.

    The flags are those of TensorRT-LLM's own build, which has its option FAST_MATH off (cpp/CMakeLists.txt).
    """
    compiler()
    data = FOLDER.parent / TENSORRT_LLM / "flashinfer" / "data"
    if not data.is_dir():
        pytest.skip(f"not run through PTX: no {TENSORRT_LLM} (python -m tests.engines.live)")
    cutlass = "csrc/nv_internal/tensorrt_llm/kernels/cutlass_kernels"
    more = ("csrc/nv_internal/tensorrt_llm/cutlass_extensions/include", cutlass, f"{cutlass}/include")
    options = ("--expt-relaxed-constexpr", "-DENABLE_BF16", "-DENABLE_FP8", *flags)
    folders = (f"-I{folder}" for folder in (*_of_flashinfer(data), *(data / name for name in more)))
    of = live.PACKAGES[TENSORRT_LLM]
    return _cached(_written(header, instances), *options, *folders, architecture=f"{ARCHITECTURE}a", of=of)


def _of_flashinfer(data: Path) -> tuple[Path, ...]:
    """Folders of the headers in a wheel of FlashInfer."""
    kit = FOLDER / "toolkit" / "nvidia" / "cu13"
    folders_inside = ("include", "csrc", "csrc/nv_internal", "csrc/nv_internal/include", "spdlog/include")
    cutlass = ("cutlass/include", "cutlass/tools/util/include")
    return (
        *(data / name for name in folders_inside),
        *(kit / name for name in ("cccl/include", "include")),
        *(data / name for name in cutlass),
        FOLDER / "tvm" / "tvm_ffi" / "include",
    )


def sglang(header: str, instances: str, *flags: str) -> str:
    """The PTX of instances of templates in one of the kernels that SGLang's wheel compiles when it is used."""
    compiler()
    root = FOLDER.parent / "sglang" / "sglang" / "kernels" / "jit"
    if not root.is_dir():
        pytest.skip("not run through PTX: no SGLang (python -m tests.engines.live)")
    source = _written(header, instances)
    folders = (root / "include", root / "csrc", *_runtime(), FOLDER / "tvm" / "tvm_ffi" / "include")
    compiler_flags = ("-std=c++20", "--expt-relaxed-constexpr", "-DSGL_CUDA_ARCH=900", *flags)
    return _cached(source, *compiler_flags, *(f"-I{folder}" for folder in folders), architecture=f"{ARCHITECTURE}a")


def transformer_engine(header: str, instances: str, *flags: str) -> str:
    """The PTX of instances of templates in TransformerEngine's headers, as its own runtime compiler includes them.

    Skips the test that asks where its sdist has not been unpacked.
    """
    compiler()
    name = f"transformer_engine_torch-{TRANSFORMER_ENGINE}"
    root = FOLDER / "transformer-engine" / name / "common_headers" / "common"
    if not root.is_dir():
        pytest.skip("not run through PTX: no TransformerEngine (python -m tests.engines.cuda.toolchain install)")
    source = _written(header, instances)
    folders = (root, root / "normalization", root / "include", *_runtime())
    compiler_flags = ("--expt-relaxed-constexpr", *flags)
    return _cached(source, *compiler_flags, *(f"-I{folder}" for folder in folders), architecture=ARCHITECTURE)


def cute_dsl(kind: str, hidden: int, package: str = "flashinfer") -> tuple[str, dict[str, int]]:
    """The PTX that CuTe-DSL makes of one of FlashInfer's norms, and how it is launched; compiled once.

    `package`: the folder of tests/engines/live.py that holds the version of FlashInfer.
    """
    key = _digest(" ".join((kind, str(hidden), *live.PACKAGES[package], *live.PACKAGES["cutlass-dsl"])))
    ptx_file = FOLDER / f"cute_dsl.{kind}.{hidden}.{key}"
    if not ptx_file.exists():
        _compiled_by_cute_dsl(package, kind, hidden, ptx_file)
    return (ptx_file / "kernel.ptx").read_text(), json.loads((ptx_file / "launch.json").read_text())


def _compiled_by_cute_dsl(package: str, kind: str, hidden: int, ptx_file: Path) -> None:
    absent = [name for name in ("cutlass-dsl", package) if not (live.FOLDER / name).is_dir()]
    if absent:
        pytest.skip(f"not run through PTX: no {', '.join(absent)} (python -m tests.engines.live)")
    packages = live.FOLDER / "cutlass-dsl"
    path = os.pathsep.join(map(str, (packages / "nvidia_cutlass_dsl" / "dsl_packages", packages)))
    with tempfile.TemporaryDirectory() as place:
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.uncollected",
            "tests.engines.cuda.live_cutedsl",
            package,
            kind,
            str(hidden),
            place,
        ]
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(
            command, cwd=live.ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        partial = ptx_file.with_suffix(f".{os.getpid()}")
        partial.mkdir(parents=True)
        for name in ("kernel.ptx", "launch.json"):
            shutil.copy(Path(place) / name, partial / name)
        partial.rename(ptx_file)


def _written(header: str, instances: str) -> Path:
    """A file that includes a header and makes instances of its templates."""
    text = f"#include <{header}>\n{instances}"
    source = FOLDER / f"{Path(header).stem}.{_digest(text)}.cu"
    source.write_text(text)
    return source


def _runtime() -> tuple[Path, ...]:
    """Folders of the CUDA runtime's headers."""
    kit = FOLDER / "toolkit" / "nvidia" / "cu13"
    return kit / "cccl/include", kit / "include"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _cached(source: Path, *flags: str, architecture: str, of: tuple[str, ...] = ()) -> str:
    """Compiled once: the PTX lies beside the compiler. `of`: packages beside those that all of it goes by."""
    # Environments may share the folder by a link: where headers lie says nothing, whose versions are these.
    compiler_flags = (flag for flag in flags if not flag.startswith("-I"))
    key = _digest("\0".join((source.name, source.read_text(), *compiler_flags, *COMPILER, FLASHINFER, VLLM, *of)))
    ptx_file = FOLDER / f"{source.stem}.{architecture}.{key}.ptx"
    if not ptx_file.exists():
        partial = ptx_file.with_suffix(f".{os.getpid()}")
        partial.write_text(compiled(source, *flags, architecture=architecture))
        partial.replace(ptx_file)
    return ptx_file.read_text()


def programs() -> None:
    """Compiles the programs of this project's own, with contraction and without."""
    for source in PROGRAMS.glob("*.cu"):
        source.with_suffix(".ptx").write_text(compiled(source, architecture=ARCHITECTURE))
        source.with_name(f"{source.stem}.nofma.ptx").write_text(
            compiled(source, "-fmad=false", architecture=ARCHITECTURE)
        )


if __name__ == "__main__":
    assert shutil.disk_usage(Path(sys.prefix)).free > 2 << 30, "2 GB of free space are needed."
    {"install": install, "programs": programs}[sys.argv[1]]()
