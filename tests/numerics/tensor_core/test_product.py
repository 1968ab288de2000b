"""Matrix products of tensor cores against Python's fractions, on data of every kind, and by shape."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from moeparity.numerics.bits import int_view, same_bits
from moeparity.numerics.tensor_core import eager
from moeparity.numerics.tensor_core.instructions import INSTRUCTIONS, Instruction, instruction
from moeparity.numerics.tensor_core.product import multiply_add
from tests.numerics.tensor_core.drawn import KINDS, Drawn, drawn

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def distinct() -> list[Instruction]:
    """One instruction for each arithmetic and format, and some of two formats."""
    rows: dict[object, Instruction] = {}
    for row in INSTRUCTIONS:
        if row.a == row.b or (row.a, row.b) in (("fp8_e4m3", "fp8_e5m2"), ("fp8_e5m2", "fp4_e2m1")):
            rows.setdefault((row.a, row.b, row.dot_add, row.form, row.scales), row)
    return list(rows.values())


@pytest.mark.parametrize("row", distinct(), ids=str)
def test_every_arithmetic_is_that_of_fractions(row: Instruction) -> None:
    for seed, kind in enumerate(KINDS):
        case = drawn(row, kind, seed)
        assert torch.equal(int_view(case.result()), case.expected()), kind


BF16_ON_H100 = instruction("h100", "bf16")


def bits(case: Drawn) -> torch.Tensor:
    return int_view(case.result()) & 0x7FFFFFFF


def test_drawn_data_reach_the_corners() -> None:
    """NaN, infinities, zeros, subnormal results, and sums of which the floor of exponents cuts something off."""
    wide, tiny, special = (drawn(BF16_ON_H100, kind, 3, m=40, n=40) for kind in ("wide", "tiny", "special"))
    assert (bits(wide) == 0x7F800000).any()
    assert (bits(special) == 0x7FFFFFFF).any()
    assert ((bits(tiny) < 0x00800000) & (bits(tiny) > 0)).any()
    for floor in (-300, -126):
        variant = replace(BF16_ON_H100, dot_add=replace(BF16_ON_H100.dot_add, floor=floor))
        assert not same_bits(tiny.result(variant), tiny.result()), floor


@pytest.mark.parametrize("gpu", ["a100", "h100"])
def test_cancelling_data_tell_arithmetics_apart(gpu: str) -> None:
    """A bit more or less, half a block, another GPU: each changes at least 1 % of fp32 results."""
    row = instruction(gpu, "bf16")
    case = drawn(row, "cancelling", 5, m=32, n=32)
    result, arithmetic = case.result(), row.dot_add
    variants = {
        "a bit less": replace(arithmetic, fraction=arithmetic.fraction - 1),
        "a bit more": replace(arithmetic, fraction=arithmetic.fraction + 1),
        "half a block": replace(arithmetic, products=arithmetic.products // 2),
        "another gpu": instruction({"a100": "h100", "h100": "a100"}[gpu], "bf16").dot_add,
    }
    for name, variant in variants.items():
        changed = case.result(replace(row, dot_add=variant, span=variant.products))
        assert float((changed != result).double().mean()) >= 0.01, name


VECTORS = {("v100", "fp16"): 0.0, ("a100", "fp16"): -0.5, ("l40s", "bf16"): -0.5, ("h100", "bf16"): -0.75,
           ("h100", "fp16"): -0.75, ("b200", "bf16"): -0.75, ("h100", "fp8_e5m2"): 0.0, ("l40s", "fp8_e5m2"): 0.0,
           ("b200", "fp8_e5m2"): -0.75}  # fmt: skip


@pytest.mark.parametrize(("gpu", "format_"), VECTORS)
def test_the_published_sum_of_four(gpu: str, format_: str) -> None:
    """MMA-Sim (arXiv 2511.10909), equation 10: exactly -0.875."""
    row = instruction(gpu, format_)
    a, b = torch.zeros(1, row.span), torch.zeros(row.span, 1)
    a[0, :4] = torch.tensor([-(2.0**13), -0.5, -0.25, -0.125])
    b[:4, 0] = torch.tensor([2.0**10, 1, 1, 1])
    assert float(multiply_add(row, a, b, torch.full((1, 1), 2.0**23))) == VECTORS[gpu, format_]


def test_zero_products_cut_what_was_added_before_on_hoppers_fp8() -> None:
    c = torch.tensor([[0x3F9E0651]], dtype=torch.int32).view(FP32)
    zeros = torch.zeros(32, 32, dtype=torch.float8_e4m3fn)
    result = multiply_add(instruction("h100", "fp8_e4m3"), zeros[:1], zeros[:, :1], c)
    assert result.view(torch.int32).tolist() == [[0x3F9E0400]]


def test_tf32_ignores_low_bits() -> None:
    row = instruction("a100", "tf32")
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator) for shape in ((5, 16), (16, 3)))
    cut_a, cut_b = ((x.view(torch.int32) & ~0x1FFF).view(FP32) for x in (a, b))
    assert not same_bits(a, cut_a)
    assert same_bits(multiply_add(row, a, b), multiply_add(row, cut_a, cut_b))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_zeros_and_signs(dtype: torch.dtype) -> None:
    """A sum of zero is +0, of -0 too; no rows, no columns and no K are no matter."""
    minus = torch.full((2, 16), -0.0, dtype=dtype)
    result = multiply_add(BF16_ON_H100, minus, minus.mT.contiguous(), torch.full((2, 2), -0.0))
    assert int_view(result).tolist() == [[0, 0], [0, 0]]
    for m, n, k in ((0, 3, 16), (3, 0, 16), (2, 2, 0)):
        assert multiply_add(BF16_ON_H100, torch.zeros(m, k, dtype=dtype), torch.zeros(k, n, dtype=dtype)).shape == (
            m,
            n,
        )


def test_batches_and_blocks_of_rows_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    a, b, c = (torch.randn(shape, generator=generator) for shape in ((2, 3, 5, 32), (3, 32, 7), (2, 3, 5, 7)))
    a, b = a.to(BF16), b.to(BF16)
    whole = multiply_add(BF16_ON_H100, a, b, c)
    for i in range(2):
        for j in range(3):
            alone = multiply_add(BF16_ON_H100, a[i, j], b[j], c[i, j])
            assert same_bits(alone, whole[i, j])
    one_for_all = multiply_add(BF16_ON_H100, a, b[0], c)
    assert same_bits(multiply_add(BF16_ON_H100, a, b[:1], c), one_for_all)
    for terms in (1, 16 * 7 * 2, 16 * 7 * 5 * 2):
        monkeypatch.setattr(eager, "_TERMS_ON_CPU", terms)
        assert same_bits(multiply_add(BF16_ON_H100, a, b, c), whole)
        assert same_bits(multiply_add(BF16_ON_H100, a, b[0], c), one_for_all)


def test_dtypes_of_torch_are_taken_as_they_are() -> None:
    for format_, dtype in (("bf16", BF16), ("fp16", FP16), ("fp8_e4m3", torch.float8_e4m3fn)):
        row = instruction("h100", format_)
        x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
        b = x.mT.contiguous()
        assert same_bits(multiply_add(row, x, b), multiply_add(row, x.float(), b.float()))


SCALED = instruction("b200", "fp4_e2m1", scales="ue4m3")
ZEROS = torch.zeros(2, 64)


@pytest.mark.parametrize(
    ("row", "arguments", "sentence"),
    [
        (BF16_ON_H100, {"a": torch.zeros(2, 8, dtype=BF16)}, "K is 8, which 16 does not divide"),
        (BF16_ON_H100, {"a": torch.full((2, 64), 0.1)}, "a holds 128 numbers that are no bf16, the first 0.1"),
        (BF16_ON_H100, {"c": torch.zeros(2, 2, dtype=BF16)}, "c is torch.bfloat16; expected torch.float32"),
        (BF16_ON_H100, {"b": torch.zeros(32, 2)}, r"a \(2, 64\) and b \(32, 2\) do not fit"),
        (BF16_ON_H100, {"a_scales": torch.ones(2, 4)}, "takes no scales"),
        (SCALED, {"a_scales": torch.ones(2, 4)}, r"have shapes \(\(2, 4\), None\); expected \(\(2, 4\), \(4, 2\)\)"),
        (SCALED, {"a": torch.full((2, 64), 7.0)}, "a holds 128 numbers that are no fp4_e2m1, the first 7.0"),
    ],
)
def test_what_does_not_fit_is_refused(row: Instruction, arguments: dict[str, torch.Tensor], sentence: str) -> None:
    matrices = {"a": ZEROS, "b": ZEROS.mT} | arguments
    if "b" not in arguments:
        matrices["b"] = torch.zeros(matrices["a"].shape[1], 2)
    if row is SCALED and "a" in arguments:
        matrices |= {"a_scales": torch.ones(2, 4), "b_scales": torch.ones(4, 2)}
    with pytest.raises(ValueError, match=sentence):
        multiply_add(row, **matrices)  # type: ignore[arg-type]
