"""`linear`, `lm_head` and `experts` in 8 bits: what their kernels multiply, and what they refuse."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.errors import SpecError
from moeparity.inputs.model import open_model
from moeparity.numerics.bits import same_bits
from moeparity.numerics.block_scales import Grid
from moeparity.numerics.fma import fma
from moeparity.numerics.quantised import Codes, quantised, scaled_product
from moeparity.numerics.tensor_core.instructions import instruction
from moeparity.numerics.tensor_core.product import multiply_add
from moeparity.ops.kernels.linear import gemm_of
from moeparity.ops.quantised import scales_see_rows
from moeparity.ops.registry import OPS
from tests.numerics.scalar import nearest
from tests.ops.test_placement import run

FP8 = torch.float8_e4m3fn
QUICKSTART = Path(__file__).parents[2] / "checkpoints" / "quickstart"
AT: dict[str, Any] = {
    "order": "native", "rows": "all", "splits": 1, "weights": FP8, "master": torch.bfloat16, "weight_scales": "block",
    "weight_block": 128, "weight_codes": "checkpoint", "weight_scale_by": "divided", "weight_scale": "fp32",
    "weight_scale_dtype": "unrounded", "weight_magnitude": "largest", "weight_clip": 1.0,
    "weight_arithmetic": torch.float32,
    "weight_quotient": "reciprocal", "weight_floor": 1e-4, "activations": FP8, "activation_scales": "group",
    "activation_group": 128,
    "activation_scale_by": "divided", "activation_scale": "fp32", "activation_quotient": "reciprocal",
    "activation_floor": 1e-10, "scaling": "both", "scaled_addition": "fma",
}  # fmt: skip


def operands(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(m + n + k)
    return torch.randn(m, k, generator=g).bfloat16(), (torch.randn(n, k, generator=g) / k**0.5).bfloat16()


def product_of(x: torch.Tensor, weight: torch.Tensor, **changes: Any) -> torch.Tensor:
    return gemm_of({**AT, **changes})(x, weight, None, inputs=torch.bfloat16, output=torch.bfloat16)


def codes_of(x: torch.Tensor, weight: torch.Tensor) -> Any:
    plain: dict[str, Any] = {"dtype": FP8, "scale": "fp32", "scale_by": "divided", "quotient": "reciprocal"}
    return (
        quantised(x, Grid(**plain, block=(1, 128), floor=1e-10)),
        quantised(weight, Grid(**plain, block=(128, 128), floor=1e-4)),
    )


def test_each_block_is_a_chain_on_tensor_cores_and_promoted_in_fp32() -> None:
    """As DeepGEMM: 128 of K in the tensor core's accumulator, then both scales, then fp32."""
    x, weight = operands(5, 192, 256)
    fp8 = instruction("h100", "fp8_e4m3")
    x_codes, weight_codes = codes_of(x, weight)
    total = torch.zeros(5, 192)
    for part in (slice(0, 128), slice(128, 256)):
        sums = multiply_add(fp8, x_codes.codes[:, part], weight_codes.codes[:, part].t())
        scales = x_codes.by_row(part.start)[:, None] * weight_codes.by_row(part.start)[None, :]
        total = fma(scales, sums, total)
    ours = product_of(x, weight, order="tensor_core(h100)")
    assert same_bits(ours, total.bfloat16())
    assert not same_bits(ours, product_of(x, weight, order="sequential"))


def test_one_side_alone_is_multiplied_out() -> None:
    x, weight = operands(4, 130, 256)
    x_codes, weight_codes = codes_of(x, weight)
    linear = torch.nn.functional.linear
    assert same_bits(
        product_of(x, weight, activations="unrounded"), linear(x, weight_codes.multiplied_out().bfloat16())
    )
    assert same_bits(product_of(x, weight, weights="unrounded"), linear(x_codes.multiplied_out().bfloat16(), weight))


def test_weights_are_rounded_twice_where_their_scales_become_powers_later() -> None:
    x, weight = operands(4, 128, 128)
    plain: dict[str, Any] = {"dtype": FP8, "block": (128, 128), "scale_by": "divided", "quotient": "reciprocal"}
    once = quantised(weight, Grid(**plain, scale="fp32", floor=1e-4)).multiplied_out()
    again = quantised(once, Grid(**plain, scale="ue8m0", floor=1e-4))
    x_codes, _ = codes_of(x, weight)

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(a.float(), b.float())

    expected = scaled_product(
        x_codes, again, None, multiply, part=128, scaling="both", addition="fma", output=torch.bfloat16
    )
    assert same_bits(product_of(x, weight, weight_scale="requantised"), expected)


def test_whole_numbers_are_added_exactly() -> None:
    x, weight = operands(3, 7, 2048)
    tokens: dict[str, Any] = {
        "weights": torch.int8, "activations": torch.int8, "activation_scales": "token", "weight_scales": "channel",
        "scaling": "weight_first",
    }  # fmt: skip
    settings = {name: value for name, value in AT.items() if name not in ("activation_group", "weight_block")} | tokens
    grid: dict[str, Any] = {"dtype": torch.int8, "block": (1, 0), "scale": "fp32", "scale_by": "divided"}
    x_codes = quantised(x, Grid(**grid, quotient="reciprocal", floor=1e-10))
    weight_codes = quantised(weight, Grid(**grid, quotient="reciprocal", floor=1e-4))
    sums = x_codes.codes.long() @ weight_codes.codes.long().t()
    expected = (sums.float() * weight_codes.scales.t()) * x_codes.scales
    ours = gemm_of(settings)(x, weight, None, inputs=torch.bfloat16, output=torch.float32)
    assert same_bits(ours, expected)


TE_MAX, FP32_MAX = 448.0, torch.finfo(torch.float32).max


def scale_of_transformer_engine(history: list[float], algorithm: str, margin: int) -> float:
    """What delayed_scaling.cu amax_and_scale_update makes of a history, the latest amax last; the scale before is 1."""
    amax = float(torch.tensor(max(history) if algorithm == "max" else history[-1]))
    if amax == 0:
        return 1.0
    scaled_max = TE_MAX * 2.0**-margin
    return min(nearest(Fraction(scaled_max) / Fraction(amax), torch.float32), FP32_MAX)


@pytest.mark.parametrize("history", [[2.5, 0.7, 1.3], [0.0, 0.0], [3.0, 1e-3], [1e-41]])
@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
@pytest.mark.parametrize("margin", [0, 2])
def test_delayed_scaling_is_that_of_a_history(history: list[float], algorithm: str, margin: int) -> None:
    """Codes are x times the scale, cut at 448 where this step's numbers are larger; 1 over it follows the sum."""
    x, weight = operands(5, 128, 128)
    amax = (max(history) if algorithm == "max" else history[-1]) * 2**margin
    ours = product_of(x, weight, activation_scales="delayed", activation_amax=amax, activations=FP8)
    scale = torch.tensor(scale_of_transformer_engine(history, algorithm, margin))
    codes = (x.float() * scale).clamp(-TE_MAX, TE_MAX).to(FP8)
    x_codes = Codes(codes, (1 / scale).view(1, 1), (5, 128))
    _, weight_codes = codes_of(x, weight)

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(a.float(), b.float())

    expected = scaled_product(
        x_codes, weight_codes, None, multiply, part=128, scaling="both", addition="fma", output=torch.bfloat16
    )
    assert same_bits(ours, expected)


@pytest.mark.parametrize("amax", [0.0, 2.5])
def test_what_expands_a_latent_has_a_history_of_its_own(amax: float) -> None:
    """`mla_expand` gives each head its part of what `linear` gives with the same choices: TransformerEngine has a
    linear layer there.
    """
    choices: dict[str, Any] = {"weights": FP8, "activations": FP8, "activation_scales": "delayed"}
    choices["activation_amax"] = amax
    latent, weight = operands(6, 128, 128)
    ours = run("mla_expand", latent[None, None], None, w={"kv_b": weight}, p={"heads": 4}, **choices)
    linear = run("linear", latent[None], w={"weight": weight}, p={"parallel": "column", "heads": 4}, **choices)
    assert same_bits(ours, linear.view(ours.shape))
    choices |= {"activation_scales": "group", "activation_group": 128}
    dynamic = run("mla_expand", latent[None, None], None, w={"kv_b": weight}, p={"heads": 4}, **choices)
    assert not same_bits(ours, dynamic)


@pytest.mark.parametrize("amax", [0.0, 2.5])
def test_what_expands_all_latents_anew_has_that_history_too(amax: float) -> None:
    """`mla` in context is attention on what `mla_expand` gives with the same choices."""
    heads, nope, rope, value, width = 4, 16, 8, 16, 128
    latent, kv_b = operands(6, heads * (nope + value), width)
    choices: dict[str, Any] = {"weights": FP8, "activations": FP8, "activation_scales": "delayed"}
    choices["activation_amax"] = amax
    q_nope, _ = operands(6, 1, heads * nope)
    q_rope, k_rope = (operands(6, 1, n * rope)[0].view(1, 6, n, rope).transpose(1, 2) for n in (heads, 1))
    q_nope, mask = q_nope.view(1, 6, heads, nope), torch.ones(1, 6, dtype=torch.bool)
    p = {"heads": heads, "value_dim": value, "rope": {"rope_type": "default"}}
    once = run("mla_expand", latent[None, None], None, w={"kv_b": kv_b}, p={"heads": heads}, **choices)
    alone = run("mla", q_nope, q_rope, None, k_rope, mask, once, w={"kv_b": kv_b}, p=p)
    context = {"projection": "context", **choices}
    ours = run("mla", q_nope, q_rope, latent[None, None], k_rope, mask, w={"kv_b": kv_b}, p=p, **context)
    assert same_bits(ours, alone)
    context |= {"activation_scales": "group", "activation_group": 128}
    dynamic = run("mla", q_nope, q_rope, latent[None, None], k_rope, mask, w={"kv_b": kv_b}, p=p, **context)
    assert not same_bits(ours, dynamic)


def test_a_history_from_a_recipe_is_one_number_for_each_node() -> None:
    model = open_model(QUICKSTART)
    ids = torch.arange(4).view(1, 4)
    sets: dict[str, str | float] = {"activations": "fp8_e4m3", "activation_scales": "delayed"}
    node = "layers[0].attention.q_proj"
    plain = {f"{node}:{name}": value for name, value in sets.items()}

    def logits(**more: float) -> torch.Tensor:
        settings = plain | {f"{node}:{name}": value for name, value in more.items()}
        return forward(model, ids, settings=settings)["logits"]

    assert same_bits(logits(activation_amax=0.0), logits())
    assert not same_bits(logits(activation_amax=4.0), logits())


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ({"weights": "fp8_e4m3", "weight_clip": -1.0}, "-1.0; expected a number from 0"),
        ({"weights": "fp8_e4m3", "weight_magnitude": "given", "weight_amax": -2.0}, "-2.0; expected a number from 0"),
        (
            {"weights": "fp8_e4m3", "weight_magnitude": "percentile", "weight_percentile": 101.0},
            "101.0; expected a number from 0 to 100",
        ),
        ({"weights": "fp4_e2m1", "weight_magnitude": "multiplied"}, "fp8_e4m3, int8 and int4 only"),
        (
            {"activations": "fp8_e4m3", "activation_scales": "delayed", "activation_amax": -1.0},
            "-1.0; expected a number from 0",
        ),
        ({"weights": "fp8_e4m3", "activations": "fp8_e4m3"}, "96 inputs, which groups of 128 do not divide"),
        ({"activations": "int8", "activation_group": 64}, "96 inputs, which groups of 64 do not divide"),
        ({"activations": "fp8_e5m2"}, "fp8_e4m3, int8"),
        (
            {"weights": "fp8_e4m3", "activations": "fp8_e4m3", "activation_group": 16, "splits": 2},
            "scales are applied to parts of K in one accumulator",
        ),
    ],
)
def test_refusals_name_node_and_reason(sets: dict[str, str | int], says: str) -> None:
    model = open_model(QUICKSTART)
    settings = {f"layers[0].attention.q_proj:{name}": value for name, value in sets.items()}
    with pytest.raises(SpecError, match=r"linear:|q_proj:") as refused:
        forward(model, torch.zeros(1, 4, dtype=torch.int64), settings=settings)
    assert says in str(refused.value)


def test_a_scale_for_a_tensor_sees_other_rows_and_experts_have_none() -> None:
    assert scales_see_rows({"activations": "fp8_e4m3", "activation_scales": "tensor"})
    assert not scales_see_rows({"activations": "fp8_e4m3", "activation_scales": "token"})
    choice = OPS["experts"].attribute("activation_scales")
    assert choice is not None
    assert choice.values == ("group", "token", "static")
