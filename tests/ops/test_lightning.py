"""The kernel of lightning attention against the recurrence written out, and its states within a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import UNROUNDED, torch_dtype
from moeparity.ops.registry import OPS

HEADS, BLOCK = 3, 5


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def decays(dtype: torch.dtype) -> dict[str, Tensor]:
    """The tables of a checkpoint: of each head another slope."""
    slope = torch.tensor([0.5, 0.1, 0.02], dtype=dtype)[:, None, None]
    places = torch.arange(1, BLOCK + 1, dtype=dtype)
    between = (places[:, None] - places)[None, None]
    return {
        "slope": slope,
        "query_decay": torch.exp(-slope * places[:, None]),
        "key_decay": torch.exp(-slope * (BLOCK - places[:, None])),
        "diagonal_decay": torch.where(between >= 0, torch.exp(-slope * between), 0.0),
    }


def called(qkv: Tensor, dtype: str, w: dict[str, Tensor], state: Tensor | None = None, **chosen: Any) -> Any:
    ends = chosen.pop("ends", ())
    values = {a.name: dtype if a.default == "model" else a.default for a in OPS["lightning"].attributes} | chosen
    sites = {a.name for a in OPS["lightning"].attributes if a.kind == "rounding"}
    at = {n: torch_dtype(str(v)) if n in sites and v != UNROUNDED else v for n, v in values.items()}
    return OPS["lightning"].load()(qkv, w=w, p={"heads": HEADS}, at=at, state=state, ends=ends)


@pytest.mark.parametrize("form", ["blocks", "tokens"])
@pytest.mark.parametrize("tokens", [1, 4, 5, 17])
def test_the_recurrence(form: str, tokens: int) -> None:
    """Of each head and token by itself, in fp64."""
    qkv, before, w = drawn(1, 2, tokens, HEADS * 12).double(), drawn(2, 2, HEADS, 4, 4).double(), decays(torch.float64)
    out, after = called(qkv, "fp64", w, before, form=form, ends=(tokens,))
    by_head = qkv.view(2, tokens, HEADS, 12)
    for b in range(2):
        for h in range(HEADS):
            state = before[b, h]
            for t in range(tokens):
                q, k, v = by_head[b, t, h].split(4)
                state = torch.exp(-w["slope"][h]) * state + torch.outer(k, v)
                torch.testing.assert_close(out[b, t, 4 * h : 4 * h + 4], q @ state, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(after[b, h], state, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("form", ["blocks", "tokens"])
def test_states_behind_tokens_within_a_call(form: str, dtype: str) -> None:
    """They have the bits of shorter calls, wherever in a block they end."""
    qkv, w = drawn(3, 2, 17, HEADS * 12).to(torch_dtype(dtype)), decays(torch_dtype(dtype))
    ends = (1, 4, 5, 6, 10, 17)
    out, *states = called(qkv, dtype, w, form=form, ends=ends)
    assert same_bits(out, called(qkv, dtype, w, form=form)[0])
    for end, state in zip(ends, states, strict=True):
        _, short = called(qkv[:, :end].contiguous(), dtype, w, form=form, ends=(end,))
        assert same_bits(state.contiguous(), short.contiguous())


def test_the_state_between_blocks_is_rounded() -> None:
    """As if each block were a call that is given the state of the one before in bf16."""
    qkv, w = drawn(4, 1, 10, HEADS * 12), decays(torch.float32)
    first, second = (x.contiguous() for x in qkv.split(5, 1))
    _, state = called(first, "fp32", w, form="blocks", ends=(5,))
    expected = called(second, "fp32", w, state.bfloat16().float(), form="blocks")[0]
    assert same_bits(called(qkv, "fp32", w, form="blocks", block_sum="bf16")[0][:, 5:].contiguous(), expected)
    assert not same_bits(called(qkv, "fp32", w, form="blocks")[0][:, 5:].contiguous(), expected)


@pytest.mark.parametrize("logistic", ["native", "exp"])
def test_silu_alone(logistic: str) -> None:
    x = drawn(5, 2, 3, 8).bfloat16()
    at = {"output": torch.bfloat16, "logistic": logistic}
    ours = OPS["silu"].load()(x, w={}, p={}, at=at)
    by_hand = (x.float() / (1 + (-x.float()).exp())).bfloat16()
    expected = torch.nn.functional.silu(x) if logistic == "native" else by_hand
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours, expected, rtol=0.01 if logistic == "exp" else 0, atol=0)
