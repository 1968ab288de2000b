"""Every recorded output of seven GPUs is given, and neighbours of the arithmetic do not give them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from moeparity.numerics.tensor_core import eager
from moeparity.numerics.tensor_core.instructions import ARCHITECTURES, INSTRUCTIONS, Instruction, instruction
from moeparity.numerics.tensor_core.product import multiply_add

FILES = sorted(Path(__file__).with_name("recorded").glob("*.npz"))
RECORDED = [(path, result) for path in FILES for result in ("fp32", "fp16") if f"d_{result}" in np.load(path)]


def floats(patterns: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(patterns.view(np.int32).copy()).view(torch.float32)


def case(path: Path, result: str) -> tuple[Instruction, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Instruction, a [n, 1, K], b [n, K, 1], c [n, 1, 1], d [n]."""
    gpu, name = path.stem.split("_")
    format_ = f"fp8_{name}" if name.startswith("e") else name
    rows = np.load(path)
    a, b, c, d = (floats(rows[key]) for key in ("a", "b", "c", f"d_{result}"))
    # fp8 with an fp16 result was recorded of `mma`, which has another arithmetic on Hopper and Blackwell.
    unit = "mma" if gpu == "b200" or result == "fp16" else None
    row = instruction({"ada": "l40s"}.get(gpu, gpu), format_, result=result, unit=unit)  # type: ignore[arg-type]
    if row.unit == "wgmma" and name.startswith("e"):
        c = torch.zeros_like(c)
    missing = -a.shape[1] % row.span
    a, b = (torch.nn.functional.pad(x, (0, missing)) for x in (a, b))
    return row, a[:, None], b[..., None], c[:, None, None].to(getattr(torch, f"float{result[2:]}")), d


def differing(row: Instruction, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> int:
    results = multiply_add(row, a, b, c).flatten().float()
    return int((results.view(torch.int32) != d.view(torch.int32)).sum())


def ids(value: object) -> str:
    return value.stem if isinstance(value, Path) else str(value)


def test_all_recorded_gpus_and_formats_are_here() -> None:
    """1,500 rows each; the architecture of L40S is Ada's."""
    assert {path.stem.split("_")[0] for path in FILES} == {"v100", "a100", "a2", "ada", "h100", "h200", "b200"}
    assert len(FILES) == 27
    assert len(RECORDED) == 42
    assert all(np.load(path)["a"].shape[0] == 1500 for path in FILES)


@pytest.mark.parametrize(("path", "result"), RECORDED, ids=ids)
def test_every_recorded_row_is_given(path: Path, result: str) -> None:
    row, *tensors = case(path, result)
    assert differing(row, *tensors) == 0
    # tf32 was recorded with 4 products of the 8 that one step takes.
    assert row.evidence == ("read" if row.a == "tf32" and row.dot_add.products == 8 else "vectors")


def test_what_rests_on_vectors_has_them() -> None:
    shown = {(row.gpu, row.a, row.b, row.dot_add) for row, *_ in (case(*recorded) for recorded in RECORDED)}
    claimed = {(row.gpu, row.a, row.b, row.dot_add) for row in INSTRUCTIONS if row.evidence == "vectors"}
    assert claimed <= shown
    assert {gpu for gpu, *_ in claimed} == {
        ARCHITECTURES[gpu] for gpu in ("v100", "a100", "a2", "l40s", "h100", "b200")
    }


def changed(row: Instruction, **changes: object) -> Instruction:
    return replace(row, dot_add=replace(row.dot_add, **changes))  # type: ignore[arg-type]


def tells_bits(path: Path, result: str) -> bool:
    """Whether rows can tell one bit: not those that were rounded to fp16, but for 13 bits, or added late to c."""
    row = case(path, result)[0]
    return row.form == "chain" and (result == "fp32" or row.dot_add.fraction == 13)


TELLING = [recorded for recorded in RECORDED if tells_bits(*recorded)]
LATE = [recorded for recorded in RECORDED if case(*recorded)[0].form == "late addend"]


@pytest.mark.parametrize(("path", "result"), TELLING, ids=ids)
@pytest.mark.parametrize("bits", [-1, 1])
def test_one_fraction_bit_shows(path: Path, result: str, bits: int) -> None:
    row, *tensors = case(path, result)
    share = differing(changed(row, fraction=row.dot_add.fraction + bits), *tensors) / 1500
    assert 0.025 < share < 0.55, share


@pytest.mark.parametrize(("path", "result"), [recorded for recorded in RECORDED if recorded not in LATE], ids=ids)
def test_half_a_block_shows(path: Path, result: str) -> None:
    """But not of tf32 on Hopper and later, where only 4 of 8 products were recorded."""
    row, *tensors = case(path, result)
    half = row.dot_add.products // 2
    share = differing(replace(changed(row, products=half), span=half), *tensors) / 1500
    assert share == 0 if row.a == "tf32" and half == 4 else 0.06 < share < 0.32, share


def nearest(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """The exact sum rounded once, in c's dtype."""
    terms = torch.cat([a[:, 0].double() * b[..., 0].double(), c[:, 0].double()], dim=1)
    return torch.tensor([math.fsum(row) for row in terms.tolist()], dtype=torch.float64).to(c.dtype)


@pytest.mark.parametrize(("path", "result"), TELLING, ids=ids)
def test_rounding_to_nearest_shows(path: Path, result: str) -> None:
    _, a, b, c, d = case(path, result)
    share = int((nearest(a, b, c).float().view(torch.int32) != d.view(torch.int32)).sum()) / 1500
    assert 0.24 < share <= 1, share


@pytest.mark.parametrize(("path", "result"), LATE, ids=ids)
def test_halves_in_place_of_pairs_show_in_fp16(path: Path, result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32 the recorded sums of 32 fp8 products are exact in any order, and only the late c is seen."""
    row, a, b, c, d = case(path, result)
    monkeypatch.setattr(eager, "_ALTERNATE", (list(range(16)), list(range(16, 32))))
    share = differing(row, a, b, c, d) / 1500
    assert 0.2 < share < 0.34 if result == "fp16" else share == 0, share
    monkeypatch.undo()
    early = replace(row, form="chain", span=16)
    assert differing(early, a, b, c, d) / 1500 > 0.2
