"""Chains of dot-adds compiled on this machine: chain.cpp, for instructions of form `chain` with an fp32 result.

The compiler is Inductor's ($CXX, else g++). What it makes is kept in the user's cache under a digest of the source, the
flags and the compiler's version. Before its first use it is held to the eager form, on data that cancel, overflow, fall
below the least exponent, and are not finite. If there is no compiler, or a bit differs, the eager form runs.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from moeparity import paths
from moeparity.numerics.bits import same_bits
from moeparity.numerics.compiled import Executor
from moeparity.numerics.tensor_core import eager
from moeparity.numerics.tensor_core.formats import FORMATS
from moeparity.numerics.tensor_core.instructions import INSTRUCTIONS, Instruction
from moeparity.numerics.tensor_core.operands import numbers, power_of_two

LEAST_WORK = 1 << 26
"""`auto` compiles once so many products were asked for in this process: eager torch takes as long as compiling does."""

_FLAGS = (
    "-O3", "-std=c++17", "-shared", "-fPIC", "-frounding-math", "-fno-trapping-math", "-ffp-contract=off", "-w",
)  # fmt: skip
_MACHINE = {"AVX2": ("-march=x86-64-v3",), "AVX512": ("-march=x86-64-v4", "-mprefer-vector-width=512")}
_KEPT_BITS = {"fp32": -1, "fp32_e8m13": ~0x3FF}

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
_MATRIX = [_POINTER, _LONG, _LONG, _INT, _INT]
_ARGUMENTS: list[Any] = [*_MATRIX, *_MATRIX, _POINTER, _LONG, _LONG, _LONG, _INT, _INT, _INT, ctypes.c_int32]

_WORK = {"products": 0}
_PRODUCTS = (4, 8, 16, 32)
"""Of one step, for which chain.cpp is built."""
"""Asked for so far."""


@dataclass(frozen=True, slots=True)
class Library:
    """What was compiled: its function, or why there is none."""

    function: Callable[..., int] | None
    why_eager: str | None = None


def pays(instruction: Instruction, a: torch.Tensor, c: torch.Tensor, executor: Executor) -> bool:
    """Whether the compiled form is there for a product of a [batch, M, K] plus c [batch, M, N], and is due."""
    fits = instruction.form == "chain" and instruction.dot_add.result != "fp16" and a.device.type == "cpu"
    fits = fits and instruction.dot_add.products in _PRODUCTS
    if not fits or executor == "eager" or a.shape[-1] == 0 or c.numel() == 0:
        return False
    _WORK["products"] += c.numel() * a.shape[-1]
    return (executor == "compiled" or _WORK["products"] >= LEAST_WORK) and library().function is not None


def product(instruction: Instruction, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a [batch, M, K] times b [batch, K, N] plus c [batch, M, N] -> [batch, M, N], fp32.

    Raises ValueError if a or b holds numbers that its format lacks.
    """
    function = library().function
    assert function is not None
    return _product(function, instruction, a, b, c)


def _product(
    function: Callable[..., int], instruction: Instruction, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    formats, arithmetic = (FORMATS[instruction.a], FORMATS[instruction.b]), instruction.dot_add
    left, right = (numbers(x, format_, name) for x, format_, name in zip((a, b), formats, "ab", strict=True))
    result = c.contiguous().clone()
    for index in range(c.shape[0]):
        unknown = function(
            *_matrix(left[index], formats[0].least), *_matrix(right[index], formats[1].least),
            result[index].data_ptr(), *c.shape[1:], a.shape[-1],
            arithmetic.products, arithmetic.fraction, arithmetic.floor, _KEPT_BITS[arithmetic.result],
        )  # fmt: skip
        assert not unknown, instruction
    return result


def _matrix(x: torch.Tensor, least: int) -> tuple[int, ...]:
    return x.data_ptr(), *x.stride(), int(x.dtype == torch.bfloat16), least


@cache
def library() -> Library:
    """What was compiled for this process and held to the eager form."""
    try:
        function = _load(_built()).moeparity_chain
    except (OSError, subprocess.SubprocessError) as error:
        return Library(None, f"{type(error).__name__}: {error}")
    function.argtypes = _ARGUMENTS
    for instruction, *matrices in _trials():
        if not same_bits(_product(function, instruction, *matrices), eager.product(instruction, *matrices)):
            return Library(None, f"other bits when compiled: {instruction}")
    return Library(function)


def _load(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def _built() -> Path:
    """The compiled file, from the user's cache or made now. Raises OSError or SubprocessError."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise FileNotFoundError("no C++ compiler: set CXX, or install g++")
    source = _source()
    flags = (*_FLAGS, *_MACHINE.get(torch.backends.cpu.get_cpu_capability(), ()))
    version = _run([compiler, "--version"])
    digest = hashlib.sha256(b"\0".join([source, repr(flags).encode(), version])).hexdigest()
    folder = _folder()
    path = folder / f"{digest[:32]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            (Path(fresh) / "chain.cpp").write_bytes(source)
            _run([compiler, *flags, "-o", f"{fresh}/chain.so", f"{fresh}/chain.cpp"])
            (Path(fresh) / "chain.so").replace(path)
    return path


def _source() -> bytes:
    return files(__package__).joinpath("chain.cpp").read_bytes()


def _folder() -> Path:
    """A folder of the user's cache to which nobody else may write, since what lies there is run."""
    cache_folder = paths.cache_folder()
    if cache_folder is None:
        raise FileNotFoundError("no home for a cache: set MOEPARITY_CACHE")
    folder = cache_folder / "compiled"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others may write to {folder}")
    return folder


def _run(command: list[str]) -> bytes:
    return subprocess.run(command, check=True, capture_output=True, timeout=300).stdout  # noqa: S603 - our own words


def _trials() -> Iterator[tuple[Instruction, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """For each arithmetic that is compiled, matrices of bf16 and of others, with exponents of every kind."""
    generator = torch.Generator().manual_seed(0)
    rows: dict[object, Instruction] = {}
    for row in INSTRUCTIONS:
        if row.form == "chain" and row.dot_add.result != "fp16":
            rows.setdefault((row.dot_add, row.a == "bf16"), row)
    for row in rows.values():
        for least, most in ((-1, 2), (-76, -60), (-120, 120)):
            shape = (1, 5, 4 * row.span), (1, 4 * row.span, 19)
            a, b = (_drawn(row.a, size, least, most, generator) for size in shape)
            if row.a == "bf16":
                a, b = a.bfloat16(), b.bfloat16()
            yield row, a, b, _drawn("tf32", (1, 5, 19), 2 * least, min(2 * most, 127), generator)


def _drawn(format_: str, shape: tuple[int, ...], least: int, most: int, generator: torch.Generator) -> torch.Tensor:
    """Numbers of a format with exponents in a range, some of them zero, and where the range is wide, not finite."""
    layout = FORMATS[format_]
    places = torch.randint(-(1 << layout.precision) + 1, 1 << layout.precision, shape, generator=generator)
    lowest = max(least, layout.least + 1)
    highest = max(lowest, most if layout.largest is None else min(most, math.frexp(layout.largest)[1] - 1))
    powers = torch.randint(lowest, highest + 1, shape, generator=generator) - layout.precision
    x = (places.to(torch.float64) * power_of_two(powers)).to(torch.float32)
    if layout.largest is None and most > 100:
        x = x.masked_fill(torch.rand(shape, generator=generator) < 0.002, torch.inf)
    return x.masked_fill(torch.rand(shape, generator=generator) < 0.2, 0.0)
