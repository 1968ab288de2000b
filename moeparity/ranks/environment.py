"""The environment report of a rank: versions, device, and the switches that change numerics, as they are in effect."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import torch.distributed as dist
from torch import _dynamo
from torch._dynamo.eval_frame import OptimizedModule

from moeparity.inputs.machine import instruction_set, precisions, set_precision, versions
from moeparity.ranks.differing_fields import Records, difference

_VARIABLES = re.compile(
    r"(CUBLAS|CUDNN|CUDA|NVIDIA|TORCH|PYTORCH|TORCHINDUCTOR|NCCL|NVTE|GLOO|OMP|MKL|ONEDNN|DNNL|KMP|VLLM|SGLANG|SGL"
    r"|FLASHINFER|FLASH|TRITON|TRTLLM|MEGATRON|DEEPEP|DEEP_EP|HF|TRANSFORMERS)_.*|PYTHONHASHSEED"
)
_OF_RANK = re.compile(
    r"CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|TORCHELASTIC_.*|TORCH_NCCL_.*DUMP.*|.*_(PORT|HOST|ADDR|HOME|CACHE|DIR|PATH|FILE|TOKEN)"
)
"""Variables that differ from rank to rank by design, or that name places."""

ENGINES = (
    "vllm", "sglang", "tensorrt_llm", "megatron-core", "transformer-engine", "flash-attn", "flashinfer-python",
    "triton", "torchtitan", "verl",
)  # fmt: skip
"""Packages whose kernels a job may run; `versions` has those that moeparity itself needs."""

_SWITCHES: Mapping[str, Callable[[], object]] = {
    "cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "matmul.allow_bf16_reduced_precision_reduction": (
        lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ),
    "matmul.allow_fp16_reduced_precision_reduction": (
        lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    ),
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
    "fill_uninitialized_memory": lambda: torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    "default_dtype": torch.get_default_dtype,
    "sdp.flash": torch.backends.cuda.flash_sdp_enabled,
    "sdp.mem_efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "sdp.math": torch.backends.cuda.math_sdp_enabled,
    "sdp.cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "dynamo.disable": lambda: _dynamo.config.disable,
    "threads": torch.get_num_threads,
    "mkldnn": lambda: torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,  # type: ignore[no-untyped-call]
}
_PRECISION = "switch.fp32_precision."
"""Fields that begin so have the names of `precisions`."""
_PINS: Mapping[str, Callable[[str], object]] = {
    "cudnn.benchmark": lambda text: setattr(torch.backends.cudnn, "benchmark", text == "True"),
    "cudnn.deterministic": lambda text: setattr(torch.backends.cudnn, "deterministic", text == "True"),
    "matmul.allow_bf16_reduced_precision_reduction": lambda text: setattr(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", text == "True"
    ),
    "matmul.allow_fp16_reduced_precision_reduction": lambda text: setattr(
        torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", text == "True"
    ),
    "deterministic_algorithms": lambda text: torch.use_deterministic_algorithms(text == "True"),
    "sdp.flash": lambda text: torch.backends.cuda.enable_flash_sdp(text == "True"),
    "sdp.mem_efficient": lambda text: torch.backends.cuda.enable_mem_efficient_sdp(text == "True"),
    "sdp.math": lambda text: torch.backends.cuda.enable_math_sdp(text == "True"),
    "sdp.cudnn": lambda text: torch.backends.cuda.enable_cudnn_sdp(text == "True"),
    "threads": lambda text: torch.set_num_threads(int(text)),
}


def report(modules: Iterable[torch.nn.Module] = (), extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Versions, device, driver, switches in effect, variables that choose kernels, and for each model its attention
    implementation and whether it is compiled. extra: what the user adds, such as the backend that an engine chose.
    """
    cuda = torch.cuda.is_available()
    fields = {f"version.{name}": text for name, text in versions().items()}
    for name in ENGINES:
        with suppress(PackageNotFoundError):
            fields[f"version.{name}"] = version(name)
    fields |= {
        "version.cuda": str(torch.version.cuda),
        "system": f"{platform.system()} {platform.machine()}",
        "instruction set": instruction_set(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "driver": _driver() if cuda else "none",
        "backend": dist.get_backend() if dist.is_initialized() else "none",
        "nccl": _nccl() if cuda else "none",
    }
    fields |= {f"switch.{name}": str(read()) for name, read in _SWITCHES.items()}
    fields |= {f"{_PRECISION}{name}": text for name, text in precisions().items()}
    fields |= {
        f"${name}": value
        for name, value in sorted(os.environ.items())
        if _VARIABLES.fullmatch(name) and not _OF_RANK.fullmatch(name)
    }
    for place, module in enumerate(modules):
        config = getattr(module, "config", None)
        fields[f"model.{place}.attention"] = str(getattr(config, "_attn_implementation", None))
        fields[f"model.{place}.experts"] = str(getattr(config, "_experts_implementation", None))
        fields[f"model.{place}.dtype"] = _dtypes(module)
        fields[f"model.{place}.compiled"] = str(isinstance(module, OptimizedModule))
    return fields | {f"given.{name}": value for name, value in (extra or {}).items()}


def _dtypes(module: torch.nn.Module) -> str:
    """The floating-point dtypes of a model's parameters."""
    names = {
        str(parameter.dtype).removeprefix("torch.")
        for parameter in module.parameters()
        if parameter.is_floating_point()
    }
    return ", ".join(sorted(names)) or "none"


def pin(records: Records) -> list[str]:
    """Set the switches on this rank to what rank 0 has in effect, if they can be set; returns the names of those
    that were.
    """
    record = report()
    names = [f"switch.{name}" for name in _PINS] + [name for name in record if name.startswith(_PRECISION)]
    changed = [name for name in names if records[0].get(name) not in (None, record[name])]
    for name in changed:
        if name.startswith(_PRECISION):
            set_precision(name.removeprefix(_PRECISION), records[0][name])
        else:
            _PINS[name.removeprefix("switch.")](records[0][name])
    return [name.removeprefix("switch.") for name in changed]


def unequal(records: Records) -> str | None:
    """Which fields of the environments differ, in words; None if none does."""
    words = difference(
        {rank: {f"environment.{name}": text for name, text in fields.items()} for rank, fields in records.items()}
    )
    return None if words is None else f"{words}. Set it to one value on all ranks; for a switch, pin=True does so"


def _nccl() -> str:
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


def _driver() -> str:
    try:
        with Path("/proc/driver/nvidia/version").open(encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return "unknown"
    return next((word for word in words if re.fullmatch(r"\d+\.\d+(\.\d+)?", word)), "unknown")
