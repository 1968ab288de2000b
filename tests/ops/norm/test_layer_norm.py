"""LayerNorm: both forms against an evaluation in fp64, and against the modules of transformers and torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.cohere2_moe.modeling_cohere2_moe import Cohere2MoeLayerNorm

from moeparity.numerics.bits import same_bits
from moeparity.ops.kernels.layer_norm import layer_norm
from tests.hf.compare import DTYPES, LIVE
from tests.verified import record

WIDTH = 1001


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 5, WIDTH, generator=generator) * 3 + 1
    weight, bias = torch.randn(2, WIDTH, generator=generator)
    return x.to(dtype), {"weight": weight.to(dtype), "bias": bias.to(dtype)}


def normed(x: torch.Tensor, w: dict[str, torch.Tensor], output: torch.dtype, **at: Any) -> torch.Tensor:
    values = {"form": "native", "normalized": torch.float32, "output": output, "eps": "config"} | at
    return layer_norm(x, w=w, p={"eps": 1e-5}, at=values)


@pytest.mark.parametrize("form", ["native", "steps"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_each_form_against_fp64(form: str, has_bias: bool) -> None:
    x, w = operands(torch.float32)
    w = w if has_bias else {"weight": w["weight"]}
    x64, w64 = x.double(), {name: tensor.double() for name, tensor in w.items()}
    centred = x64 - x64.mean(-1, keepdim=True)
    truth = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w64["weight"] + w64.get("bias", 0.0)
    fp64 = {"normalized": torch.float64}
    assert torch.allclose(normed(x64, w64, torch.float64, form=form, **fp64), truth, rtol=1e-12, atol=1e-12)
    single = normed(x, w, torch.float32, form=form)
    assert torch.allclose(single.double(), truth, rtol=1e-5, atol=1e-5)
    assert not torch.equal(normed(x, w, torch.float32, form=form, eps=1e-2), single)


@pytest.mark.parametrize("dtype", DTYPES)
def test_modules_of_transformers_and_torch(dtype: str) -> None:
    x, w = operands(DTYPES[dtype])
    cohere, native = Cohere2MoeLayerNorm(WIDTH, eps=1e-5), torch.nn.LayerNorm(WIDTH, eps=1e-5)
    cohere.load_state_dict({"weight": w["weight"]}, assign=True)
    native.load_state_dict(w, assign=True)
    with torch.no_grad():
        assert same_bits(cohere(x), normed(x, {"weight": w["weight"]}, x.dtype, form="steps"))
        assert same_bits(native(x), normed(x, w, x.dtype))
    record("layer_norm", {"form": "steps", "normalized": "fp32", "output": dtype}, LIVE)
    record("layer_norm", {"form": "native", "output": dtype}, LIVE)


def test_sites_and_forms_differ() -> None:
    """Else the tests above would not tell them apart."""
    x, w = operands(torch.bfloat16)
    plain = normed(x, w, torch.bfloat16, form="steps")
    assert not same_bits(plain, normed(x, w, torch.bfloat16, form="steps", normalized=torch.bfloat16))
    assert not same_bits(plain.float(), normed(x, w, torch.float32, form="steps"))
    x, w = operands(torch.float32)
    assert not same_bits(normed(x, w, torch.float32), normed(x, w, torch.float32, form="steps"))
