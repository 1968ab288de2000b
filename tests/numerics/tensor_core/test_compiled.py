"""Compiled chains have the eager form's bits, are kept, and are left alone where they cannot be had."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.numerics.compiled import Executor
from moeparity.numerics.tensor_core import compiled
from moeparity.numerics.tensor_core.instructions import INSTRUCTIONS, Instruction, instruction
from moeparity.numerics.tensor_core.product import multiply_add
from tests.numerics.tensor_core.drawn import KINDS, drawn

with_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

BF16 = instruction("h100", "bf16")


def compiled_instructions() -> list[Instruction]:
    """One for each arithmetic and format."""
    rows: dict[object, Instruction] = {}
    for row in INSTRUCTIONS:
        if row.form == "chain" and row.dot_add.result != "fp16" and row.a == row.b:
            rows.setdefault((row.dot_add, row.a), row)
    return list(rows.values())


@with_compiler
@pytest.mark.parametrize("row", compiled_instructions(), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_is_the_eager_forms(row: Instruction, kind: str) -> None:
    for seed, (m, n) in enumerate(((70, 33), (1, 8), (3, 5))):
        case = drawn(row, kind, seed, m=m, n=n)  # type: ignore[arg-type]
        a, b = case.a.float(), case.b.float().mT
        eager = multiply_add(row, a, b, case.c, executor="eager")
        assert same_bits(multiply_add(row, a, b, case.c, executor="compiled"), eager)
        assert same_bits(multiply_add(row, a, b.contiguous(), case.c, executor="compiled"), eager)
        if row.a == "bf16":
            narrow = a.bfloat16(), b.bfloat16()
            assert same_bits(multiply_add(row, *narrow, case.c, executor="compiled"), eager)
            assert same_bits(multiply_add(row, narrow[0], narrow[1].contiguous(), case.c, executor="compiled"), eager)


@with_compiler
def test_batches_and_strides() -> None:
    generator = torch.Generator().manual_seed(2)
    a, b, c = (torch.randn(shape, generator=generator) for shape in ((2, 3, 5, 32), (3, 32, 9), (2, 3, 5, 9)))
    a, b = a.bfloat16(), b.bfloat16()
    for left, right in ((a, b), (a, b[0]), (a[..., ::2, :], b), (a.mT.contiguous().mT, b[..., :7])):
        rows, columns = left.shape[-2], right.shape[-1]
        addend = c[..., :rows, :columns]
        eager, quick = (multiply_add(BF16, left, right, addend, executor=way) for way in ("eager", "compiled"))
        assert same_bits(eager, quick)


@with_compiler
def test_subnormal_numbers_are_kept_where_torch_flushes_them() -> None:
    a, b = torch.full((1, 16), 2.0**-70).bfloat16(), torch.full((16, 8), 2.0**-70).bfloat16()
    before = multiply_add(BF16, a, b, executor="compiled")
    torch.set_flush_denormal(True)
    try:
        flushed = multiply_add(BF16, a, b, executor="compiled")
    finally:
        torch.set_flush_denormal(False)
    assert before.view(torch.int32).tolist() == [[1 << (149 - 136)] * 8]
    assert same_bits(flushed, before)


@with_compiler
@pytest.mark.parametrize("executor", ["eager", "compiled"])
def test_a_subnormal_factor_has_the_least_exponent(executor: Executor) -> None:
    """2^-130 times 2^126 counts as 2^0 where terms are cut: of c, 2^-5 and 2^-26, the second part is lost."""
    a, b = torch.zeros(1, 16), torch.zeros(16, 1)
    a[0, 3], b[3, 0] = 2.0**-130, 2.0**126
    c = torch.full((1, 1), 2.0**-5 + 2.0**-26)
    for left, right in ((a, b), (a.bfloat16(), b.bfloat16()), (b.mT, a.mT)):
        assert float(multiply_add(BF16, left, right, c, executor=executor)) == 2.0**-4 + 2.0**-5


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing is compiled yet, and the cache is empty."""
    monkeypatch.setenv("MOEPARITY_CACHE", str(tmp_path))
    compiled.library.cache_clear()
    yield tmp_path
    compiled.library.cache_clear()


def result() -> torch.Tensor:
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    return multiply_add(BF16, x, x.mT, executor="compiled")


@with_compiler
def test_it_is_compiled_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled.library().function is not None
    (library,) = (fresh / "compiled").iterdir()
    assert library.suffix == ".so"
    compiled.library.cache_clear()
    written = library.stat().st_mtime_ns
    assert compiled.library().function is not None
    assert library.stat().st_mtime_ns == written
    monkeypatch.setattr(compiled, "_FLAGS", (*compiled._FLAGS, "-DOTHER"))
    compiled.library.cache_clear()
    assert compiled.library().function is not None
    assert len(list((fresh / "compiled").iterdir())) == 2


@pytest.mark.usefixtures("fresh")
def test_without_a_compiler_eager_torch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = result()
    compiled.library.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert same_bits(result(), wanted)
    assert compiled.library().why_eager == "FileNotFoundError: no C++ compiler: set CXX, or install g++"


@with_compiler
def test_a_folder_that_others_write_to_is_not_used(fresh: Path) -> None:
    (fresh / "compiled").mkdir()
    (fresh / "compiled").chmod(0o777)
    assert "others may write to" in str(compiled.library().why_eager)


FAULTS = {
    "rounds to nearest": ("FE_TOWARDZERO", "FE_TONEAREST"),
    "takes tiny products in fp32": ("LOW = -100", "LOW = -126"),
    "takes huge products in fp32": ("HIGH = 120", "HIGH = 127"),
    "takes zeros for numbers": ("if (bits == 0) return ABSENT;", ""),
}


@with_compiler
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("fresh")
def test_a_library_with_other_bits_is_not_used(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = compiled._source().decode()
    right, wrong = FAULTS[fault]
    assert right in source
    monkeypatch.setattr(compiled, "_source", lambda: source.replace(right, wrong).encode())
    monkeypatch.setattr(compiled, "_FLAGS", (*compiled._FLAGS, "-O1"))
    assert str(compiled.library().why_eager).startswith("other bits when compiled")


@with_compiler
@pytest.mark.usefixtures("fresh")
def test_small_work_is_not_worth_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(4, 32).bfloat16()
    monkeypatch.setitem(compiled._WORK, "products", 0)
    multiply_add(BF16, x, x.mT)
    assert compiled.library.cache_info().currsize == 0
    monkeypatch.setitem(compiled._WORK, "products", compiled.LEAST_WORK)
    multiply_add(BF16, x, x.mT)
    assert compiled.library.cache_info().currsize == 1
