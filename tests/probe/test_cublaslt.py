"""`moeparity kernel plans`: the file that it writes, by a library that answers from a table, and what it refuses."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.cli.commands import main
from moeparity.documents.checked import read
from moeparity.errors import MoeparityError
from moeparity.numerics.tensor_core.gemm_plans import FIELDS
from moeparity.plan.spec.gemm_plans_schema import PlansFile
from moeparity.probe.cublaslt import gpu_of, in_runs
from tests.plan.test_gemm_plans import SHAPES

QUICKSTART = Path(__file__).parents[2] / "checkpoints/quickstart"
Inside = Callable[..., tuple[int, str, str]]


class Table:
    """What cuBLASLt 13.1 answers to the calls that are made: two splits up to four rows, then one."""

    def __init__(self) -> None:
        self.layouts: list[tuple[int, int]] = []
        self.cublasLtGetVersion = lambda: 130100
        self.cublasLtGetVersion.restype = None  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: self.answer(name, arguments)

    def answer(self, name: str, arguments: tuple[Any, ...]) -> int:
        if name == "cublasLtMatrixLayoutCreate":
            self.layouts.append((arguments[2].value, arguments[3].value))
        if name == "cublasLtMatmulAlgoConfigGetAttribute":
            split = 2 if self.layouts[-1][1] <= 4 else 1
            answers = {"algo_id": 66, "stages_id": 35, "split_k": split, "reduction_scheme": 2 * (split > 1)}
            arguments[2]._obj.value = answers.get(FIELDS[arguments[1]], 0)
        return 7 if name == "cublasLtMatmulAlgoGetHeuristic" and self.layouts[-1][1] > 8 else 0


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    def command(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["moeparity", "kernel", "plans", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return command


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Table())


@pytest.mark.usefixtures("gpu")
def test_plans_are_written_for_every_shape_and_number_of_rows(inside: Inside, tmp_path: Path) -> None:
    out = tmp_path / "plans.yaml"
    code, output, errors = inside(QUICKSTART, "--out", out, "--rows", "7")
    assert code == 0, errors
    assert "plans of 3 shapes, 1 to 7 rows" in output
    file = read(out, PlansFile)
    assert (file.gpu, file.library, file.workspace) == ("h100", "13.1.0", 32 << 20)
    assert [(of.n, of.k) for of in file.gemms] == list(SHAPES)
    assert file.gemms[0].plans == ["1-4: 66 0 2 2 0 0 35 0 0", "5-7: 66 0 1 0 0 0 35 0 0"]


@pytest.mark.usefixtures("gpu")
def test_an_error_of_the_library_is_one_sentence_and_no_file(inside: Inside, tmp_path: Path) -> None:
    code, _, errors = inside(QUICKSTART, "--out", tmp_path / "plans.yaml", "--rows", "9")
    assert code == 2
    assert "cublasLtMatmulAlgoGetHeuristic of cuBLASLt 130100 on NVIDIA H100 80GB HBM3: status 7" in errors
    assert not (tmp_path / "plans.yaml").exists()


def test_without_a_gpu_it_says_so(inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, errors = inside(QUICKSTART, "--out", tmp_path / "plans.yaml")
    assert code == 2
    assert "finds none here. Ask on the machine that serves or trains." in errors


@pytest.mark.usefixtures("gpu")
def test_without_the_library_it_says_so(inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    code, _, errors = inside(QUICKSTART, "--out", tmp_path / "plans.yaml")
    assert code == 2
    assert "libcublasLt.so.13 of torch" in errors


@pytest.mark.parametrize(
    ("device", "gpu"),
    [("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100"), ("Tesla V100-SXM2-16GB", "v100"), ("NVIDIA A2", "a2"),
     ("NVIDIA RTX PRO 6000 Blackwell", "rtx_pro_6000")],
)  # fmt: skip
def test_a_gpu_is_known_by_its_full_name(device: str, gpu: str) -> None:
    assert gpu_of(device) == gpu


def test_another_gpu_is_refused() -> None:
    with pytest.raises(MoeparityError, match="NVIDIA A20 is no GPU whose arithmetic is known here"):
        gpu_of("NVIDIA A20")


def test_neighbours_that_are_alike_are_one_run() -> None:
    assert list(in_runs([[1, 2], [1, 2], [3, 4], [1, 2]])) == ["1-2: 1 2", "3: 3 4", "4: 1 2"]
