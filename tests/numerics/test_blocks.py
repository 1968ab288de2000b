"""GEMMs on blocks of rows: no bit goes by how many rows there are, and a place that shows is refused."""

from __future__ import annotations

import contextlib

import pytest
import torch

from moeparity.numerics import blocks
from moeparity.numerics.bits import same_bits
from moeparity.numerics.blocks import PlaceError, in_blocks
from moeparity.numerics.gemm import gemm

BF16, FP32 = torch.bfloat16, torch.float32
COUNTS = (1, 2, 3, 15, 17, 70)


def operands(k: int, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(k)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((70, k), (n, k), (n,)))
    return x.to(dtype), weight.to(dtype), bias.to(dtype)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def] # noqa: ANN201
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("inputs", "output"), [(FP32, FP32), (BF16, BF16), (BF16, FP32)])
@pytest.mark.parametrize(("k", "n", "rows"), [(2048, 256, 16), (2051, 97, 16), (24, 16, 1)])
def test_a_row_has_its_bits_whatever_rows_are_beside_it(
    k: int, n: int, rows: int, inputs: torch.dtype, output: torch.dtype
) -> None:
    x, weight, bias = operands(k, n, inputs)
    whole = gemm(x, weight, bias, inputs=inputs, output=output, rows=rows)
    for count in COUNTS:
        part = gemm(x[-count:].clone(), weight, bias, inputs=inputs, output=output, rows=rows)
        assert same_bits(part, whole[-count:].contiguous()), count
    backwards = gemm(x.flip(0), weight, bias, inputs=inputs, output=output, rows=rows)
    assert same_bits(backwards, whole.flip(0))


def test_torchs_own_kernel_goes_by_the_number_of_rows() -> None:
    """Or the blocks would be for nothing on this machine: fp32, one row and two."""

    def differs(k: int, n: int) -> bool:
        x, weight, _ = operands(k, n, FP32)
        whole = gemm(x, weight, None, inputs=FP32, output=FP32)
        parts = {m: gemm(x[:m].clone(), weight, None, inputs=FP32, output=FP32) for m in (1, 2)}
        return any(not same_bits(part, whole[:m]) for m, part in parts.items())

    assert any(differs(*shape) for shape in ((2048, 256), (2051, 97), (64, 48)))


@pytest.mark.parametrize("splits", [2, 5])
def test_split_k_takes_blocks_for_its_parts(splits: int) -> None:
    x, weight, _ = operands(350, 24, BF16)
    form = {"inputs": BF16, "output": BF16, "rows": 8, "splits": splits, "partials": BF16}
    whole = gemm(x, weight, None, **form)  # type: ignore[arg-type]
    for count in COUNTS:
        assert same_bits(gemm(x[:count].clone(), weight, None, **form), whole[:count])  # type: ignore[arg-type]


def test_blocks_are_the_kernel_on_so_many_rows_filled_up_with_zeros() -> None:
    x, weight, _ = operands(67, 24, FP32)
    blocks_met = []

    def kernel(block: torch.Tensor) -> torch.Tensor:
        blocks_met.append(block.clone())
        return block @ weight.t()

    blocks._TRIED.add(("here", (32, 67), FP32, x.device, torch.get_num_threads()))
    result = in_blocks(x, 32, kernel, key="here")
    assert [tuple(block.shape) for block in blocks_met] == [(32, 67)] * 3
    assert not blocks_met[-1][6:].any()
    assert same_bits(result, torch.cat([block @ weight.t() for block in blocks_met])[:70])


def test_a_place_that_shows_is_refused() -> None:
    """A kernel that adds the second half of a block in another order, as one with a leftover loop may."""
    x, weight, _ = operands(67, 24, FP32)

    def kernel(block: torch.Tensor) -> torch.Tensor:
        first, second = block.chunk(2)
        backwards = second.flip(1) @ weight.flip(1).t()
        return torch.cat((first @ weight.t(), backwards))

    with pytest.raises(PlaceError, match="in blocks of 16 rows of 67 inputs"):
        in_blocks(x, 16, kernel, key="by place")


@pytest.mark.parametrize("rows", [2, 7, 8])
@pytest.mark.parametrize(("k", "n"), [(23, 5), (67, 24), (2051, 97), (64, 1)])
def test_odd_shapes_hold_or_are_refused(k: int, n: int, rows: int) -> None:
    """On AVX-512 some of them are refused: short odd rows of few outputs, 2 rows of 2051, 7 of 67."""
    x, weight, _ = operands(k, n, FP32)
    with contextlib.suppress(PlaceError):
        whole = gemm(x, weight, None, inputs=FP32, output=FP32, rows=rows)
        for count in COUNTS:
            part = gemm(x[-count:].clone(), weight, None, inputs=FP32, output=FP32, rows=rows)
            assert same_bits(part, whole[-count:].contiguous())


def test_no_rows_at_all() -> None:
    x, weight, _ = operands(67, 24, FP32)
    assert gemm(x[:0], weight, None, inputs=FP32, output=FP32, rows=8).shape == (0, 24)
