"""Kernels of the short convolution and of the gated delta rule against transformers' functions, by bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.kimi_linear import modeling_kimi_linear as kimi_linear
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import UNROUNDED, torch_dtype
from moeparity.ops.registry import OPS
from moeparity.ops.state import BORDERS, sees_steps

DTYPES = ["bf16", "fp32"]
# Sequences, tokens, heads of keys and of values, and their widths.
SHAPES = [(1, 1, 2, 4, 16, 24), (2, 7, 2, 2, 16, 16), (3, 64, 1, 2, 32, 16), (2, 150, 2, 4, 24, 8)]
RULES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "chunks": qwen3_next.torch_chunk_gated_delta_rule,
    "tokens": qwen3_next.torch_recurrent_gated_delta_rule,
}


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def settings(op: str, dtype: str, **chosen: Any) -> dict[str, Any]:
    """What the kernel is given: the defaults, in a variant of this dtype, but for what is chosen."""
    values = {a.name: dtype if a.default == "model" else a.default for a in OPS[op].attributes} | chosen
    sites = {a.name for a in OPS[op].attributes if a.kind == "rounding"}
    return {n: torch_dtype(str(v)) if n in sites and v != UNROUNDED else v for n, v in values.items()}


class Drawn:
    """What one call of the rule reads, and the call itself; `state` is what came before, with `channels` each channel
    of the keys has a decay of its own.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, *, state: bool, channels: bool = False) -> None:
        self.channels = channels
        b, t, self.key_heads, self.value_heads, dk, dv = shape
        as_dtype = torch_dtype(dtype)
        decays = self.value_heads * (dk if channels else 1)
        widths = (self.key_heads * dk, self.key_heads * dk, self.value_heads * dv, decays, self.value_heads)
        self.reads = [drawn(i, b, t, width).to(as_dtype) for i, width in enumerate(widths)]
        sizes = {"a_log": self.value_heads, "dt_bias": decays}
        self.w = {name: drawn(9, size).to(as_dtype) for name, size in sizes.items()}
        self.state = drawn(7, b, self.value_heads, dk, dv) if state else None
        self.dtype = dtype

    def ours(self, *, ends: tuple[int, ...] = (), tokens: int | None = None, **chosen: Any) -> tuple[Tensor, ...]:
        p = {"key_heads": self.key_heads, "value_heads": self.value_heads, "eps": 1e-6, "channels": self.channels}
        reads = [x[:, :tokens].contiguous() for x in self.reads]
        at = settings("gated_delta", self.dtype, **chosen)
        result: tuple[Tensor, ...] = OPS["gated_delta"].load()(
            *reads, w=self.w, p=p, at=at, state=self.state, ends=ends
        )
        return result

    def theirs(self, form: str, tokens: int | None = None, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v, a, b = (x[:, :tokens] for x in self.reads)
        heads = (self.key_heads, self.key_heads, self.value_heads)
        # As a convolution leaves them.
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        q, k, v = (x.unflatten(-1, (count, -1)) for x, count in zip((q, k, v), heads, strict=True))
        g = -self.w["a_log"].float().exp() * F.softplus(a.float() + self.w["dt_bias"])
        before = self.state if state is None else state
        out, after = RULES[form](
            q, k, v, g=g, beta=b.sigmoid(), initial_state=before, output_final_state=True, use_qk_l2norm_in_kernel=True
        )
        return out.flatten(2), after


KIMI: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "chunks": kimi_linear.chunk_kimi_delta_attention,
    "tokens": kimi_linear.recurrent_kimi_delta_attention,
}
# transformers computes one token behind others by the recurrence, whatever else by chunks.
OF_CHANNELS = [
    (2, 1, 3, 3, 19, 19),
    (1, 1, 2, 2, 16, 16),
    (2, 7, 2, 2, 16, 16),
    (3, 64, 2, 2, 19, 16),
    (2, 150, 2, 2, 8, 8),
    (1, 70, 2, 2, 1, 16),
    (1, 3, 1, 1, 1, 1),
]


def softplus(x: Tensor) -> Tensor:
    return torch.where(x > 20.0, x, torch.log(1.0 + torch.exp(x)))


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("shape", OF_CHANNELS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_decay_for_each_channel(dtype: str, shape: tuple[int, ...], has_state: bool) -> None:
    """Steps that are larger than 20 are among those drawn, and are softplus's own."""
    case, tokens = Drawn(shape, dtype, state=has_state, channels=True), shape[1]
    case.reads[3] = 9 * case.reads[3]
    q, k, v, a, b = case.reads
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2).unflatten(-1, (case.key_heads, -1)) for x in (q, k, v))
    steps = softplus(a.float() + case.w["dt_bias"].float()).unflatten(-1, (case.key_heads, -1))
    g = -case.w["a_log"].float().exp().view(-1, 1) * steps
    form = "tokens" if has_state and tokens == 1 else "chunks"
    expected, after = KIMI[form](
        q, k, v, g=g, beta=b.sigmoid(), initial_state=case.state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    out, state = case.ours(form=form, length="divide", scale="times", softplus="log", ends=(tokens,))
    assert same_bits(out, expected.flatten(2))
    assert same_bits(state.contiguous(), after.contiguous())


def test_states_of_channels_behind_tokens_within_a_call() -> None:
    """By chunks, as those of the recurrence, but for roundings."""
    case, ends = Drawn((2, 150, 2, 2, 24, 8), "fp32", state=True, channels=True), (1, 63, 64, 65, 128, 131, 150)
    out, *states = case.ours(form="chunks", ends=ends)
    by_token, *others = case.ours(form="tokens", ends=ends)
    for ours, expected in zip((out, *states), (by_token, *others), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_an_op_with_a_state_is_never_computed_for_several_steps_at_once() -> None:
    """Whatever its choices are; and it has a site wherever a state is stored."""
    stateful = [op for op in OPS.values() if op.tokens.state is not None]
    assert {op.name for op in stateful} == {"short_conv", "gated_delta", "lightning", "mamba2", "selective_scan"}
    for op in stateful:
        assert op.tokens.sees_rows is sees_steps
        assert {attribute.name: attribute for attribute in BORDERS}.items() <= {
            a.name: a for a in op.attributes
        }.items()
        assert op.tokens.mixes
        assert not op.tokens.joins({})


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize(("form", "scale"), [("chunks", "times"), ("tokens", "over")])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rule(dtype: str, shape: tuple[int, ...], form: str, scale: str, has_state: bool) -> None:
    case, tokens = Drawn(shape, dtype, state=has_state), shape[1]
    out, after = case.ours(form=form, scale=scale, ends=(tokens,))
    expected, state = case.theirs(form)
    assert same_bits(out, expected)
    assert same_bits(after.contiguous(), state.contiguous())


@pytest.mark.parametrize("form", RULES)
def test_states_behind_tokens_within_a_call(form: str) -> None:
    """By tokens those of shorter calls; by chunks too, but for exponentials, which torch rounds by where they lie."""
    case, ends = Drawn((2, 150, 2, 4, 24, 8), "fp32", state=True), (1, 63, 64, 65, 128, 131, 150)
    out, *states = case.ours(form=form, ends=ends)
    assert same_bits(out, case.ours(form=form)[0])
    for end, state in zip(ends, states, strict=True):
        _, short = case.ours(form=form, ends=(end,), tokens=end)
        torch.testing.assert_close(state, short, rtol=1e-5, atol=1e-6)
    again = case.ours(form=form, ends=(65, 131))[1:]
    assert all(same_bits(x, states[ends.index(end)]) for x, end in zip(again, (65, 131), strict=True))


def test_the_state_between_chunks_is_rounded() -> None:
    """As if each chunk of 64 were a call that is given the state of the one before in bf16."""
    case = Drawn((1, 128, 2, 4, 24, 8), "fp32", state=False)
    _, first = case.theirs("chunks", 64)
    later = Drawn((1, 128, 2, 4, 24, 8), "fp32", state=False)
    later.reads = [x[:, 64:].contiguous() for x in later.reads]
    expected, _ = later.theirs("chunks", state=first.bfloat16().float())
    out = case.ours(chunk_state="bf16")[0]
    torch.testing.assert_close(out[:, 64:], expected, rtol=1e-5, atol=1e-6)
    plain = case.ours()[0]
    assert float((out[:, 64:] - plain[:, 64:]).abs().max()) > 1e-4
    assert same_bits(out[:, :64], plain[:, :64])


@pytest.mark.parametrize("tokens", [1, 2, 5, 33, 130])
@pytest.mark.parametrize("taps", [2, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_convolution(dtype: str, taps: int, tokens: int) -> None:
    x = drawn(1, 2, tokens, 96).to(torch_dtype(dtype))
    weight, bias = (drawn(seed, *shape).to(x.dtype) for seed, shape in ((2, (96, 1, taps)), (3, (96,))))
    window = drawn(4, 2, 96, taps).to(x.dtype)
    at, p, kernel = settings("short_conv", dtype), {"activation": "silu"}, OPS["short_conv"].load()
    for b in (None, bias):
        w = {"weight": weight} | ({} if b is None else {"bias": b})
        first, rest = kernel(x, w=w, p=p, at=at, ends=(tokens,))
        expected = qwen3_next.causal_conv1d_fn(x.transpose(1, 2), weight.squeeze(1), b, activation="silu")
        assert same_bits(first.contiguous(), expected.transpose(1, 2).contiguous())
        zeros = x.new_zeros(2, 96, taps)
        assert same_bits(rest.contiguous(), torch.cat((zeros, x.transpose(1, 2)), -1)[..., 1 - taps :].contiguous())
        (later,) = kernel(x, w=w, p=p, at=at, state=window[..., 1:])
        full = torch.cat((window, x.transpose(1, 2)), -1)
        if tokens == 1:
            step = qwen3_next.causal_conv1d_update(x.transpose(1, 2), window.clone(), weight.squeeze(1), b, "silu")
        else:
            step = qwen3_next.causal_conv1d_fn(full, weight.squeeze(1), b, activation="silu")[..., -tokens:]
        assert same_bits(later.contiguous(), step.transpose(1, 2).contiguous())


@pytest.mark.parametrize("form", ["native", "taps"])
def test_a_convolution_whose_channels_have_several_tensors(form: str) -> None:
    x, weight, kernel = drawn(1, 2, 9, 24), drawn(2, 24, 1, 4), OPS["short_conv"].load()
    at, p, parts = settings("short_conv", "fp32", form=form), {"activation": "silu"}, weight.split([8, 6, 10])
    apart = kernel(x, w=dict(zip(("weight", "second", "third"), parts, strict=True)), p=p, at=at, ends=(9,))
    together = kernel(x, w={"weight": weight}, p=p, at=at, ends=(9,))
    assert all(same_bits(a.contiguous(), b.contiguous()) for a, b in zip(apart, together, strict=True))


@pytest.mark.parametrize(("form", "product"), [("taps", UNROUNDED), ("taps", "bf16"), ("taps_fma", UNROUNDED)])
def test_a_convolution_tap_by_tap(form: str, product: str) -> None:
    """The bias first, then the oldest tap; an fma rounds once, which fp64 and one rounding of it are for these."""
    x, weight, bias = drawn(1, 2, 9, 8), drawn(2, 8, 1, 4), drawn(3, 8)
    at = settings("short_conv", "fp32", form=form, product=product)
    (ours,) = OPS["short_conv"].load()(x, w={"weight": weight, "bias": bias}, p={"activation": "none"}, at=at)
    padded = F.pad(x, (0, 0, 3, 0))
    for token in range(9):
        total = bias.clone()
        for tap in range(4):
            exact = padded[:, token + tap].double() * weight[:, 0, tap].double()
            once = exact.float() if product == UNROUNDED else exact.float().bfloat16().float()
            total = total + once if form == "taps" else (total.double() + exact).float()
        assert same_bits(ours[:, token].contiguous(), total.expand(2, 8).contiguous())
