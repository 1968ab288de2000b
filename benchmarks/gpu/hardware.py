"""What this GPU's instructions and libraries compute, recorded: tensor cores, special functions, plans and sums.

    python -m benchmarks.gpu.hardware --out FOLDER

Every file can be held to a model of the arithmetic later and elsewhere: it has the inputs, or the seed and the digest
of what was drawn, and the outputs as bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.gpu.surroundings import machine
from moeparity.probe.cublaslt import Library

GPU = torch.device("cuda")


# Special functions: digests of all outputs, and how far they are from rounding to nearest

SPECIAL = r"""
extern "C" __global__ void NAME(const unsigned* x, unsigned* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) asm volatile("INSTRUCTION %0, %1;" : "=r"(y[i]) : "r"(x[i]));
}
"""


_CHUNK = 1 << 20
"""Outputs of a digest."""


def spans() -> Mapping[str, tuple[str, Callable[[torch.Tensor], torch.Tensor], list[tuple[int, int]]]]:
    """By instruction: what it approximates in fp64, and spans of bit patterns."""
    unit, binade = 0x3F800000, 1 << 23
    angle = [(0x3A000000, 0x3A000000 + 2**20), (0x3F800000, 0x3F800000 + binade), (0x40000000, 0x40000000 + 2**22)]
    return {
        "rcp.approx.ftz.f32": ("rcp", lambda x: 1 / x, [(unit, unit + binade)]),
        "rcp.approx.f32": ("rcp", lambda x: 1 / x, [(0x7E000000, 0x7E000000 + 2**20), (0x00400000, 0x00500000)]),
        "rsqrt.approx.ftz.f32": ("rsqrt", lambda x: 1 / x.sqrt(), [(unit, unit + 2 * binade)]),
        "rsqrt.approx.f32": ("rsqrt", lambda x: 1 / x.sqrt(), [(0x00200000, 0x00280000)]),
        "sqrt.approx.ftz.f32": ("sqrt", torch.sqrt, [(unit, unit + 2 * binade)]),
        "sqrt.approx.f32": ("sqrt", torch.sqrt, [(0x00200000, 0x00280000)]),
        "ex2.approx.ftz.f32": (
            "ex2",
            torch.exp2,
            [(0x3E800000, 0x40000000), (0xBE800000, 0xC0000000), (0x33000000, 0x33100000), (0x41A00000, 0x41B00000),
             (0xC2F80000, 0xC3000000), (0xC1A00000, 0xC1B00000)],
        ),
        "ex2.approx.f32": ("ex2", torch.exp2, [(0xC2FC0000, 0xC3160000), (0x00000001, 0x00010001)]),
        "lg2.approx.ftz.f32": ("lg2", torch.log2, [(0x3F000000, 0x40000000)]),
        "lg2.approx.f32": ("lg2", torch.log2, [(0x00200000, 0x00280000), (0x41000000, 0x41100000)]),
        "sin.approx.ftz.f32": ("sin", torch.sin, angle),
        "cos.approx.ftz.f32": ("cos", torch.cos, angle),
        "tanh.approx.f32": ("tanh", torch.tanh, [(0x3D000000, 0x40C00000)]),
    }  # fmt: skip


def special_functions() -> dict[str, Any]:
    """Of each instruction and span of bit patterns (first, last, step): digests of outputs, distances in ulp."""
    import cupy  # type: ignore[import-not-found] # noqa: PLC0415 - it is there with CUDA only

    recorded: dict[str, Any] = {}
    for number, (instruction, (name, truth, of)) in enumerate(spans().items()):
        source = SPECIAL.replace("NAME", f"special{number}").replace("INSTRUCTION", instruction)
        kernel = cupy.RawKernel(source, f"special{number}")
        for first, last in of:
            step = 8 if name == "tanh" else 1
            patterns = torch.arange(first, last, step, dtype=torch.int64, device=GPU).to(torch.int32)
            there = torch.empty_like(patterns)
            count = patterns.numel()
            kernel((-(-count // 256),), (256,), (cupy.asarray(patterns), cupy.asarray(there), count))
            exact = truth(patterns.view(torch.float32).double()).float().view(torch.int32)
            distance = (there.long() - exact.long()).abs()
            recorded[f"{instruction} {first:#x} {last:#x} {step}"] = {
                "not_nearest": (distance != 0).double().mean().item(),
                "most_ulp": int(distance.max()),
                "digests": [
                    hashlib.sha256(part.numpy().tobytes()).hexdigest()[:16] for part in torch.split(there.cpu(), _CHUNK)
                ],
            }
    return recorded


# Tensor cores: one `tl.dot` of Triton, inputs and outputs as they are


def tensor_cores() -> dict[str, Any]:
    """Of each format, tile and kind of data: a [64 or 16, K], b [N, K], c [M, N] and the fp32 or fp16 result."""
    from benchmarks.gpu.dots import dot  # noqa: PLC0415 - Triton is there with CUDA only

    recorded: dict[str, Any] = {}
    formats = {"bf16": (torch.bfloat16, 64), "fp16": (torch.float16, 64), "tf32": (torch.float32, 64),
               "e4m3": (torch.float8_e4m3fn, 128), "e5m2": (torch.float8_e5m2, 128)}  # fmt: skip
    for name, (dtype, k) in formats.items():
        for rows in (16, 64):
            for kind, draw in KINDS.items():
                generator = torch.Generator().manual_seed(len(recorded))
                a, b, c = draw(rows, 64, k, name, generator)
                a, b = a.to(dtype), b.to(dtype)
                for deep in (32 if name.startswith("e") or name in {"bf16", "fp16"} else 16, k):
                    d = dot(a.to(GPU), b.to(GPU), c.to(GPU), block_k=deep, fp16=False)
                    recorded[f"{name} {rows} {kind} {deep}"] = {"a": a, "b": b, "c": c, "d": d.cpu()}
                if name == "fp16":
                    d = dot(a.to(GPU), b.to(GPU), c.half().to(GPU), block_k=k, fp16=True)
                    recorded[f"fp16 to fp16 {rows} {kind} {k}"] = {"a": a, "b": b, "c": c.half(), "d": d.cpu()}
    return recorded


def _normal(m: int, n: int, k: int, name: str, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(m, k, generator=g), torch.randn(n, k, generator=g), torch.randn(m, n, generator=g)


def _wide(m: int, n: int, k: int, name: str, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Exponents that spread over what the format holds, so that small products lose bits."""
    reach = 3 if name == "e4m3" else 6
    a, b, c = _normal(m, n, k, name, g)
    a, b, c = (x * 2.0 ** torch.randint(-reach, reach + 1, x.shape, generator=g) for x in (a, b, c))
    return a, b, c


def _cancelling(
    m: int, n: int, k: int, name: str, g: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every second product nearly takes back the one before it."""
    a, b, c = _normal(m, n, k, name, g)
    noise = 1 + torch.randint(-1, 2, (n, k // 2), generator=g) * (0.125 if name in {"e4m3", "e5m2"} else 0.0078125)
    a[:, 1::2], b[:, 1::2] = a[:, ::2], -b[:, ::2] * noise
    return a, b, c * 2.0**-6


def _subnormal(
    m: int, n: int, k: int, name: str, g: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Numbers below the format's least normal one, and sums near fp32's."""
    a, b, c = _normal(m, n, k, name, g)
    least = {"bf16": -126, "tf32": -126, "fp16": -14, "e5m2": -14, "e4m3": -6}[name]
    small = 2.0 ** torch.randint(least - 2, least + 3, (m, k), generator=g).double()
    factors = 2.0 ** torch.randint(-12, 3, (n, k), generator=g).double()
    tiny = 2.0 ** torch.randint(-149, -120, (m, n), generator=g).double()
    return (a * small).float(), (b * factors).float(), (c * tiny).float()


def _special(m: int, n: int, k: int, name: str, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """NaN, infinities, signed zeros, largest numbers, rows of zeros."""
    a, b, c = _normal(m, n, k, name, g)
    a[0], b[1] = 0.0, -0.0
    a[2, 3], a[3, 5], b[5, 7], c[4, 4], c[5, 9] = float("inf"), float("nan"), float("-inf"), float("inf"), float("nan")
    a[6], b[9] = 3e38 if name in {"bf16", "tf32"} else 448.0, 3e38 if name in {"bf16", "tf32"} else 448.0
    c[0, :8], c[0, 8:16] = 0.0, -0.0
    return a, b, c


KINDS = {"normal": _normal, "wide": _wide, "cancelling": _cancelling, "subnormal": _subnormal, "special": _special}


# GEMMs of torch: the library's plan and a corner of the output

SHAPES = ((2048, 128), (2048, 768), (2048, 1536), (768, 2048), (2048, 5120), (4096, 2048), (2048, 151936), (2880, 2880),
          (7168, 256), (7168, 2112), (1536, 24576), (512, 32768), (16384, 7168), (2000, 1000), (2044, 516),
          (1001, 333))  # fmt: skip
ROWS = (1, 2, 8, 16, 33, 64, 200, 1024)


def integers(rows: int, k: int, seed: int) -> torch.Tensor:
    """[rows, k] bf16 of whole numbers only, which every version of torch draws alike: neighbours cancel."""
    generator = torch.Generator().manual_seed(seed)
    mantissa = torch.randint(128, 256, (rows, k), generator=generator).float()
    scale = 2.0 ** torch.randint(-12, -4, (rows, k), generator=generator).float()
    sign = 1 - 2 * torch.randint(0, 2, (rows, k), generator=generator).float()
    return (mantissa * scale * sign).bfloat16()


def gemms() -> dict[str, Any]:
    """`F.linear` in bf16 for each shape and number of rows: the output's first 64 columns, and the plans."""
    library, recorded = Library(), {}
    for number, (k, n) in enumerate(SHAPES):
        weight = integers(min(n, 4096), k, 1000 + number)
        weight = weight.repeat(-(-n // len(weight)), 1)[:n].to(GPU)
        for rows in ROWS:
            x = integers(rows, k, 5000 + rows)
            y = torch.nn.functional.linear(x.to(GPU), weight)
            again = torch.nn.functional.linear(x.to(GPU), weight)
            torch.backends.cuda.preferred_blas_library("cublaslt")
            lt = torch.nn.functional.linear(x.to(GPU), weight)
            torch.backends.cuda.preferred_blas_library("cublas")
            biased = torch.addmm(torch.zeros(n, device=GPU, dtype=torch.bfloat16), x.to(GPU), weight.t())
            recorded[f"{rows} {k} {n}"] = {
                "x": hashlib.sha256(x.view(torch.int16).numpy().tobytes()).hexdigest()[:16],
                "cublas": y[:16, :64].cpu(),
                "fp32": torch.mm(x.to(GPU), weight.t(), out_dtype=torch.float32)[:16, :64].cpu(),
                "repeatable": torch.equal(y, again),
                "lt_differs": int((y != lt).sum()),
                "addmm_differs": int((y != biased).sum()),
                "plan_32MiB": library.plan(rows, k, n, 32 << 20),
                "plan_1MiB": library.plan(rows, k, n, 1 << 20),
                "plan_0": library.plan(rows, k, n, 0),
            }
    return {"library": {"version": library.version}, **recorded}


def gemms_of_fp8() -> dict[str, Any]:
    """`torch._scaled_mm` of e4m3 with scales of 1, with and without fast accumulation: the first 64 columns."""
    recorded, scale = {}, torch.ones((), device=GPU)
    for k, n in ((2048, 768), (4096, 2048), (7168, 512), (2048, 5120)):
        weight = integers(n, k, 7000 + k).to(torch.float8_e4m3fn)
        for rows in (16, 64, 200, 1024):
            x = (integers(rows, k, 8000 + rows)).to(torch.float8_e4m3fn)
            for fast in (False, True):
                y = torch._scaled_mm(  # noqa: SLF001
                    x.to(GPU), weight.to(GPU).t(), scale, scale, out_dtype=torch.float32, use_fast_accum=fast
                )
                recorded[f"{rows} {k} {n} {'fast' if fast else 'promoted'}"] = y[:16, :64].cpu()
    return recorded


def gemms_of_fp32() -> dict[str, Any]:
    """`F.linear` in fp32, with and without TF32: the first 64 columns."""
    recorded = {}
    for k, n in ((2048, 128), (7168, 256), (4096, 64), (2880, 32), (512, 2048), (2044, 516), (1001, 333)):
        weight = integers(n, k, 7500 + k).float() * (1 + 2.0**-12)
        for rows in ROWS:
            x = integers(rows, k, 8500 + rows).float() * (1 + 2.0**-13)
            for tf32 in (False, True):
                torch.backends.cuda.matmul.allow_tf32 = tf32
                y = torch.nn.functional.linear(x.to(GPU), weight.to(GPU))
                recorded[f"{rows} {k} {n} {'tf32' if tf32 else 'fp32'}"] = y[:16, :64].cpu()
    torch.backends.cuda.matmul.allow_tf32 = False
    return recorded


# Sums of torch


def means() -> dict[str, Any]:
    """`mean(-1)` of fp32 rows around the shapes at which the launch changes: the outputs' bits."""
    recorded = {}
    for rows in (8, 15, 16, 17, 31, 32, 63, 64, 65, 128, 256, 1024, 4096):
        for hidden in (2048, 4096, 6144, 7168, 8064, 8188, 8192, 8196, 12288, 16384, 32768):
            g = torch.Generator().manual_seed(rows * 100003 + hidden)
            x = torch.randint(-(2**20), 2**20, (min(rows, 64), hidden), generator=g).float() * 2.0**-10
            x = x.repeat(-(-rows // 64), 1)[:rows].contiguous()
            recorded[f"{rows} {hidden}"] = x.to(GPU).mean(-1)[:64].cpu()
    return recorded


def write(file: Path, where: Mapping[str, str], recorded: Mapping[str, Any]) -> None:
    """Tensors by their path in `recorded`, KEY or KEY/NAME; what is no tensor is JSON in the metadata."""
    flat = {
        f"{key}/{name}" if name else key: value
        for key, entry in recorded.items()
        for name, value in (entry.items() if isinstance(entry, Mapping) else [("", entry)])
    }
    tensors = {key: value.contiguous() for key, value in flat.items() if isinstance(value, torch.Tensor)}
    facts = {key: value for key, value in flat.items() if not isinstance(value, torch.Tensor)}
    save_file(tensors, file, {"machine": json.dumps(dict(where)), "facts": json.dumps(facts)})


PARTS = {
    "tensor_cores": tensor_cores,
    "gemms": gemms,
    "gemms_of_fp8": gemms_of_fp8,
    "gemms_of_fp32": gemms_of_fp32,
    "means": means,
    "special_functions": special_functions,
}


def main() -> int:
    """Write a file for each part; what fails says so, and the others go on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=list(PARTS))
    options = parser.parse_args()
    failed = 0
    for name in options.only or PARTS:
        started = time.monotonic()
        try:
            write(options.out / f"{name}.safetensors", machine(GPU), PARTS[name]())
        except Exception as error:  # noqa: BLE001 - the other parts go on
            print(f"{name}: {type(error).__name__}: {error}")
            failed = 1
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
