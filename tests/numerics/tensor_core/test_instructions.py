"""Which arithmetic a GPU has for which formats, and what is said of one that has none."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from moeparity.numerics.tensor_core.instructions import ARCHITECTURES, INSTRUCTIONS, DotAdd, instruction


def dot_add(products: int, fraction: int, result: str, floor: int) -> DotAdd:
    return DotAdd(products=products, fraction=fraction, result=result, floor=floor)  # type: ignore[arg-type]


TABLE = {
    ("v100", "fp16", "fp32", "mma"): dot_add(4, 23, "fp32", -131),
    ("v100", "fp16", "fp16", "mma"): dot_add(4, 23, "fp16", -19),
    ("t4", "fp16", "fp32", "mma"): dot_add(8, 24, "fp32", -132),
    ("a100", "bf16", "fp32", "mma"): dot_add(8, 24, "fp32", -132),
    ("a100", "fp16", "fp16", "mma"): dot_add(8, 24, "fp16", -20),
    ("a2", "tf32", "fp32", "mma"): dot_add(4, 24, "fp32", -132),
    ("l40s", "fp8_e4m3", "fp32", "mma"): dot_add(16, 13, "fp32_e8m13", -139),
    ("l40s", "fp8_e5m2", "fp16", "mma"): dot_add(16, 13, "fp16", -139),
    ("h100", "bf16", "fp32", "mma"): dot_add(16, 25, "fp32", -133),
    ("h200", "bf16", "fp32", "wgmma"): dot_add(16, 25, "fp32", -133),
    ("h100", "fp16", "fp16", "wgmma"): dot_add(16, 25, "fp16", -21),
    ("h100", "tf32", "fp32", "wgmma"): dot_add(8, 25, "fp32", -133),
    ("h100", "fp8_e4m3", "fp32", "wgmma"): dot_add(32, 13, "fp32_e8m13", -139),
    ("h100", "fp8_e4m3", "fp32", "mma"): dot_add(16, 25, "fp32", -133),
    ("b200", "bf16", "fp32", "tcgen05"): dot_add(16, 25, "fp32", -133),
    ("gb300", "fp8_e4m3", "fp32", "tcgen05"): dot_add(32, 25, "fp32", -133),
    ("rtx_pro_6000", "fp8_e4m3", "fp32", "mma"): dot_add(32, 25, "fp32", -133),
}


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_parameters_are_those_of_the_published_models(row: tuple[str, str, str, str]) -> None:
    gpu, format_, result, unit = row
    assert instruction(gpu, format_, result=result, unit=unit).dot_add == TABLE[row]  # type: ignore[arg-type]


def test_large_tiles_use_the_newest_unit() -> None:
    assert [instruction(gpu, "bf16").unit for gpu in ("a100", "h100", "b200", "sm_120")] == [
        "mma", "wgmma", "tcgen05", "mma",
    ]  # fmt: skip


def test_mma_of_fp8_is_of_fp16_where_a_gpu_has_another_unit_for_it() -> None:
    forms = {gpu: instruction(gpu, "fp8_e4m3", unit="mma").form for gpu in ("l40s", "h100", "b200", "rtx_pro_6000")}
    assert forms == {"l40s": "chain", "h100": "late addend", "b200": "late addend", "rtx_pro_6000": "chain"}


def test_what_no_recorded_row_holds_says_so() -> None:
    for row in INSTRUCTIONS:
        unrecorded = row.scales is not None or row.unit == "tcgen05" or row.gpu in ("sm_75", "sm_103", "sm_120")
        assert not (unrecorded and row.evidence == "vectors"), row


def test_no_two_rows_are_alike() -> None:
    names = [str(row) for row in INSTRUCTIONS]
    assert len(set(names)) == len(names)
    assert {row.gpu for row in INSTRUCTIONS} == set(ARCHITECTURES.values())
    assert str(instruction("b200", "fp4_e2m1", scales="ue4m3")) == (
        "sm_100 tcgen05 fp4_e2m1, group scales: ue4m3 per 16 -> fp32"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"gpu": "h1000", "a": "bf16"}, "gpu: 'h1000' has no known arithmetic. Did you mean 'h100'?"),
        ({"gpu": "h100", "a": "bf61"}, "factors: 'bf61' is no format of a tensor core"),
        (
            {"gpu": "a100", "a": "fp8_e4m3"},
            "a100 mma: fp8_e4m3 x fp8_e4m3 -> fp32: the GPU has no such instruction. It multiplies fp16, bf16, tf32.",
        ),
        ({"gpu": "h100", "a": "bf16", "result": "fp16"}, "h100 wgmma: bf16 x bf16 -> fp16: the GPU has no such"),
        ({"gpu": "a100", "a": "bf16", "unit": "wgmma"}, "It multiplies nothing: it has no such unit."),
        (
            {"gpu": "b200", "a": "fp4_e2m1", "scales": "ue8m0"},
            "there are several. State block and form as one of: block scales, ue8m0 per 32; group scales, ",
        ),
    ],
)
def test_what_a_gpu_lacks_is_named(arguments: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        instruction(**arguments)  # type: ignore[arg-type]


def test_the_table_needs_no_torch() -> None:
    code = "import sys, moeparity.numerics.tensor_core.instructions; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
