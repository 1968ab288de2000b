"""Every form of a GEMM against Python numbers, one IEEE operation at a time, bit for bit.

Data are spread over many exponents and cancel, so that a sum is rounding residue and shows its order.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from functools import reduce
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from moeparity.numerics import gemm as module
from moeparity.numerics.bits import same_bits
from moeparity.numerics.gemm import gemm
from moeparity.numerics.gemm_forms import spans
from moeparity.numerics.rounding import linear
from tests.numerics import scalar
from tests.numerics.dots import BY_HAND, Row, combined, contracted, every, lanes, operands, reverse, sequential
from tests.numerics.scalar import BF16, DTYPES, FP16, FP32, FP64, number, tensor
from tests.numerics.test_orders import orders
from tests.numerics.test_summation import SIZES, expected


@pytest.mark.parametrize(("order", "inputs"), list(itertools.product(BY_HAND, DTYPES)))
@pytest.mark.parametrize(("m", "n", "k"), [(2, 3, 23), (3, 1, 17)])
def test_an_order_adds_every_output_as_it_says(order: str, inputs: torch.dtype, m: int, n: int, k: int) -> None:
    x, weight = operands(m, n, k, inputs)
    by_hand = tensor(every(BY_HAND[order], x, weight), FP32).view(m, n)
    for output in DTYPES:
        assert same_bits(gemm(x, weight, None, inputs=inputs, output=output, order=order), by_hand.to(output))


def test_the_data_tell_orders_apart() -> None:
    x, weight = operands(3, 4, 37, FP32)
    result = {order: tuple(every(dot, x, weight)) for order, dot in BY_HAND.items()}
    assert len(set(result.values())) == len(BY_HAND) - 1
    assert result["sequential(fma)"] == result["sequential(fma, zero)"]
    # 16-bit products are exact, so that contracting them changes nothing.
    half, second = operands(3, 4, 37, BF16)
    assert every(contracted, half, second) == every(sequential, half, second) != every(reverse, half, second)


@settings(max_examples=60)
@given(data=st.data(), inputs=st.sampled_from((*DTYPES, FP64)))
def test_any_order(data: st.DataObject, inputs: torch.dtype) -> None:
    order = data.draw(orders())
    k = order.leaves or data.draw(st.integers(1, 20))
    rows = st.lists(st.lists(number(inputs, **SIZES), min_size=k, max_size=k), min_size=1, max_size=3)
    x, weight = data.draw(rows), data.draw(rows)
    pairs = list(itertools.product(x, weight))
    step = FP64 if inputs == FP64 else FP32
    by_hand = expected([a for a, _ in pairs], order, inputs, step, None, [b for _, b in pairs])
    left, right = (torch.stack([tensor(row, inputs) for row in rows]) for rows in (x, weight))
    result = gemm(left, right, None, inputs=inputs, output=step, order=str(order))
    assert same_bits(result, by_hand.view(len(x), len(weight)).to(step))


@pytest.mark.parametrize("output", DTYPES)
def test_operands_are_rounded_to_the_inputs_dtype(output: torch.dtype) -> None:
    x, weight = operands(3, 4, 9, FP32)
    result = gemm(x, weight, None, inputs=BF16, output=output, order="reverse")
    assert same_bits(result, gemm(x.to(BF16), weight.to(BF16), None, inputs=BF16, output=output, order="reverse"))
    assert not same_bits(result, gemm(x, weight, None, inputs=FP32, output=output, order="reverse"))


@pytest.mark.parametrize(("inputs", "output"), [(FP64, BF16), (BF16, FP64), (FP64, FP64)])
def test_fp64_on_either_side_adds_in_fp64(inputs: torch.dtype, output: torch.dtype) -> None:
    # fp32 would lose 2^-40 beside 1.
    x, weight = tensor([1.0, 2.0**-20, -1.0], BF16), tensor([1.0, 2.0**-20, 1.0], BF16)
    result = gemm(x, weight.view(1, 3), None, inputs=inputs, output=output, order="sequential")
    assert same_bits(result, tensor([2.0**-40], output))


@pytest.mark.parametrize(("inputs", "output"), list(itertools.product((*DTYPES, FP64), repeat=2)))
def test_native_is_the_linear_of_rounding(inputs: torch.dtype, output: torch.dtype) -> None:
    x, weight = operands(6, 5, 67, FP32)
    x, bias = x.view(2, 3, 67), weight[:, 0].clone()
    for bias_or_none in (None, bias):
        result = gemm(x, weight, bias_or_none, inputs=inputs, output=output)
        assert same_bits(result, linear(x, weight, bias_or_none, inputs=inputs, output=output))
        assert result.shape == (2, 3, 5)


PARTIALS = [(BF16, BF16), (BF16, FP32), (FP16, FP16), (FP16, FP32), (FP32, FP32), (FP32, BF16)]


def in_eights(products: list[float]) -> float:
    """Runs of eight, each pair's second product first, added to what came before when the run is whole."""
    total = 0.0
    for start in range(0, len(products), 8):
        run = products[start : start + 8]
        turned = [value for pair in range(0, len(run), 2) for value in reversed(run[pair : pair + 2])]
        total = scalar.add(total, reduce(lambda a, b: scalar.add(a, b, FP32), turned), FP32)
    return total


@pytest.mark.parametrize("k", [1, 7, 16, 23])
def test_onednn_is_native_but_for_a_single_row(k: int) -> None:
    x, weight = operands(3, 5, k, BF16)
    form: dict[str, Any] = {"inputs": BF16, "output": BF16}
    assert same_bits(gemm(x, weight, None, **form, order="onednn"), gemm(x, weight, None, **form))
    products = [[float(a) * float(b) for a, b in zip(x[0], row, strict=True)] for row in weight]
    by_hand = torch.tensor([[in_eights(row) for row in products]], dtype=FP32).to(BF16)
    assert same_bits(gemm(x[:1], weight, None, **form, order="onednn"), by_hand)


def test_onednn_cuts_no_inputs() -> None:
    x, weight = operands(2, 2, 8, BF16)
    with pytest.raises(ValueError, match="onednn does not cut the inputs"):
        gemm(x, weight, None, inputs=BF16, output=BF16, order="onednn", splits=2)


@pytest.mark.parametrize(("inputs", "partials"), PARTIALS)
@pytest.mark.parametrize("splits", [2, 4, 5])
@pytest.mark.parametrize("splits_order", ["sequential", "reverse", "fold_hi", "fused(2)"])
def test_split_k_rounds_its_parts_and_adds_them_in_order(
    inputs: torch.dtype, partials: torch.dtype, splits: int, splits_order: str
) -> None:
    """Parts are torch's GEMMs here, whose bits are taken as they come; what is made of them is by hand."""
    x, weight = operands(4, 3, 43, inputs)
    size = -(-43 // splits)
    step = inputs if inputs == partials else FP32
    parts = [
        F.linear(*(p.clone().to(step) for p in pair)).to(partials)
        for pair in zip(x.split(size, 1), weight.split(size, 1), strict=True)
    ]
    assert len(parts) == splits
    summed = [
        combined(list(leaves), splits_order, partials)
        for leaves in zip(*(p.flatten().tolist() for p in parts), strict=True)
    ]
    for output in DTYPES:
        result = gemm(
            x, weight, None, inputs=inputs, output=output, splits=splits, partials=partials, splits_order=splits_order
        )
        assert same_bits(result, tensor(summed, partials).view(4, 3).to(FP32).to(output))


@pytest.mark.parametrize(("inputs", "partials"), PARTIALS)
@pytest.mark.parametrize(("k", "splits"), [(24, 3), (23, 3), (22, 5), (7, 7)])
@pytest.mark.parametrize("order", ["sequential(fma)", "lanes(4) | fold_hi"])
def test_split_k_in_a_stated_order(inputs: torch.dtype, partials: torch.dtype, k: int, splits: int, order: str) -> None:
    x, weight = operands(2, 3, k, inputs)

    def dot(a: Row, b: Row) -> float:
        size = -(-k // splits)
        part_dot = contracted if order == "sequential(fma)" else lanes
        parts = [scalar.cast(part_dot(a[i : i + size], b[i : i + size]), partials) for i in range(0, k, size)]
        return combined(parts, "reverse", partials)

    by_hand = tensor(every(dot, x, weight), partials).view(2, 3)
    result = gemm(
        x,
        weight,
        None,
        inputs=inputs,
        output=FP32,
        order=order,
        splits=splits,
        partials=partials,
        splits_order="reverse",
    )
    assert same_bits(result, by_hand.to(FP32))


@pytest.mark.parametrize(("inputs", "partials"), PARTIALS)
def test_native_parts_whose_sums_are_exact(inputs: torch.dtype, partials: torch.dtype) -> None:
    """Small whole numbers: whatever order a kernel adds them in, only the stated roundings are left."""
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = (
        torch.randint(-99, 100, shape, generator=generator).float() for shape in ((3, 31), (4, 31), (4,))
    )
    by_hand = []
    for a, (b, extra) in itertools.product(x.tolist(), zip(weight.tolist(), bias.tolist(), strict=True)):
        exact = [sum(Fraction(a[i]) * Fraction(b[i]) for i in range(31)[span]) for span in spans(31, 3)]
        total = combined([scalar.cast(float(part), partials) for part in exact], "sequential", partials)
        by_hand.append(scalar.add(total, extra, partials))
    result = gemm(x, weight, bias, inputs=inputs, output=FP32, splits=3, partials=partials)
    assert same_bits(result, tensor(by_hand, partials).view(3, 4).to(FP32))


def test_a_split_changes_what_is_rounded() -> None:
    # 1 + 2^-8 is a tie of bf16, which 2^-9 breaks if it is still there.
    x, weight = tensor([1.0, 2.0**-8, 2.0**-9, 0.0], BF16), torch.ones(1, 4, dtype=BF16)
    unsplit, two = (
        gemm(x, weight, None, inputs=BF16, output=BF16, splits=splits, partials=BF16).item() for splits in (1, 2)
    )
    assert (unsplit, two) == (1 + 2.0**-7, 1.0)
    x, weight = tensor([2.0**24, 1.0, 1.0, -(2.0**24)], FP32), torch.ones(1, 4)
    result = [
        gemm(x, weight, None, inputs=FP32, output=FP32, order="sequential", splits=splits).item()
        for splits in (1, 2, 4)
    ]
    assert result == [0.0, 1.0, 0.0]


def test_a_part_lies_in_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    operands_seen: list[torch.Tensor] = []

    def watched(x: torch.Tensor, weight: torch.Tensor, bias: None, **dtypes: torch.dtype) -> torch.Tensor:
        operands_seen.extend((x, weight))
        return linear(x, weight, bias, **dtypes)

    monkeypatch.setattr(module, "linear", watched)
    x, weight = torch.randn(21)[None, :], torch.randn(5, 21)
    together = gemm(x, weight, None, inputs=FP32, output=FP32, splits=3)
    assert len(operands_seen) == 6
    for part in operands_seen:
        assert part.is_contiguous()
        assert part.data_ptr() % 64 == 0
        assert part.untyped_storage().nbytes() == part.numel() * 4
    shifted = torch.randn(22)[1:].copy_(x[0])[None, :]
    assert same_bits(gemm(shifted, weight, None, inputs=FP32, output=FP32, splits=3), together)


@pytest.mark.parametrize("order", [*BY_HAND, "cascade", "blocks(8, fma) | lanes(2) | fold_lo"])
@pytest.mark.parametrize("splits", [1, 3])
def test_a_row_does_not_depend_on_the_others(order: str, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = operands(8, 7, 19, FP32)

    def run(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return gemm(x, weight, None, inputs=FP32, output=FP32, order=order, splits=splits)

    together = run(x, weight)
    assert together.is_contiguous()
    for at_once, least, widest in ((1 << 18, 256, 2048), (1, 14, 3)):
        for name, value in (("AT_ONCE", at_once), ("LEAST", least), ("WIDEST", widest)):
            monkeypatch.setattr(module, name, value)
        assert same_bits(run(x, weight), together)
        assert same_bits(run(x[3:5], weight), together[3:5])
        assert same_bits(run(x, weight[3:4]), together[:, 3:4])
    assert same_bits(torch.cat([run(x[i], weight)[None] for i in range(8)]), together)
    assert same_bits(run(x.t().contiguous().t(), weight), together)
    assert same_bits(run(x.view(2, 4, 19), weight), together.view(2, 4, 7))


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (3, 0)])
@pytest.mark.parametrize("splits", [1, 2])
def test_no_rows_and_no_columns(rows: int, columns: int, splits: int) -> None:
    for order in ("native", "fold_hi"):
        out = gemm(
            torch.ones(2, rows, 4), torch.ones(columns, 4), None, inputs=BF16, output=FP16, order=order, splits=splits
        )
        assert (out.shape, out.dtype) == ((2, rows, columns), FP16)


class Largest(TorchDispatchMode):
    """The most bytes that any tensor made meanwhile takes."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.bytes = max(self.bytes, out.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("order", ["sequential", "fold_hi", "blocks(16) | sequential", "fused(4)"])
def test_products_are_never_all_there(order: str) -> None:
    x, weight = operands(64, 64, 512, BF16)
    with Largest() as largest:
        gemm(x, weight, None, inputs=BF16, output=BF16, order=order)
    assert largest.bytes <= 64 * 64 * 512 * 4 // 16


@pytest.mark.parametrize("splits", [1, 2])
def test_negative_zero_is_kept_where_nothing_is_added_to_it(splits: int) -> None:
    x, weight, zero = torch.full((1, 4), -0.0), torch.ones(1, 4), torch.zeros(1)

    def run(bias: torch.Tensor | None, order: str) -> torch.Tensor:
        return gemm(x, weight, bias, inputs=FP32, output=BF16, order=order, splits=splits)[0]

    for order in ("sequential", "sequential(fma)", "fold_hi", "fused(3)"):
        assert same_bits(run(None, order), tensor([-0.0], BF16))
        assert same_bits(run(-zero, order), tensor([-0.0], BF16))
        assert same_bits(run(zero, order), tensor([0.0], BF16))
    assert same_bits(run(None, "sequential(zero)"), tensor([0.0], BF16))


def test_the_bias_is_added_once_and_last() -> None:
    x, weight, bias = torch.ones(1, 4), torch.ones(1, 4), torch.tensor([2.0**24])
    for splits in (1, 2, 4):
        # Before the sum, or between its parts, each 1 would be lost beside 2^24.
        result = gemm(x, weight, bias, inputs=FP32, output=FP32, order="sequential", splits=splits)
        assert result.item() == 2.0**24 + 4
        assert gemm(x, weight, bias, inputs=BF16, output=FP32, splits=splits).item() == 2.0**24 + 4


def test_the_bias_meets_the_accumulator_before_its_rounding() -> None:
    # In bf16 both the sum, a tie, and the bias, 2^-9 beside 1, would be lost.
    x, weight, bias = tensor([1.0, 2.0**-8], BF16), torch.ones(1, 2, dtype=BF16), torch.tensor([2.0**-9 + 2.0**-20])
    assert gemm(x, weight, bias, inputs=BF16, output=BF16, order="sequential").item() == 1 + 2.0**-7
    assert gemm(x, weight, bias, inputs=BF16, output=BF16, splits=2).item() == 1 + 2.0**-7
    assert gemm(x, weight, bias, inputs=BF16, output=BF16, splits=2, partials=BF16).item() == 1.0
    # Nor is it rounded as the operands are.
    assert gemm(x, weight, bias, inputs=BF16, output=FP32, order="reverse").item() == 1 + 2.0**-8 + 2.0**-9 + 2.0**-20
    assert gemm(x, weight, bias, inputs=BF16, output=FP32, splits=2).item() == 1 + 2.0**-8 + 2.0**-9 + 2.0**-20


def test_levels_round_where_they_say() -> None:
    x, weight = tensor([1.0, 2.0**-9, 2.0**-9, 2.0**-9], BF16), torch.ones(1, 4, dtype=BF16)
    result = {
        order: gemm(x, weight, None, inputs=BF16, output=FP32, order=order).item()
        for order in ("sequential", "blocks(2, round=bf16) | sequential", "sequential(accumulate=bf16)")
    }
    assert list(result.values()) == [1 + 3 * 2.0**-9, 1 + 2.0**-8, 1.0]
    # A sum that ends in fp64 meets the bias in fp64.
    x, weight, bias = tensor([1.0, 2.0**-30], FP32), torch.ones(1, 2), -torch.ones(1)
    for order, residue in (("sequential(accumulate=fp64)", 2.0**-30), ("sequential", 0.0)):
        assert gemm(x, weight, bias, inputs=FP32, output=FP32, order=order).item() == residue


def test_what_cannot_be_added_up_is_refused() -> None:
    x, weight = torch.ones(1, 7), torch.ones(2, 7)
    for choices, message in (
        ({"order": "tree(0+1)"}, r"order: tree\(0\+1\) adds up 2 products, and each output has 7"),
        ({"splits": 8}, "splits: 7 inputs cannot be cut into 8 splits"),
        ({"splits": 2, "splits_order": "sequential(fma)"}, "splits_order: .* splits are sums already"),
    ):
        with pytest.raises(ValueError, match=message):
            gemm(x, weight, None, inputs=FP32, output=FP32, **choices)
