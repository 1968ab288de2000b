"""exp as torch's vec library, Sleef and glibc compute it: every bit, against these libraries and against fractions."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from moeparity.numerics import cpu
from moeparity.numerics.bits import int_view, same_bits
from tests.numerics import cpu_scalar

EDGES = (0.0, -0.0, math.inf, -math.inf, math.nan, -87.3365478515625, -87.33655548095703, -87.33654, -87.0, -86.9,
         88.72283935546875, 88.7229, 1e-30, -1e-38, 3e38, -3e38)  # fmt: skip
PROGRAM = """
#include <ATen/cpu/vec/vec.h>
#include <cstdio>
int main(int, char** names) {
  FILE *in = fopen(names[1], "rb"), *out = fopen(names[2], "wb");
  using V = at::vec::Vectorized<float>;
  float x[V::size()];
  while (fread(x, sizeof x, 1, in)) {
    V::loadu(x).FUNCTION().store(x);
    fwrite(x, sizeof x, 1, out);
  }
  fclose(out);
}
"""
SETS = {
    "AVX2": ("-mavx2", "-mfma"),
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
}


def drawn(count: int) -> torch.Tensor:
    """Edges, and numbers of all sizes, most where exp is neither 0 nor infinite: a multiple of 16 of them."""
    g = torch.Generator().manual_seed(0)
    sized = torch.randn(count, generator=g) * 2.0 ** torch.randint(-20, 8, (count,), generator=g)
    return torch.cat([torch.tensor(EDGES), -torch.rand(count, generator=g) * 110, sized])


def of_torchs_header(function: str, x: torch.Tensor, folder: Path, *sets: str) -> torch.Tensor:
    """What a method of `Vectorized<float>` gives, compiled with torch's own header for this CPU; skips where it has
    none of the instruction sets, or no compiler.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in sets or shutil.which("g++") is None:
        pytest.skip(f"not compared with torch's header of {function}: none of {', '.join(sets)}, or no g++")
    source, program, root = folder / "exp.cpp", folder / "exp", Path(torch.__file__).parent
    source.write_text(PROGRAM, "utf-8")
    macros = (f"-DCPU_CAPABILITY={capability}", f"-DCPU_CAPABILITY_{capability}", f"-DFUNCTION={function}")
    libraries = (f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root / 'lib'}")
    flags = ("-O1", "-std=c++20", *macros, *SETS[capability], f"-I{root / 'include'}")
    command = ["g++", *flags, str(source), "-o", str(program), *libraries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    x.numpy().tofile(folder / "in")
    subprocess.run([str(program), str(folder / "in"), str(folder / "out")], check=True)
    result = torch.from_numpy(np.fromfile(folder / "out", dtype=np.float32))
    assert len(result) == len(x)
    return result


def test_exp_u20_is_that_of_torchs_header(tmp_path: Path) -> None:
    x = drawn(1 << 18)
    assert same_bits(cpu.exp_u20(x), of_torchs_header("exp_u20", x, tmp_path, "AVX512"))


def test_sleef_exp_is_that_of_torchs_header(tmp_path: Path) -> None:
    """Which calls Sleef, as vLLM's experts do with AVX2; it is not the C library's."""
    x = torch.cat([drawn(1 << 18), torch.linspace(-104.2, -103.8, 8), torch.linspace(88.6, 110, 8)])
    theirs = of_torchs_header("exp", x, tmp_path, *SETS)
    assert same_bits(cpu.sleef_exp(x), theirs)
    assert not same_bits(cpu.expf(x), theirs)


def test_sleef_exp_has_the_bits_of_its_steps() -> None:
    x = drawn(400)
    expected = torch.tensor(np.array([cpu_scalar.sleef_exp(value) for value in x.numpy()]))
    assert same_bits(cpu.sleef_exp(x), expected)


def test_exp_u20_has_the_bits_of_its_instructions() -> None:
    x = drawn(400)
    expected = torch.tensor(np.array([cpu_scalar.exp_u20(value) for value in x.numpy()]))
    assert same_bits(cpu.exp_u20(x), expected)


def test_expf_is_glibcs() -> None:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    library.expf.restype, library.expf.argtypes = ctypes.c_float, (ctypes.c_float,)
    x = drawn(1 << 16)
    x = x[~x.isnan()]
    assert same_bits(cpu.expf(x), torch.tensor([library.expf(value) for value in x.tolist()]))


def test_logf_is_glibcs() -> None:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    library.logf.restype, library.logf.argtypes = ctypes.c_float, (ctypes.c_float,)
    x = drawn(1 << 16).abs()
    x = torch.cat([x[(x > 1.2e-38) & x.isfinite()], torch.tensor([1.0, 0.99999994, 1.0000001, 2.0, 16.0])])
    assert same_bits(cpu.logf(x), torch.tensor([library.logf(value) for value in x.tolist()]))
    assert not same_bits(cpu.logf(x), x.double().log().float())


def test_expf_has_the_bits_of_its_formula() -> None:
    x = drawn(400).clamp(-80, 80)
    x = x[~x.isnan()]
    expected = torch.tensor(np.array([cpu_scalar.expf(value) for value in x.numpy()]))
    assert same_bits(cpu.expf(x), expected)


def test_they_are_near_exp_and_are_two_functions() -> None:
    x = drawn(4000).clamp(-86, 80).nan_to_num()
    exact = int_view(x.double().exp().float())
    assert ((int_view(cpu.exp_u20(x)) - exact).abs() <= 20).all()
    assert ((int_view(cpu.sleef_exp(x)) - exact).abs() <= 1).all()
    assert ((int_view(cpu.expf(x)) - exact).abs() <= 1).all()
    assert not torch.equal(cpu.exp_u20(x), cpu.expf(x))
    assert not same_bits(cpu.expf(x), x.double().exp().float())
