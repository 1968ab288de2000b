"""CUDA programs of this project's own, compiled with contraction and without, against numpy."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from moeparity import ptx
from moeparity.numerics.fma import fma

FOLDER = Path(__file__).parent / "programs"
BUILDS = ("reductions", "reductions.nofma")
RNG = np.random.default_rng(7)


@lru_cache(maxsize=2)
def module(build: str = "reductions") -> ptx.Module:
    return ptx.load((FOLDER / f"{build}.ptx").read_text())


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def fold(x: np.ndarray) -> np.ndarray:
    """The halving tree over the last axis."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def collatz(value: int) -> int:
    """Steps down to 1."""
    steps = 0
    while value != 1:
        value, steps = (3 * value + 1 if value % 2 else value // 2), steps + 1
    return steps


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(("rows", "n", "threads"), [(3, 1000, 128), (1, 31, 32), (5, 513, 96)])
def test_a_row_sum_is_the_threads_then_the_butterfly_then_the_warps(
    build: str, rows: int, n: int, threads: int
) -> None:
    x, y = normal(rows, n), np.zeros(rows, np.float32)
    module(build).launch("row_sum_of_squares", rows, threads, [x, y, n])
    padded = np.pad(x, ((0, 0), (0, -n % threads))).reshape(rows, -1, threads)
    sums = np.zeros((rows, threads), np.float32)
    for at in range(padded.shape[1]):
        fused = fma(*(torch.from_numpy(part.copy()) for part in (padded[:, at], padded[:, at], sums))).numpy()
        # A lane beyond the row adds nothing, where an fma of two zeros would add +0: the same.
        sums = fused if build == "reductions" else sums + padded[:, at] * padded[:, at]
    warps = fold(sums.reshape(rows, -1, 32))
    total = np.zeros(rows, np.float32)
    for warp in range(warps.shape[1]):
        total = total + warps[:, warp]
    assert (y.view(np.int32) == total.view(np.int32)).all()


def test_contraction_is_what_the_compiler_was_told() -> None:
    a, b, c = normal(1000), normal(1000), normal(1000)
    results = {}
    for build in BUILDS:
        results[build] = np.zeros(1000, np.float32)
        module(build).launch("contracted", 8, 128, [a, b, c, results[build], 1000])
    exact = fma(*(torch.from_numpy(x) for x in (a, b, c))).numpy()
    assert (results["reductions"] == exact).all()
    assert (results["reductions.nofma"] == a * b + c).all()
    assert (results["reductions"] != results["reductions.nofma"]).any()


def test_a_tree_in_shared_memory() -> None:
    x, y = normal(6, 256), np.zeros(6, np.float32)
    module().launch("shared_tree", 6, 256, [x, y], shared=1024)
    assert (y == fold(x)).all()


def test_a_row_maximum_through_vector_loads() -> None:
    x, y = normal(4, 200), np.zeros(4, np.float32)
    module().launch("row_max", 4, 32, [x, y, 200])
    assert (y == x.max(1)).all()


def test_threads_that_part_come_together_again() -> None:
    x, y = np.arange(1, 301, dtype=np.int32), np.zeros((300, 2), np.int32)
    module().launch("divergent", 3, 128, [x, y, 300])
    steps = [collatz(value) for value in range(1, 301)]
    assert y.tolist() == [[count, count] for count in steps]


def test_a_switch_takes_each_of_its_branches() -> None:
    kind, x, y = np.arange(100, dtype=np.int32) % 8, normal(100), np.zeros(100, np.float32)
    module().launch("switched", 1, 128, [kind, x, y, 100])
    unit = np.float32(1)
    cases = [x + unit, x * np.float32(3), np.sqrt(np.abs(x)), unit / x, -x, x * x, 0 * x, 0 * x]
    assert (y == np.choose(kind, cases)).all()


def test_atomics_go_by_ascending_thread_and_under_a_seed_in_another_order() -> None:
    x, n = RNG.integers(0, 4, 500).astype(np.int32), 500
    count, sums = np.zeros(4, np.int32), np.zeros(4, np.float32)
    module().launch("histogram", 4, 128, [x, count, sums, n])
    expected = np.zeros(4, np.float32)
    for i in range(n):
        expected[x[i]] += np.float32(0.1) * np.float32(i)
    assert count.tolist() == np.bincount(x).tolist()
    assert (sums == expected).all()
    seeded = set()
    for seed in range(4):
        again, seeded_sums = np.zeros(4, np.int32), np.zeros(4, np.float32)
        module().launch("histogram", 4, 128, [x, again, seeded_sums, n], seed=seed)
        assert (again == count).all()
        seeded.add(seeded_sums.tobytes())
    assert len(seeded) > 1


def test_a_barrier_counts_and_joins_predicates() -> None:
    x, y = normal(3, 160), np.zeros((3, 2), np.int32)
    module().launch("block_count", 3, 160, [x, y])
    assert y.tolist() == [[int((row > 0).sum()), int((row > 2.5).any())] for row in x]


def test_packed_bf16_is_rounded_once_in_each_half() -> None:
    a, b = (torch.randn(64, generator=torch.Generator().manual_seed(seed)).bfloat16() for seed in (1, 2))
    y = torch.zeros_like(a)
    module().launch("pairs", 1, 32, [a, b, y, 32])
    exact = a.double() * b.double() + (a + b).double()  # 8-bit significands: no second rounding can hide in 53 bits
    assert torch.equal(y.view(torch.int16), exact.bfloat16().view(torch.int16))


def test_fp8_is_torchs() -> None:
    x = torch.from_numpy(np.concatenate([normal(50) * 100, [500.0, -1e9, 0.0, -0.0, 2e-3, 1e-9, float("nan")]])).float()
    x = torch.cat([x, x[:1]]).contiguous()
    codes, back = torch.zeros(58, dtype=torch.uint8), torch.zeros(58)
    module().launch("quantised", 1, 32, [x, codes, back, 29])
    torchs = x.clamp(-448, 448).to(torch.float8_e4m3fn)
    nan = x.isnan()
    assert torch.equal(codes[~nan], torchs.view(torch.uint8)[~nan])
    assert (codes[nan] == 0x7F).all()
    assert torch.equal(back[~nan], torchs.float()[~nan])


def test_expf_is_cudas_own_and_nothing_is_assumed() -> None:
    x, y = (normal(500) * 20).astype(np.float32), np.zeros(500, np.float32)
    run = module().launch("exponentials", 1, 512, [x, y, 500])
    exact = np.exp(x.astype(np.float64))
    off = np.abs(y - exact) / np.spacing(exact.astype(np.float32))
    assert run.assumed == ()
    assert off.max() < 2.5
    assert (y != exact.astype(np.float32)).any()


def test_blocks_meet_in_global_memory_whichever_comes_last() -> None:
    x, outcomes = normal(8, 32), set()
    for seed in (None, 1, 2, 3):
        part, come, y = np.zeros(8, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
        module().launch("last_block", 8, 32, [x, part, come, y], seed=seed)
        outcomes.add(float(y[0]))
    total = np.float32(0)
    for value in fold(x):
        total = total + value
    assert outcomes == {float(total)}


def test_a_butterfly_that_goes_the_other_way_has_other_bits() -> None:
    text = (FOLDER / "reductions.ptx").read_text()
    begin = text.index(".entry row_sum_of_squares")
    end = text.index(".entry", begin + 1)
    opposite = {"16": "1", "8": "2", "2": "8", "1": "16"}
    turned, count = re.subn(
        r"(mov\.u32 \t%r\d+, )(16|8|2|1);", lambda match: f"{match[1]}{opposite[match[2]]};", text[begin:end]
    )
    assert count == 4
    x = normal(50, 512)
    right, wrong = np.zeros(50, np.float32), np.zeros(50, np.float32)
    module().launch("row_sum_of_squares", 50, 64, [x, right, 512])
    ptx.load(text[:begin] + turned + text[end:]).launch("row_sum_of_squares", 50, 64, [x, wrong, 512])
    assert 0 < (right != wrong).sum() < 50
