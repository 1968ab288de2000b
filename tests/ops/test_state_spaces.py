"""The kernels of Mamba 1's and 2's scans, and of their gated norm, against transformers' functions, by bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.granitemoehybrid import modeling_granitemoehybrid as granite
from transformers.models.jamba import modeling_jamba as jamba

from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import OF_INPUT, UNROUNDED, torch_dtype
from moeparity.ops.registry import OPS

DTYPES = ["bf16", "fp32"]
# Sequences, tokens, heads, groups, channels of a head, width of the state, tokens of a chunk.
SHAPES = [
    (1, 1, 4, 2, 16, 24, 8),
    (2, 7, 3, 1, 19, 1, 7),
    (1, 5, 1, 1, 1, 1, 1),
    (2, 6, 1, 1, 32, 24, 1),
    (3, 16, 4, 4, 8, 5, 16),
    (2, 50, 4, 2, 16, 24, 8),
]


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def settings(op: str, dtype: str, **chosen: Any) -> dict[str, Any]:
    """What the kernel is given: the defaults, in a variant of this dtype, but for what is chosen."""
    values = {a.name: dtype if a.default == "model" else a.default for a in OPS[op].attributes} | chosen
    sites = {a.name for a in OPS[op].attributes if a.kind == "rounding"}
    return {
        n: torch_dtype(str(v)) if n in sites and v not in (UNROUNDED, OF_INPUT) else v
        for n, v in values.items()
        if n != "floor" or v != "config" or "floor" in chosen
    }


def of_channels(x: Tensor) -> Tensor:
    """In memory as a convolution leaves it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


class Mamba2:
    """What a call of Mamba 2's scan reads, and the call itself."""

    def __init__(self, shape: tuple[int, ...], dtype: str, *, state: bool) -> None:
        b, t, self.heads, self.groups, channels, width, self.chunk = shape
        widths = (self.heads * channels, self.groups * width, self.groups * width, self.heads)
        self.reads = [drawn(i, b, t, n).to(torch_dtype(dtype)) for i, n in enumerate(widths)]
        self.w = {
            name: drawn(9 + i, self.heads).to(torch_dtype(dtype)) for i, name in enumerate(("a_log", "dt_bias", "d"))
        }
        self.state = drawn(7, b, self.heads, channels, width) if state else None
        self.dtype = dtype

    def ours(self, *, ends: tuple[int, ...] = (), tokens: int | None = None, **chosen: Any) -> tuple[Tensor, ...]:
        p = {"heads": self.heads, "groups": self.groups, "chunk": self.chunk, "floor": 0.3}
        reads = [x[:, :tokens].contiguous() for x in self.reads]
        at = settings("mamba2", self.dtype, **chosen)
        result: tuple[Tensor, ...] = OPS["mamba2"].load()(*reads, w=self.w, p=p, at=at, state=self.state, ends=ends)
        return result

    def in_chunks(self, *, least: float = 0.0) -> tuple[Tensor, Tensor]:
        """As transformers computes several tokens: [B, T, H * P] and the state behind them."""
        x, b, c = (of_channels(y) for y in self.reads[:3])
        out, state = granite.mamba2_chunk_scan(
            x.unflatten(-1, (self.heads, -1)),
            self.reads[3],
            -torch.exp(self.w["a_log"].float()),
            *(y.unflatten(-1, (self.groups, -1)) for y in (b, c)),
            chunk_size=self.chunk,
            D=self.w["d"],
            dt_bias=self.w["dt_bias"],
            initial_states=self.state,
            dt_softplus=True,
            dt_limit=(least, float("inf")),
            return_final_states=True,
        )
        return out.flatten(2), state

    def by_token(self) -> tuple[Tensor, Tensor]:
        """As transformers computes one token behind others."""
        assert self.state is not None
        state, (x, b, c, dt) = self.state.clone(), (y[:, 0] for y in self.reads)
        x = x.unflatten(-1, (self.heads, -1))
        rate = -torch.exp(self.w["a_log"].float())
        of_channel = (self.heads, x.shape[-1])
        out = granite.mamba2_selective_state_update(
            state,
            x,
            dt[..., None].expand(-1, -1, x.shape[-1]),
            rate[:, None, None].expand(*of_channel, state.shape[-1]),
            *(y.unflatten(-1, (self.groups, -1)) for y in (b, c)),
            self.w["d"][:, None].expand(of_channel),
            dt_bias=self.w["dt_bias"][:, None].expand(of_channel),
            dt_softplus=True,
        )
        return out.flatten(1)[:, None], state


def same(ours: Tensor, theirs: Tensor) -> bool:
    return same_bits(ours.contiguous(), theirs.contiguous())


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_mamba2_in_chunks(dtype: str, shape: tuple[int, ...], has_state: bool) -> None:
    case, tokens = Mamba2(shape, dtype, state=has_state), shape[1]
    form: dict[str, Any] = {"skip": "fp32", "output": "fp32"}
    out, state = case.ours(ends=(tokens,), **form)
    expected, after = case.in_chunks()
    assert same(out, expected)
    assert same(state, after)
    with_floor, _ = case.in_chunks(least=0.3)
    assert same(case.ours(floor="config", **form)[0], with_floor)
    assert same(with_floor, expected) == bool((F.softplus(case.reads[3] + case.w["dt_bias"]) >= 0.3).all())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_mamba2_of_one_token(dtype: str, shape: tuple[int, ...]) -> None:
    case = Mamba2((shape[0], 1, *shape[2:]), dtype, state=True)
    out, state = case.ours(form="tokens", ends=(1,))
    expected, after = case.by_token()
    assert same(out, expected)
    assert same(state, after)


@pytest.mark.parametrize("form", ["chunks", "tokens"])
def test_states_of_mamba2_behind_tokens_within_a_call(form: str) -> None:
    """By tokens those of shorter calls; by chunks too, but for the order of sums over chunks."""
    case, ends = Mamba2((2, 50, 4, 2, 16, 24, 8), "fp32", state=True), (1, 7, 8, 9, 16, 43, 50)
    out, *states = case.ours(form=form, ends=ends)
    assert same(out, case.ours(form=form)[0])
    for end, state in zip(ends, states, strict=True):
        _, short = case.ours(form=form, ends=(end,), tokens=end)
        if form == "tokens":
            assert same(state, short)
        torch.testing.assert_close(state, short, rtol=1e-5, atol=1e-5)


def test_both_forms_of_mamba2_are_one_recurrence() -> None:
    case = Mamba2((2, 50, 4, 2, 16, 24, 8), "fp64", state=True)
    values: dict[str, Any] = {"inner": "fp64", "chunk_state": "fp64", "softplus": "log"}
    chunks, tokens = (case.ours(form=form, ends=(50,), **values) for form in ("chunks", "tokens"))
    for by_chunk, by_token in zip(chunks, tokens, strict=True):
        torch.testing.assert_close(by_chunk, by_token, rtol=1e-10, atol=1e-10)
    of_three = case.ours(form="chunks", chunk=3, **values)[0]
    torch.testing.assert_close(of_three, chunks[0], rtol=1e-10, atol=1e-10)


def test_the_state_between_chunks_of_mamba2_is_rounded() -> None:
    """What the first chunk gives stays, and what the second one begins from is the rounded state of the first."""
    case = Mamba2((1, 16, 4, 2, 16, 24, 8), "fp32", state=False)
    plain, in_bf16 = case.ours()[0], case.ours(chunk_state="bf16")[0]
    assert same(in_bf16[:, :8], plain[:, :8])
    first = Mamba2((1, 16, 4, 2, 16, 24, 8), "fp32", state=False)
    _, state = first.ours(tokens=8, ends=(8,))
    later = Mamba2((1, 16, 4, 2, 16, 24, 8), "fp32", state=False)
    later.reads, later.state = [x[:, 8:] for x in later.reads], state.bfloat16().float()
    torch.testing.assert_close(in_bf16[:, 8:], later.ours()[0], rtol=1e-5, atol=1e-5)
    assert float((in_bf16[:, 8:] - plain[:, 8:]).abs().max()) > 1e-3


def mamba1(shape: tuple[int, int, int, int], dtype: str) -> tuple[list[Tensor], dict[str, Tensor], Tensor]:
    """x, b, c and dt, the weights, and a state: sequences, tokens, channels, width of the state."""
    b, t, channels, width = shape
    reads = [drawn(i, b, t, n).to(torch_dtype(dtype)) for i, n in enumerate((channels, width, width, channels))]
    sizes = {"a_log": (channels, width), "dt_bias": (channels,), "d": (channels,)}
    w = {name: drawn(9 + i, *size).to(torch_dtype(dtype)) for i, (name, size) in enumerate(sizes.items())}
    return reads, w, drawn(5, b, channels, width)


OF_MAMBA1 = [(1, 1, 32, 16), (2, 7, 19, 1), (3, 20, 24, 5), (1, 3, 1, 1)]


@pytest.mark.parametrize("shape", OF_MAMBA1, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_selective_scan(dtype: str, shape: tuple[int, int, int, int]) -> None:
    (x, b, c, dt), w, before = mamba1(shape, dtype)
    rate = -torch.exp(w["a_log"].float())
    at = settings("selective_scan", dtype, skip="fp32", output="fp32", start="zeros")
    out, state = OPS["selective_scan"].load()(x, b, c, dt, w=w, p={}, at=at, state=before, ends=(shape[1],))
    expected, after = jamba.mamba_selective_scan(
        of_channels(x).transpose(1, 2),
        dt.transpose(1, 2),
        rate,
        b.transpose(1, 2),
        c.transpose(1, 2),
        D=w["d"].float(),
        delta_bias=w["dt_bias"].float(),
        delta_softplus=True,
        return_last_state=True,
    )
    assert same(out, expected.transpose(1, 2).float())
    assert same(state, after)
    at = settings("selective_scan", dtype)
    first = [y[:, :1].contiguous() for y in (x, b, c, dt)]
    out, state = OPS["selective_scan"].load()(*first, w=w, p={}, at=at, state=before, ends=(1,))
    after = before.clone()
    x, b, c, dt = (y[:, 0] for y in first)
    expected = jamba.mamba_selective_state_update(
        after, x, dt, rate, b, c, w["d"], dt_bias=w["dt_bias"].float(), dt_softplus=True
    )
    assert same(out[:, 0], expected)
    assert same(state, after)


def test_states_of_the_selective_scan_behind_tokens_within_a_call() -> None:
    (x, b, c, dt), w, before = mamba1((2, 20, 24, 5), "fp32")
    at, kernel, ends = settings("selective_scan", "fp32"), OPS["selective_scan"].load(), (1, 7, 20)
    out, *states = kernel(x, b, c, dt, w=w, p={}, at=at, state=before, ends=ends)
    for end, state in zip(ends, states, strict=True):
        _, short = kernel(*(y[:, :end] for y in (x, b, c, dt)), w=w, p={}, at=at, state=before, ends=(end,))
        torch.testing.assert_close(state, short, rtol=1e-6, atol=1e-6)
    rest = [y[:, 7:] for y in (x, b, c, dt)]
    (behind,) = kernel(*rest, w=w, p={}, at=at, state=states[1])
    torch.testing.assert_close(behind, out[:, 7:], rtol=1e-5, atol=1e-5)
    (anew,) = kernel(*rest, w=w, p={}, at={**at, "start": "zeros"}, state=states[1])
    assert same(anew, kernel(*rest, w=w, p={}, at=at)[0])
    assert float((anew - behind).abs().max()) > 1e-2


@pytest.mark.parametrize("comes_in", DTYPES)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gated_norm_of_groups(dtype: str, groups: int, comes_in: str) -> None:
    """x comes in fp32 from several tokens, in the model's dtype from one."""
    module = granite.GraniteMoeHybridRMSNormGated(48, 48 // groups, 1e-5)
    model_dtype = torch_dtype(dtype)
    module.weight = torch.nn.Parameter(drawn(1, 48).to(model_dtype), requires_grad=False)
    x, gate = drawn(2, 2, 5, 48).to(torch_dtype(comes_in)), drawn(3, 2, 5, 48).to(model_dtype)
    projection = F.pad(gate, (0, 7))
    expected = module(x, projection[..., :48]).to(model_dtype)
    p = {"eps": 1e-5, "function": "silu", "gated": "before", "groups": groups}
    call: Callable[..., Tensor] = OPS["gated_norm"].load()
    at = settings("gated_norm", dtype, normalized=OF_INPUT)
    assert same(call(x, gate, w={"weight": module.weight}, p=p, at=at), expected)
    behind = call(x, gate, w={"weight": module.weight}, p=p, at={**at, "gated": "after"})
    assert float((behind.float() - expected.float()).abs().max()) > 0.1
