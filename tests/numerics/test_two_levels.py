"""NVFP4's scales of two levels, number by number, and held to the functions of compressed-tensors, llm-compressor and
ModelOpt, where these can be imported (test_live_quantisers.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moeparity.inputs.weights.codes import E2M1
from moeparity.numerics.bits import same_bits
from moeparity.numerics.block_scales import FP4, Grid, Magnitude
from moeparity.numerics.quantised import quantised, to_codes
from moeparity.numerics.scale_search import swept
from tests.numerics.test_scale_search import (
    BF16,
    EXPANDED,
    FP8,
    FP32,
    PLAIN,
    SHRUNK,
    arguments,
    blocks_of,
    drawn,
    module_of,
)

SWEPT = Magnitude(way="swept")


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_two_levels_are_those_of_compressed_tensors(dtype: torch.dtype) -> None:
    """Scales in fp8 over one for the tensor, and codes; a block of zeros has its least scale."""
    helpers = module_of("compressed_tensors.quantization.utils.helpers")
    forward = module_of("compressed_tensors.quantization.lifecycle.forward")
    weight = drawn(dtype)
    args = arguments("tensor_group", 4, "float", group_size=16, scale_dtype=FP8)
    blocks = blocks_of(weight, (1, 16))
    whole = helpers.generate_gparam(blocks.amin().reshape(1), blocks.amax().reshape(1))
    scales, zeros = helpers.calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, whole)
    ours = quantised(weight, two_levels("two_levels_divided", dtype, Magnitude()))
    assert same_bits(ours.scales, scales.float() / whole)
    assert float(ours.scales.min() * whole) == 0.125
    codes = forward.quantize(weight, scales, zeros, args, dtype=FP32, global_scale=whole)
    assert same_bits(codes, ours.codes.float())


def two_levels(scale: str, dtype: torch.dtype, magnitude: Magnitude) -> Grid:
    settings = {**PLAIN, "scale": scale}
    return Grid(**settings, dtype=FP4, block=(1, 16), full=True, arithmetic=dtype, magnitude=magnitude)


@pytest.mark.parametrize("observer", ["MemorylessMSEObserver", "NVFP4ExpandedMSEObserver"])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_searches_of_two_levels_are_those_of_llm_compressor(observer: str, dtype: torch.dtype) -> None:
    library = module_of("llmcompressor.observers.mse")
    forward = module_of("compressed_tensors.quantization.lifecycle.forward")
    weight = drawn(dtype)
    args = arguments("tensor_group", 4, "float", group_size=16, scale_dtype=FP8)
    observed = getattr(library, observer)("weight", args)
    observed(weight)
    theirs = observed.get_qparams()
    way = EXPANDED if "Expanded" in observer else SHRUNK
    ours = quantised(weight, two_levels("two_levels_divided", dtype, way))
    assert same_bits(ours.scales, (theirs["scale"].float() / theirs["global_scale"]).view(ours.scales.shape))
    zeros = torch.zeros_like(theirs["scale"])
    codes = forward.quantize(weight, theirs["scale"], zeros, args, dtype=FP32, global_scale=theirs["global_scale"])
    assert same_bits(codes, ours.codes.float())
    assert not same_bits(ours.scales, quantised(weight, two_levels("two_levels_divided", dtype, Magnitude())).scales)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_two_levels_are_those_of_modelopt(dtype: torch.dtype) -> None:
    tensors = module_of("modelopt.torch.quantization.qtensor.nvfp4_tensor").NVFP4QTensor
    weight = drawn(dtype)
    packed, scales, whole = tensors.quantize(weight.clone(), 16)
    ours = quantised(weight, two_levels("two_levels", FP32, Magnitude()))
    zero = blocks_of(weight, (1, 16)).abs().amax(-1) == 0  # a block of zeros has another scale where it is calibrated
    assert bool(zero.any())
    assert same_bits(ours.scales[~zero], (scales.float() * whole)[~zero])
    numbers = torch.tensor([*E2M1])
    pairs = packed._quantized_data.int()
    codes = numbers[torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2)]
    assert torch.equal(codes, ours.codes)  # -0.0 and 0.0 are the same number


FRACTIONS = np.arange(8) / 8
OF_E4M3 = np.concatenate([((power > 0) + FRACTIONS) * 2.0 ** (max(power, 1) - 7) for power in range(16)])[:-1]
"""The numbers of fp8_e4m3 from 0 up: a power of two and three fraction bits; the last of these is no number."""


def nearest(x: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of numbers that ascend from 0, the one that is nearest to each x; of two, that with the even place."""
    above = np.searchsorted(numbers, x).clip(1, len(numbers) - 1)
    low, high = numbers[above - 1], numbers[above]
    takes_high = (x - low > high - x) | ((x - low == high - x) & (above % 2 == 0))
    return np.where(takes_high, high, low)


@pytest.mark.parametrize("magnitude", [Magnitude(), SWEPT], ids=["largest", "swept"])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_two_levels_number_by_number(dtype: torch.dtype, magnitude: Magnitude) -> None:
    """Without ModelOpt: each product, quotient and sum in fp32."""
    weight, codes, fp32 = drawn(dtype, seed=4), np.array(E2M1[:8]), np.float32
    blocks = blocks_of(weight, (1, 16)).float().abs().numpy()
    whole, largest = blocks.max(), blocks.max(-1)
    if magnitude == SWEPT:
        candidates = (OF_E4M3[1:].astype(fp32) / fp32(448)) * whole
        scales = candidates / fp32(6)
        sizes = (blocks[..., None, :] / scales[:, None]).clip(max=6)
        errors = (nearest(sizes, codes.astype(fp32)) * scales[:, None] - blocks[..., None, :]) ** 2
        largest = candidates[errors.sum(-1).argmin(-1)]
    by_code = np.where(largest == 0, fp32(1), largest / fp32(6))
    stored = nearest((by_code * fp32(448) / (whole / fp32(6))).clip(2**-9, 448), OF_E4M3).astype(fp32)
    expected = stored * (whole / fp32(6 * 448))
    ours = quantised(weight, two_levels("two_levels", FP32, magnitude))
    assert same_bits(ours.scales, torch.from_numpy(expected))
    numbers = weight.float().numpy() / expected.repeat(16, 1)
    rounded = np.sign(numbers) * nearest(np.abs(numbers).clip(max=6), codes)
    assert torch.equal(ours.codes, torch.from_numpy(rounded).float())


def rounded_to_fp4(x: Tensor, amax: Tensor) -> Tensor:
    """ModelOpt's static rounding, whose kernel needs a GPU: numbers over amax / 6, to the nearest code and back."""
    scale = amax.view(-1, 1) / 6
    scale = torch.where(scale == 0, 1.0, scale)
    return to_codes(x.float() / scale, FP4) * scale


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_sweep_of_two_levels_is_that_of_modelopt(dtype: torch.dtype, seed: int) -> None:
    """Its calibrator with a rounding written here, since its own needs a GPU."""
    calibration = module_of("modelopt.torch.quantization.calib.mse")
    weight = drawn(dtype, seed)
    blocks = blocks_of(weight, (1, 16)).reshape(-1, 16)
    largest = blocks.abs().amax(-1).float()
    search = calibration.NVFP4MSECalibrator(largest, global_amax=largest.max(), axis=0, quant_func=rounded_to_fp4)
    search.collect(blocks)
    theirs = search.compute_amax()
    grid = two_levels("two_levels", FP32, SWEPT)
    ours = quantised(weight, grid)
    stored = (theirs / 6 * 448 / (largest.max() / 6)).clamp(2**-9, 448).to(FP8).float()
    assert same_bits(ours.scales.flatten(), stored * (largest.max() / (6 * 448)))
    assert not same_bits(ours.scales, quantised(weight, two_levels("two_levels", FP32, Magnitude())).scales)


def test_the_sweep_of_two_levels_is_that_of_modelopts_kernel(tmp_path: Path) -> None:
    """Its Triton kernel, which it runs on a GPU, in Triton's interpreter."""
    for library in ("triton", "modelopt"):
        module_of(library)
    for dtype in (BF16, FP32):
        blocks = blocks_of(drawn(dtype, seed=3), (1, 16))
        save_file({"blocks": blocks.reshape(-1, 16).contiguous()}, tmp_path / "blocks.safetensors")
        command = [sys.executable, "-m", "tests.numerics.modelopt_sweep", "blocks.safetensors", "out.safetensors"]
        paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
        subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, check=True)
        theirs = load_file(tmp_path / "out.safetensors")["magnitudes"]
        assert same_bits(swept(blocks, 6.0, partial(to_codes, dtype=FP4)).flatten(), theirs)


def test_a_nan_is_everywhere_where_scales_have_two_levels() -> None:
    weight = drawn(FP32)
    weight[0, 0] = torch.nan
    for scale, magnitude in (("two_levels", SWEPT), ("two_levels", Magnitude()), ("fp32", SWEPT)):
        grid = Grid(**{**PLAIN, "scale": scale}, dtype=FP4, block=(1, 16), magnitude=magnitude)
        assert bool(quantised(weight, grid).multiplied_out().isnan().all())
