"""The temperature by position against a scalar evaluation, and what counts as a position in a padded row or a pack."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers.models.mistral4.modeling_mistral4 import get_llama_4_attn_scale

from moeparity.numerics.bits import same_bits
from moeparity.ops.kernels.position_scale import position_scale
from tests.hf.compare import DTYPES, LIVE
from tests.verified import record

EVERY, SHARE, TOKENS = 3, 0.3, 11
X = torch.randn(2, TOKENS, 2, 5, generator=torch.Generator().manual_seed(1))
POSITIONS = torch.arange(TOKENS).expand(2, -1)


def scaled(x: torch.Tensor, **at: Any) -> torch.Tensor:
    operands = {"positions": POSITIONS, "mask": None, "first": 0, "every": EVERY, "share": SHARE} | at
    values = {"counted": "positions", "form": "log", "factor": x.dtype, "output": x.dtype} | at
    p = {name: operands[name] for name in ("share", "every", "first")}
    return position_scale(x, operands["positions"], operands["mask"], w={}, p=p, at=values)


@pytest.mark.parametrize("form", ["log", "log1p"])
@pytest.mark.parametrize("first", [0, 1])
def test_each_form_against_scalars(form: str, first: int) -> None:
    factors = [1 + SHARE * math.log(1 + (t + first) // EVERY) for t in range(TOKENS)]
    truth = X.double() * torch.tensor(factors, dtype=torch.float64)[:, None, None]
    ours = scaled(X.double(), form=form, first=first)
    assert torch.allclose(ours, truth, rtol=1e-14, atol=0)
    assert same_bits(ours[:, : EVERY - first], X.double()[:, : EVERY - first]), "nothing grows before so many tokens"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_function_of_transformers(dtype: str) -> None:
    x = X.to(DTYPES[dtype])
    truth = x * get_llama_4_attn_scale(POSITIONS, SHARE, EVERY).to(x.dtype).transpose(1, 2)
    assert same_bits(scaled(x), truth)
    record("position_scale", {"counted": "positions", "form": "log", "factor": dtype, "output": dtype}, LIVE)


def test_places_count_padding_and_the_tokens_before_in_a_pack() -> None:
    """The last tokens of a cached row; each token of a pack, whose positions begin anew."""
    whole, anew = scaled(X), POSITIONS % 4
    behind = scaled(X[:, 6:], positions=None, mask=torch.ones(2, TOKENS, dtype=torch.bool), counted="places")
    assert same_bits(behind, whole[:, 6:])
    packed = scaled(X, positions=anew, mask=torch.ones(1, TOKENS, TOKENS, dtype=torch.bool), counted="places")
    assert same_bits(packed, whole)
    assert not same_bits(scaled(X, positions=anew), whole)


def test_the_two_logarithms_differ_where_the_factor_has_grown_often() -> None:
    """Each has the bits of torch's own function, and at some of many positions they are not the same; else they would
    be one form. At how many, the CPU's instruction set decides.
    """
    grown = torch.arange(1300.0)
    at_all = {"positions": torch.arange(1300)[None], "every": 1, "share": 1000.0}
    logarithms = {"log": torch.log(1 + grown), "log1p": torch.log1p(grown)}
    ours = {form: scaled(torch.ones(1, 1300, 1, 1), form=form, **at_all).flatten() for form in logarithms}
    assert all(same_bits(ours[form], 1 + 1000.0 * logarithm) for form, logarithm in logarithms.items())
    assert not same_bits(ours["log"], ours["log1p"])
