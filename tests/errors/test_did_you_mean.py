"""What is meant is found by case, by other tools' words and by likeness; what nobody means is not."""

from __future__ import annotations

import pytest

from moeparity.errors import did_you_mean

DTYPES = ("bf16", "fp16", "fp32", "fp64")
PLACEMENT = ("tensor", "expert", "sequence")


@pytest.mark.parametrize(
    ("name", "names", "meant"),
    [
        ("float32", DTYPES, "fp32"),
        ("bfloat16", DTYPES, "bf16"),
        ("half", DTYPES, "fp16"),
        ("VLLM", ("vllm", "sglang"), "vllm"),
        ("vlm", ("vllm", "sglang"), "vllm"),
        ("tensor_paralel_size", PLACEMENT, "tensor"),
        ("tp-size", PLACEMENT, "tensor"),
        ("EP", PLACEMENT, "expert"),
    ],
)
def test_what_is_meant(name: str, names: tuple[str, ...], meant: str) -> None:
    assert did_you_mean(name, names) == f" Did you mean {meant!r}?"


@pytest.mark.parametrize("name", ["fp8", "pipeline", "", "bf16"])
def test_nothing_is_meant(name: str) -> None:
    assert did_you_mean(name, PLACEMENT) == ""
    assert did_you_mean("bf16", DTYPES) == ""


def test_a_strict_likeness_takes_no_part_of_a_name() -> None:
    assert did_you_mean("qwen3_vl_moe", ("qwen3_moe", "qwen3"), cutoff=0.9) == ""
    assert did_you_mean("qwen3_mo", ("qwen3_moe", "qwen3"), cutoff=0.9) == " Did you mean 'qwen3_moe'?"
