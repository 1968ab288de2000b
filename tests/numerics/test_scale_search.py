"""Scales and magnitudes of blocks held to the functions of compressed-tensors, llm-compressor, ModelOpt and torchao.

The first is among the needs of the tests. The others are in a folder of tests/engines/live.py, and
test_live_quantisers.py runs this file beside them.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.numerics.bits import same_bits
from moeparity.numerics.block_scales import FP4, INT4, Block, Grid, Magnitude
from moeparity.numerics.quantised import Codes, quantised

FP8, INT8, BF16, FP32 = torch.float8_e4m3fn, torch.int8, torch.bfloat16, torch.float32
SHRUNK, MULTIPLIED = Magnitude(way="shrunk"), Magnitude(way="multiplied")
EXPANDED = Magnitude(way="expanded")
PLAIN: dict[str, Any] = {"scale": "fp32", "scale_by": "divided", "quotient": "divided", "floor": 0.0}
BLOCKS: dict[str, Block] = {"block": (16, 16), "group": (1, 32), "channel": (1, 0), "tensor": (0, 0)}
MORE: dict[str, dict[str, Any]] = {"block": {"block_structure": [16, 16]}, "group": {"group_size": 32}}
TYPES = [(FP8, 8, "float"), (INT8, 8, "int"), (FP4, 4, "float")]
IDS = ["fp8", "int8", "fp4"]


def drawn(dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Weights [48, 96] with outliers, ties of the grid of whole numbers, and a square of zeros."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(48, 96, generator=g) / 8
    x[torch.rand(48, 96, generator=g) < 0.01] *= 8
    x[:16, :32] = torch.arange(512).reshape(16, 32) / 64
    x[16:32, :32] = 0
    return x.to(dtype)


def module_of(name: str) -> Any:
    """A module of a library that may be missing; what it warns of when it is imported is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(name.partition(".")[0])
        return importlib.import_module(name)


def arguments(strategy: str, bits: int, kind: str, **more: Any) -> Any:
    args = module_of("compressed_tensors.quantization").QuantizationArgs
    return args(num_bits=bits, type=kind, strategy=strategy, symmetric=True, **MORE.get(strategy, {}), **more)


def blocks_of(weight: Tensor, block: Block) -> Tensor:
    """[rows of blocks, columns of blocks, numbers]."""
    high, wide = block[0] or weight.shape[0], block[1] or weight.shape[1]
    apart = weight.view(weight.shape[0] // high, high, weight.shape[1] // wide, wide)
    return apart.transpose(1, 2).flatten(-2)


def assert_as_compressed(ours: Codes, weight: Tensor, scales: Tensor, args: Any) -> None:
    """Scales of blocks that are not 0, whose scale is the dtype's epsilon there; and all codes."""
    forward = module_of("compressed_tensors.quantization.lifecycle.forward")
    theirs = scales.float().reshape(ours.scales.shape)
    zero = blocks_of(weight, ours.block).abs().amax(-1) == 0
    assert same_bits(torch.where(zero, 1.0, theirs), ours.scales)
    codes = forward.quantize(weight, scales, torch.zeros_like(scales), args, dtype=ours.codes.dtype)
    assert same_bits(codes.float(), ours.codes.float())


@pytest.mark.parametrize("strategy", BLOCKS)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize(("grid", "bits", "kind"), TYPES, ids=IDS)
def test_scales_and_codes_are_those_of_compressed_tensors(
    strategy: str, dtype: torch.dtype, grid: torch.dtype, bits: int, kind: str
) -> None:
    weight, args, block = drawn(dtype), arguments(strategy, bits, kind), BLOCKS[strategy]
    blocks = blocks_of(weight, block)
    helpers = module_of("compressed_tensors.quantization.utils.helpers")
    scales, _ = helpers.calculate_qparams(blocks.amin(-1), blocks.amax(-1), args)
    ours = quantised(weight, Grid(**PLAIN, dtype=grid, block=block, full=True, arithmetic=dtype))
    assert_as_compressed(ours, weight, scales, args)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize(("grid", "bits"), [(FP8, 8), (FP4, 4)], ids=["fp8", "fp4"])
def test_powers_of_two_are_those_of_compressed_tensors(dtype: torch.dtype, grid: torch.dtype, bits: int) -> None:
    helpers = module_of("compressed_tensors.quantization.utils.helpers")
    sizes = torch.linspace(0.5, 2.5, 4096).to(dtype)[:, None]
    args = arguments("group", bits, "float", scale_dtype=torch.uint8)
    scales, _ = helpers.calculate_qparams(-sizes, sizes * 0.5, args)
    ours = quantised(sizes, Grid(**{**PLAIN, "scale": "ue8m0_even_fp4"}, dtype=grid, block=(1, 1)))
    assert same_bits(ours.scales, scales.float())


@pytest.mark.parametrize("strategy", BLOCKS)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize(("grid", "bits", "kind"), TYPES, ids=IDS)
def test_the_search_by_shrinking_is_that_of_llm_compressor(
    strategy: str, dtype: torch.dtype, grid: torch.dtype, bits: int, kind: str
) -> None:
    observer = module_of("llmcompressor.observers.mse").MemorylessMSEObserver
    weight, args = drawn(dtype), arguments(strategy, bits, kind)
    observed = observer("weight", args)
    observed(weight)
    scales = observed.get_qparams()["scale"]
    ours = quantised(weight, searching(grid, strategy, dtype))
    assert_as_compressed(ours, weight, scales, args)
    assert strategy == "tensor" or not same_bits(ours.scales, quantised(weight, plain(grid, strategy, dtype)).scales)


def plain(grid: torch.dtype, strategy: str, dtype: torch.dtype) -> Grid:
    return Grid(**PLAIN, dtype=grid, block=BLOCKS[strategy], full=True, arithmetic=dtype)


def searching(grid: torch.dtype, strategy: str, dtype: torch.dtype, magnitude: Magnitude = SHRUNK) -> Grid:
    return Grid(**PLAIN, dtype=grid, block=BLOCKS[strategy], full=True, arithmetic=dtype, magnitude=magnitude)


@pytest.mark.parametrize("strategy", BLOCKS)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize(("grid", "bits", "kind"), TYPES, ids=IDS)
@pytest.mark.parametrize(
    ("magnitude", "first", "count", "of", "patience"),
    [(SHRUNK, 1.0, 20, 100, 5), (EXPANDED, 1.8, 111, 200, 1000)],
    ids=["shrunk", "expanded"],
)
def test_the_search_by_shrinking_is_a_loop_over_functions_of_compressed_tensors(
    strategy: str, dtype: torch.dtype, grid: torch.dtype, bits: int, kind: str, magnitude: Magnitude, first: float,
    count: int, of: int, patience: int,
) -> None:  # fmt: skip
    """Without llm-compressor: its loop written out, over the functions that it calls."""
    helpers = module_of("compressed_tensors.quantization.utils.helpers")
    forward = module_of("compressed_tensors.quantization.lifecycle.forward")
    weight, args = drawn(dtype, seed=1), arguments(strategy, bits, kind)
    of_token = args.model_copy(update={"strategy": "token"})
    blocks = blocks_of(weight, BLOCKS[strategy])[None]
    least, most = blocks.amin((0, -1)) * first, blocks.amax((0, -1)) * first
    errors, chosen, waited = torch.full_like(least, torch.finfo(dtype).max), [least.clone(), most.clone()], 0
    for step in range(count):
        share = 1 - step / of
        scales, zeros = helpers.calculate_qparams(least * share, most * share, args)
        numbers = forward.fake_quantize(blocks, scales.unsqueeze(-1), zeros.unsqueeze(-1), of_token).to(dtype)
        error = torch.sum((numbers - blocks).abs().pow(2.4), dim=(0, -1))
        better = error < errors
        if not bool(better.any()):
            waited += 1
            if waited >= patience:
                break
            continue
        waited = 0
        errors[better], chosen[0][better], chosen[1][better] = (
            error[better],
            (least * share)[better],
            (most * share)[better],
        )
    scales, _ = helpers.calculate_qparams(*chosen, args)
    assert_as_compressed(quantised(weight, searching(grid, strategy, dtype, magnitude)), weight, scales, args)


@pytest.mark.parametrize("strategy", ["channel", "tensor"])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_search_by_multiplying_is_that_of_modelopt(strategy: str, dtype: torch.dtype, seed: int) -> None:
    """A whole run of its calibration; codes and scales as it would write them."""
    library = module_of("modelopt.torch.quantization")
    linear: Any = torch.nn.Linear(96, 48, bias=False, dtype=dtype)
    weight = linear.weight.data.copy_(drawn(dtype, seed)).clone()
    model = torch.nn.Sequential(linear)
    of_weights = {"num_bits": (4, 3), "axis": 0 if strategy == "channel" else None}
    cfg: list[dict[str, Any]] = [{"quantizer_name": "*weight_quantizer", "cfg": of_weights}]
    cfg += [{"quantizer_name": f"*{of}_quantizer", "enable": False} for of in ("input", "output")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.quantize(model, {"quant_cfg": cfg, "algorithm": {"method": "mse"}})
    ours = quantised(weight, Grid(**PLAIN, dtype=FP8, block=BLOCKS[strategy], magnitude=MULTIPLIED))
    scales = linear.weight_quantizer._amax.float().view(ours.scales.shape) / 448
    assert same_bits(ours.scales, torch.where(scales == 0, 1.0, scales))
    assert same_bits(ours.codes, (weight / torch.where(scales == 0, 1.0, scales)).clamp(-448, 448).to(FP8))
    assert not same_bits(ours.scales, quantised(weight, plain(FP8, strategy, FP32)).scales)


@pytest.mark.parametrize(("grid", "bits"), [(INT8, 8), (INT4, 4)], ids=["int8", "int4"])
def test_the_search_by_multiplying_whole_numbers_is_that_of_modelopt(grid: torch.dtype, bits: int) -> None:
    """Its calibrator with its own rounding in torch; a quantiser of its own needs its extension for CUDA."""
    calibration = module_of("modelopt.torch.quantization.calib.mse")
    rounding = module_of("modelopt.torch.quantization.tensor_quant")
    weight = drawn(FP32)
    weight[20, 7], weight[40] = 3.0, 0.0
    largest = weight.abs().amax(1, keepdim=True)
    search = calibration.MseCalibrator(
        largest, axis=0, quant_func=lambda x, amax: rounding._tensor_quant(x, amax, bits)
    )
    search.collect(weight)
    theirs = search.compute_amax() / {8: 127, 4: 7}[bits]
    ours = quantised(weight, Grid(**PLAIN, dtype=grid, block=(1, 0), magnitude=MULTIPLIED))
    assert same_bits(ours.scales, torch.where(theirs == 0, 1.0, theirs))


@pytest.mark.parametrize("strategy", ["channel", "tensor"])
@pytest.mark.parametrize("percent", [99.99, 99.0, 50.0, 100.0])
def test_percentiles_are_those_of_modelopt(strategy: str, percent: float) -> None:
    histogram = module_of("modelopt.torch.quantization.calib.histogram")
    np = module_of("numpy")
    weight, block = drawn(FP32), BLOCKS[strategy]
    blocks = blocks_of(weight, block).abs()
    theirs = torch.zeros(blocks.shape[:2])
    for i, j in torch.ones(blocks.shape[:2]).nonzero().tolist():
        numbers = blocks[i, j].numpy()
        counted = np.histogram(numbers, bins=2048, range=(0, numbers.max()))
        theirs[i, j] = histogram._compute_amax_percentile(*counted, percent)
    magnitude = Magnitude(way="percentile", number=percent)
    ours = quantised(weight, Grid(**PLAIN, dtype=FP8, block=block, magnitude=magnitude))
    assert same_bits(ours.scales, torch.where(theirs == 0, 1.0, theirs / 448))


@pytest.mark.parametrize("mode", ["FLOOR", "CEIL", "EVEN", "RCEIL"])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_powers_of_two_are_those_of_torchao(mode: str, dtype: torch.dtype) -> None:
    formats = module_of("torchao.prototype.mx_formats.mx_tensor")
    modes = module_of("torchao.prototype.mx_formats.config").ScaleCalculationMode
    near = torch.linspace(0.4, 2.5, 2048).to(dtype)[:, None]
    weight = torch.cat([near, near * 0.37, -near * 0.11, near * 0], 1).repeat(1, 8)
    weight = torch.cat([weight, drawn(dtype).view(-1, 32)])
    exponents, codes = formats.to_mx(weight, FP8, 32, modes[mode])
    scale = "ue8m0" if mode == "RCEIL" else f"ue8m0_{mode.lower()}"
    ours = quantised(weight, Grid(**{**PLAIN, "scale": scale}, dtype=FP8, block=(1, 32)))
    powers = exponents.view(torch.uint8).int() - 127
    zero = weight.abs().amax(-1, keepdim=True) == 0
    assert same_bits(ours.scales, torch.where(zero, 1.0, torch.exp2(powers.float()).reshape(zero.shape)))
    assert same_bits(ours.codes, codes)


@pytest.mark.parametrize("magnitude", [SHRUNK, EXPANDED, MULTIPLIED, Magnitude(way="percentile", number=99.0)], ids=str)
@pytest.mark.parametrize("columns", [1, 7, 33])
def test_a_search_keeps_nans_apart_and_takes_blocks_cut_short(magnitude: Magnitude, columns: int) -> None:
    """A NaN takes its own block with it, whatever the search; a block of one number; a short one is as it is alone."""
    weight = drawn(FP32)[32:, -columns:].clone()
    weight[0, 0] = torch.nan
    grid = Grid(**PLAIN, dtype=FP8, block=(1, 16), magnitude=magnitude)
    result = quantised(weight, grid)
    first = min(columns, 16)
    numbers = result.multiplied_out()
    assert numbers[0, :first].isnan().all()
    assert not numbers[1:].isnan().any()
    alone = quantised(weight[5:6], grid)
    if magnitude not in (SHRUNK, EXPANDED):  # whose patience is that of all blocks
        assert same_bits(alone.multiplied_out(), numbers[5:6])
