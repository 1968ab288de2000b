"""`order: onednn` against vLLM 0.32.0's GEMM for CPUs, which calls oneDNN by itself, bit for bit."""

from __future__ import annotations

import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.numerics.gemm import gemm
from tests.engines.live import ROOT, run_in
from tests.real.served import PROFILE, VARIABLES

pytestmark = pytest.mark.live
BF16 = torch.bfloat16
SHAPES = ((64, 128), (96, 512), (100, 33), (200, 100), (256, 16), (256, 1536), (512, 1000), (2048, 768), (4096, 64))
"""Inputs and outputs."""
ROWS = (1, 2, 3, 17, 64)
DRAWS = 3


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    if PROFILE != "vllm-cpu-avx512":
        pytest.skip("not compared with a live engine: oneDNN's single row is stated for AVX-512 without BF16")
    draw, folder = torch.Generator().manual_seed(0), tmp_path_factory.mktemp("gemm")
    cases = [
        {"x": torch.randn(m, k, generator=draw).to(BF16), "weight": torch.randn(n, k, generator=draw).to(BF16)}
        for k, n in SHAPES
        for m in ROWS
        for _ in range(DRAWS)
    ]
    files = [str(folder / name) for name in ("cases.pt", "answers.pt")]
    torch.save(cases, files[0])
    run_in("vllm-cpu", ROOT / "tests/real/vllm_cpu_gemm.py", files, VARIABLES)
    return list(zip(cases, torch.load(files[1]), strict=True))


def test_all_bits_by_onednn(products: list[tuple[dict[str, torch.Tensor], torch.Tensor]]) -> None:
    for case, theirs in products:
        ours = gemm(case["x"], case["weight"], None, inputs=BF16, output=BF16, order="onednn")
        assert same_bits(ours, theirs), (case["x"].shape, case["weight"].shape)


def test_torchs_own_single_row_is_another(products: list[tuple[dict[str, torch.Tensor], torch.Tensor]]) -> None:
    unequal = {
        rows: sum(
            not same_bits(gemm(case["x"], case["weight"], None, inputs=BF16, output=BF16), theirs)
            for case, theirs in products
            if len(case["x"]) == rows
        )
        for rows in ROWS
    }
    assert unequal[1] > 0
    assert not any(unequal[rows] for rows in ROWS if rows > 1)
