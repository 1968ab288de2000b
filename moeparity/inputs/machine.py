"""The machine of a run: its device (CUDA if there is one, never required), its processor, its free memory."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from moeparity.errors import DeviceError, did_you_mean, listed
from moeparity.plan.spec.profile_schema import Machine

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")

# Parameter numbers of mallopt(3) in glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 512 << 20
_LARGEST_BLOCK = 32 << 20
"""glibc accepts no larger value; larger blocks, such as a layer's experts, still go back to the system when freed."""

NAMES = ("auto", "cpu", "cuda")

PACKAGES = ("moeparity", "numpy", "safetensors", "transformers", "tokenizers")
"""Packages, besides torch and Python, on which a run's bits or files may depend."""


def choose(name: str) -> torch.device:
    """The device called `name`; `auto` is CUDA if a GPU is usable, else CPU. Raises DeviceError for an unknown name or
    an absent GPU.
    """
    if name not in NAMES:
        raise DeviceError(f"--device {name}: expected one of {', '.join(NAMES)}.{did_you_mean(name, NAMES)}")
    usable = torch.cuda.is_available()
    if name == "cuda" and not usable:
        raise DeviceError("--device cuda: torch finds no usable CUDA GPU here. Use --device cpu, or auto.")
    return torch.device("cuda" if usable and name != "cpu" else "cpu")


def versions() -> dict[str, str]:
    """The versions of Python and of installed packages that read, compute or tokenise."""
    return {"python": platform.python_version(), "torch": str(torch.__version__), **_installed()}


@cache
def _installed() -> Mapping[str, str]:
    """Installed packages; cached, since looking them up takes a twentieth of a report on few tokens."""
    installed = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def refuse_other_machine(profile: str, wanted: Machine | None, where: object) -> None:
    """Raises DeviceError if this process has another CPU or other threads than those for which a profile holds. Orders
    that are the kernels' own would differ here, so the profile would state what no kernel computes.
    """
    if wanted is None:
        return
    able, threads = torch.cpu.get_capabilities(), torch.get_num_threads()
    lacking = [name for name in wanted.has if not able.get(name)]
    further = [name for name in wanted.lacks if able.get(name)]
    reasons = [f"this CPU has no {listed(lacking)}"] if lacking else []
    reasons += [f"this CPU has {listed(further)}, which it is stated without"] if further else []
    if wanted.threads is not None and wanted.threads != threads:
        reasons.append(f"it holds for {wanted.threads} of the {threads} threads here; set OMP_NUM_THREADS")
    if reasons:
        otherwise = f" {wanted.otherwise}." if wanted.otherwise and (lacking or further) else ""
        raise DeviceError(f"{where}: profile {profile} does not hold here: {'; '.join(reasons)}.{otherwise}")


def cpu_name() -> str:
    """The processor's name; its instruction set is part of the numerics."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


_CHOSEN_BY = re.compile(r"avx_vnni\w*|avx2|avx512(?:f|_bf16|_fp16|_vnni)|amx_\w+|asimd(?:hp|dp)?|i8mm|bf16|sve2?")
"""Flags of a processor by which torch, oneDNN and MKL choose kernels."""
_CHOICES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables that change the choice of oneDNN and MKL; torch's capability shows its own."""


def instruction_set() -> str:
    """What of the processor decides which kernels run, in words: its maker, what torch uses of it, the flags by which
    libraries choose, and what the environment changes: `AuthenticAMD AVX512 avx2 avx512_bf16 avx512f`.
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    fields = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in reversed(lines))}
    maker = fields.get("vendor_id") or fields.get("CPU implementer") or platform.machine()
    flags = {flag for name in ("flags", "Features") for flag in fields.get(name, "").split()}
    relevant_flags = sorted(flag for flag in flags if _CHOSEN_BY.fullmatch(flag))
    choices = [f"{name}={os.environ[name]}" for name in _CHOICES if os.environ.get(name)]
    return " ".join([maker, torch.backends.cpu.get_cpu_capability(), *relevant_flags, *choices])


_PRECISIONS: Mapping[str, Callable[[], Any]] = {
    "cuda.matmul": lambda: torch.backends.cuda.matmul,
    "cudnn.conv": lambda: torch.backends.cudnn.conv,  # type: ignore[attr-defined]
    "cudnn.rnn": lambda: torch.backends.cudnn.rnn,
    "mkldnn.matmul": lambda: torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
    "mkldnn.conv": lambda: torch.backends.mkldnn.conv,  # type: ignore[attr-defined]
    "mkldnn.rnn": lambda: torch.backends.mkldnn.rnn,  # type: ignore[attr-defined]
}


def precisions() -> dict[str, str]:
    """In what torch multiplies fp32, by backend and kind of op: `ieee`, `tf32` or `bf16`.

    These switches also show what `allow_tf32` and `set_float32_matmul_precision` set. Those can't be read: torch 2.13
    raises RuntimeError as soon as one of these was set. `none`, if nobody set it, counts as `ieee`.
    """
    switches = {name: backend().fp32_precision for name, backend in _PRECISIONS.items()}
    return {name: "ieee" if precision == "none" else str(precision) for name, precision in switches.items()}


def set_precision(name: str, precision: str) -> None:
    """Set one of `precisions`, unless it has that value."""
    if precisions()[name] != precision:
        _PRECISIONS[name]().fp32_precision = precision


def matmul_precision() -> str:
    """In what torch multiplies fp32 matrices on GPUs and CPUs: `cuda ieee, cpu bf16`."""
    of = precisions()
    return f"cuda {of['cuda.matmul']}, cpu {of['mkldnn.matmul']}"


def device_name(device: torch.device) -> str:
    """`cpu`, or the name of the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def numerics_key(device: torch.device) -> dict[str, str]:
    """What of this machine and process decides bits, by name, in words; results of two processes that agree in it
    are equal.
    """
    return {
        "instruction set": instruction_set(),
        "torch": str(torch.__version__),
        "torch build": hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16],
        "threads": str(torch.get_num_threads()),
        "device": device_name(device),
        "matmul precision": matmul_precision(),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep up to 512 MB of freed blocks of up to 32 MB each; True if that could be set.

    Otherwise glibc returns such blocks to the system, and every node faults its pages in again, how often depends on
    what the process allocated before. Bits are not affected. Source: mallopt(3).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    trim_set: int = mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    map_set: int = mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
    return trim_set == map_set == 1


def available_bytes(device: torch.device) -> int | None:
    """Bytes that a run may still take: of the GPU, else of the machine and the control groups of this process.

    None if unknown. Sources: proc_meminfo(5), cgroups(7), kernel documentation cgroup-v2.
    """
    if device.type == "cuda":
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + reusable
    limits = [remainder for remainder in (_of_machine(), *_of_groups()) if remainder is not None]
    return min(limits) if limits else None


def _of_machine() -> int | None:
    kilobytes = _field(_PROC / "meminfo", "MemAvailable:")
    return None if kilobytes is None else kilobytes << 10


def _of_groups() -> list[int | None]:
    """What is left in each control group of this process and in the groups around it."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text("utf-8").splitlines()
    except OSError:
        return []
    remainders: list[int | None] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in {"", "memory"}:
            root = _CGROUPS / controllers
            group = root / path.lstrip("/")
            remainders += [_remainder(folder) for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return remainders


def _remainder(group: Path) -> int | None:
    """The limit minus the memory in use that can't be dropped; pages of files can be."""
    limit = _number(group / "memory.max", group / "memory.limit_in_bytes")
    usage = _number(group / "memory.current", group / "memory.usage_in_bytes")
    if limit is None or usage is None:
        return None
    # Version 1 has `total_` names, which include children, as its limit does.
    names = ("inactive_file", "active_file")
    totals = _fields(group / "memory.stat", [f"total_{name}" for name in names] + [*names])
    pages_of_files = totals[2:] if totals[0] is None else totals[:2]
    return limit - usage + sum(pages or 0 for pages in pages_of_files)


def _number(*paths: Path) -> int | None:
    """The number in the first file; None for `max`, or if there is no such file."""
    for path in paths:
        try:
            text = path.read_text("utf-8").strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None


def _field(path: Path, name: str) -> int | None:
    """The number after a name at the start of a line; None if there is none."""
    return _fields(path, [name])[0]


def _fields(path: Path, names: Sequence[str]) -> list[int | None]:
    """The numbers of several names of one file, which is read once."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return [None for _ in names]
    words = (line.split() for line in lines if line.startswith(tuple(names)))
    numbers = {name: int(number) for name, number, *_ in reversed([*words]) if name in names}
    return [numbers.get(name) for name in names]


def anonymous_bytes() -> int | None:
    """Anonymous memory of this process now, in bytes; None if the system does not say."""
    kilobytes = _field(_PROC / "self" / "status", "RssAnon:")
    return None if kilobytes is None else kilobytes << 10
