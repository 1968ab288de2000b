"""What decides bits and times beside the code: hardware, versions, torch's settings, the environment."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from operator import attrgetter
from pathlib import Path

import torch

from moeparity import __version__
from moeparity.inputs.machine import cpu_name

ROOT = Path(__file__).parents[2]
FOLDERS = ("moeparity", "graphs", "benchmarks", "tests")
"""Those that parts take code from."""

PACKAGES = ("triton", "transformers", "safetensors", "numpy")

VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "DISABLE_ADDMM_CUDA_LT",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)
"""Environment variables that choose kernels, their workspaces or their precision, or how they are started."""

SWITCHES = (
    "backends.cuda.matmul.allow_tf32",
    "backends.cuda.matmul.fp32_precision",
    "get_float32_matmul_precision",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cuda.preferred_blas_library",
    "backends.cuda.flash_sdp_enabled",
    "backends.cuda.mem_efficient_sdp_enabled",
    "backends.cuda.cudnn_sdp_enabled",
    "backends.cuda.math_sdp_enabled",
    "backends.cuda.fp16_bf16_reduction_math_sdp_allowed",
    "backends.cudnn.allow_tf32",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "are_deterministic_algorithms_enabled",
    "utils.deterministic.fill_uninitialized_memory",
)
"""Names in torch, of values and of functions that tell them."""


def machine(device: torch.device) -> dict[str, str]:
    """Hardware and versions, each as text."""
    return {
        **(_gpu(device) if device.type == "cuda" else {"device": "cpu"}),
        "processor": f"{cpu_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {_read('backends.cudnn.version')}",
        **{name: _version(name) for name in PACKAGES},
        "moeparity": f"{__version__}, commit {_commit()}, sources {sources()}",
    }


def settings() -> dict[str, str]:
    """Torch's switches and the environment as they stand, each as text; what a version of torch lacks says so."""
    variables = {name: os.environ.get(name, "not set") for name in VARIABLES}
    return {f"torch.{name}": _read(name) for name in SWITCHES} | variables


@cache
def sources() -> str:
    """A digest of the code of the checkout: a copy may have no commit, or changes on top of one."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")):
        if path.suffix in {".py", ".yaml"}:
            digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _gpu(device: torch.device) -> dict[str, str]:
    properties = torch.cuda.get_device_properties(device)
    processors, memory = properties.multi_processor_count, properties.total_memory / 2**30
    capability = f"sm_{properties.major}{properties.minor}"
    return {
        "device": f"{properties.name}, {capability}, {processors} multiprocessors, {memory:.0f} GiB",
        "driver": _printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    }


def _read(name: str) -> str:
    try:
        value = attrgetter(name)(torch)
        return str(value() if callable(value) else value)
    except (AttributeError, RuntimeError) as error:
        return f"not told ({type(error).__name__})"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    return _printed("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12")


def _printed(*command: str) -> str:
    """The first line a program prints; `unknown` where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip().partition("\n")[0] or "unknown"
