"""Eager attention and multi-head latent attention in every form against plain evaluations, bit for bit.

Taken as given is torch's softmax; where it is written out, so is the evaluation. Dot products are exact in this data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.granitemoe_swa.modeling_granitemoe_swa import eager_attention_forward as granite_attention

from moeparity.numerics.bits import same_bits
from moeparity.ops.attention import ATTENTION
from moeparity.ops.kernels.attention import attention
from moeparity.ops.kernels.exponentials import softmax
from moeparity.ops.kernels.mla import mla, mla_expand
from tests.ops.plain import BF16, DTYPES, FP32, SITES, assert_bits, coarse, matmul, one_per_column, plus, random, times
from tests.ops.scalar import F32, SUM, exactly, exp, fma
from tests.verified import record

EAGER = {"implementation": "eager", "softmax": "native", "tf32": "no"}
ROPES = {
    "default": {"rope_type": "default"},
    "yarn": {"rope_type": "yarn", "factor": 8.0, "mscale_all_dim": 0.5},
}


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    at: dict[str, Any],
    visible: Callable[[int, int, int], bool] | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """One sequence and head at a time: q, k [B, H, T, D], v [B, H, T, V] -> [B, T, H * V].

    `visible` says of a sequence whether a query sees a key; all before it and itself where there is nothing else
    to say.
    """
    heads = []
    for i, (one_q, one_k, one_v) in enumerate(zip(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), strict=True)):
        scores = times(matmul(one_q, one_k.t(), at["scores"]), torch.tensor(scale), at["scores"])
        places, smallest = range(len(scores)), torch.tensor(torch.finfo(at["scores"]).min)
        for query, key in itertools.product(places, places):
            if key > query or (visible is not None and not visible(i // q.shape[1], query, key)):
                scores[query, key] = plus(scores[query, key], smallest, at["scores"])
        sink = None if sinks is None else sinks[i % q.shape[1]]
        shares = F.softmax(scores.float(), dim=-1) if sink is None else with_sink(scores, sink, at)
        heads.append(matmul(shares.to(at["probabilities"]), one_v, at["output"]))
    return torch.stack(heads).view(*q.shape[:3], -1).transpose(1, 2).flatten(2)


def with_sink(scores: Tensor, sink: Tensor, at: dict[str, Any]) -> Tensor:
    """Shares [T, T] of scores [T, T] of one head."""
    rows = []
    for row in scores.tolist():
        with_last = [*row, float(sink)]
        shifted = [plus(torch.tensor(x), torch.tensor(-max(with_last)), at["shifted"]) for x in with_last]
        is_alike = at["shifted"] == at["probabilities"]
        whole = torch.stack(shifted)
        rows.append(F.softmax(whole if is_alike else whole.float(), dim=-1)[:-1])
    return torch.stack(rows)


@pytest.mark.parametrize(("scores", "shifted", "probabilities"), SITES)
@pytest.mark.parametrize("lengths", [(11, 11), (11, 4)])
def test_eager_attention_with_sinks(
    scores: torch.dtype, shifted: torch.dtype, probabilities: torch.dtype, lengths: tuple[int, int]
) -> None:
    """transformers 5.23.0, GptOssAttention: the row's highest is taken off before the softmax."""
    q, k = coarse(2, 2, 11, 12, dtype=BF16, seed=0), coarse(2, 2, 11, 12, dtype=BF16, seed=1)
    v = one_per_column(11, 2 * 2 * 12, seed=2).view(11, 2, -1, 12).transpose(0, 1).to(BF16)
    mask = torch.tensor([[i >= 11 - n for i in range(11)] for n in lengths])
    sinks = torch.tensor([3.140625, -0.7109375]).to(BF16)
    at: dict[str, Any] = {**EAGER, "kv_layout": "projected", "scores": scores, "shifted": shifted}
    at |= {"probabilities": probabilities, "output": BF16}
    ours = attention(q, k, v.transpose(1, 2), mask, w={"sinks": sinks}, p={"window": None}, at=at)
    expected = eager(q, k, v.transpose(1, 2), 12**-0.5, at, lambda b, _, j: bool(mask[b, j]), sinks)
    # A query without a key sees them all, as far as the smallest number's sum with a score says.
    rows = torch.tensor([[bool(mask[b, : i + 1].any()) for i in range(11)] for b in range(2)])
    assert_bits(ours[rows], expected[rows])
    plain = attention(q, k, v.transpose(1, 2), mask, w={}, p={"window": None}, at=at)
    assert not torch.equal(ours[rows], plain[rows])


@pytest.mark.parametrize(("scores", "probabilities", "output"), SITES)
@pytest.mark.parametrize("model", DTYPES)
@pytest.mark.parametrize("groups", [1, 3])
def test_eager_attention(
    model: torch.dtype, scores: torch.dtype, probabilities: torch.dtype, output: torch.dtype, groups: int
) -> None:
    q, k = coarse(2, 6, 11, 12, dtype=model, seed=0), coarse(2, 6 // groups, 11, 12, dtype=model, seed=1)
    v = one_per_column(11, 2 * 6 // groups * 12, seed=2).view(11, 2, -1, 12).transpose(0, 1).to(model)
    at = {
        **EAGER,
        "scores": scores,
        "probabilities": probabilities,
        "output": output,
        "kv_layout": "projected",
    }
    k_repeated, v_repeated = (x.repeat_interleave(groups, dim=1) for x in (k, v.transpose(1, 2)))
    mask = torch.ones(2, 11, dtype=torch.bool)
    ours = attention(q, k, v.transpose(1, 2), mask, w={}, p={"window": None}, at=at)
    assert_bits(ours, eager(q, k_repeated, v_repeated, 12**-0.5, at))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 3, 11])
@pytest.mark.parametrize("lengths", [(11, 11), (11, 4), (1, 6)])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_window(dtype: torch.dtype, window: int | None, lengths: tuple[int, int], side: str) -> None:
    q, k = coarse(2, 2, 11, 12, dtype=dtype, seed=0), coarse(2, 2, 11, 12, dtype=dtype, seed=1)
    v = one_per_column(11, 2 * 2 * 12, seed=2).view(11, 2, -1, 12).transpose(0, 1).to(dtype)
    real = [range(11 - n, 11) if side == "left" else range(n) for n in lengths]
    mask = torch.tensor([[i in row for i in range(11)] for row in real])

    def is_visible(sequence: int, query: int, key: int) -> bool:
        return key in real[sequence] and (window is None or query - key < window)

    at: dict[str, Any] = {**EAGER, "kv_layout": "projected"}
    at |= dict.fromkeys(("scores", "probabilities", "output"), dtype)
    ours = attention(q, k, v.transpose(1, 2), mask, w={}, p={"window": window}, at=at)
    assert_bits(ours, eager(q, k, v.transpose(1, 2), 12**-0.5, at, is_visible))
    by_sdpa = attention(q, k, v.transpose(1, 2), mask, w={}, p={"window": window}, at=at | {"implementation": "sdpa"})
    # Another order of the same sums, except in rows without a key: those are torch's own business.
    rows = torch.tensor([[any(is_visible(b, i, j) for j in range(i + 1)) for i in range(11)] for b in range(2)])
    assert torch.allclose(by_sdpa[rows].float(), ours[rows].float(), atol=0.05)


@pytest.mark.parametrize(("model", "expanded", "scores"), SITES)
@pytest.mark.parametrize("rope_type", ROPES)
def test_eager_mla(model: torch.dtype, expanded: torch.dtype, scores: torch.dtype, rope_type: str) -> None:
    """The latents are scaled unit vectors, so that token t's keys and values are column t of kv_b."""
    tokens, heads, nope, width, turned = 9, 3, 5, 7, 4
    q_nope = coarse(2, tokens, heads, nope, dtype=model, seed=0)
    q_rope = coarse(2, heads, tokens, turned, dtype=model, seed=1)
    k_rope = coarse(2, 1, tokens, turned, dtype=model, seed=2)
    latent = (torch.eye(tokens) * torch.tensor([1.0, 0.5])[:, None, None]).to(model)
    keys = coarse(heads, nope, tokens, dtype=FP32, seed=3) * (1 + 2**-5)  # more bits than bf16 holds
    values = one_per_column(tokens, heads * width, seed=4).t().view(heads, width, tokens)
    kv_b = torch.cat((keys, values), dim=1).flatten(0, 1)
    at = {
        **EAGER,
        "projection": "context",
        "kv_b": expanded,
        "scores": scores,
        "probabilities": model,
        "output": model,
    }
    p = {"heads": heads, "value_dim": width, "rope": ROPES[rope_type]}
    mask = torch.ones(2, tokens, dtype=torch.bool)
    ours = mla(q_nope, q_rope, latent.unsqueeze(1), k_rope, mask, w={"kv_b": kv_b}, p=p, at=at)
    apart = mla_expand(latent.unsqueeze(1), w={"kv_b": kv_b}, p=p, at=at)
    once = at | {"projection": "expanded"}
    assert_bits(ours, mla(q_nope, q_rope, None, k_rope, mask, apart, w={"kv_b": kv_b}, p=p, at=once))
    as_computed = mla_expand(None, latent, w={"kv_b": kv_b}, p=p, at=at)
    assert_bits(apart, as_computed)

    by_head = kv_b.to(expanded).view(heads, nope + width, tokens).transpose(1, 2).float()
    keys_values = torch.stack((by_head, by_head * 0.5))
    q = torch.cat((q_nope.transpose(1, 2), q_rope), dim=-1)
    k = torch.cat((keys_values[..., :nope], k_rope.float().expand(-1, heads, -1, -1)), dim=-1)
    mscale = 1.0 if rope_type == "default" else 0.1 * 0.5 * math.log(8.0) + 1.0
    assert_bits(ours, eager(q, k, keys_values[..., nope:], (nope + turned) ** -0.5 * mscale * mscale, at))


LANES = {"AVX2": 8, "AVX512": 16, "AVX512_BF16": 16}
"""fp32 lanes of a register, by what ATen chose for this processor."""


@pytest.mark.parametrize("form", ["divide", "reciprocal"])
@pytest.mark.parametrize("denominator", ["sequential", "reverse"])
def test_softmax_written_out(form: str, denominator: str) -> None:
    scores = random(5, 13, dtype=FP32) * 3
    at = {"softmax": form, "exp": "exact", "denominator": denominator}
    expected = []
    for row in scores.numpy():
        powers = [exp(s - max(row)) for s in row]
        total = SUM[denominator](powers)
        expected.append([x / total if form == "divide" else x * (F32(1) / total) for x in powers])
    assert_bits(softmax(scores, FP32, at), torch.from_numpy(np.array(expected, np.float32)))


@pytest.mark.parametrize("keys", [8, 11, 16, 37, 300])
def test_torch_softmax_on_this_cpu_is_one_of_these_forms(keys: int) -> None:
    """Order by probing, exp by its source: together all of torch's bits, so that the order is no longer `native`."""
    capability = torch.backends.cpu.get_cpu_capability()
    assert capability in LANES, "no other instruction set has been looked at"
    order = "sequential" if keys < LANES[capability] else f"lanes({LANES[capability]}) | fold_hi"
    scores = random(64, keys, dtype=FP32) * 3
    scores[:, 5:7] = torch.finfo(FP32).min
    at = {"softmax": "reciprocal", "exp": "sleef", "denominator": order}
    assert_bits(softmax(scores, FP32, at), F.softmax(scores, dim=-1))
    record("attention", at | {"implementation": "eager"}, f"torch {torch.__version__}", blind=("implementation",))
    assert not torch.equal(softmax(scores, FP32, at | {"exp": "exact"}), F.softmax(scores, dim=-1))


def test_softmax_inside_eager_attention() -> None:
    q, k, v = (
        coarse(2, 3, 11, 12, dtype=BF16, seed=0),
        coarse(2, 3, 11, 12, dtype=BF16, seed=1),
        torch.zeros(2, 11, 3, 12),
    )
    v[:, 4] = 1.0
    at: dict[str, Any] = EAGER | {
        "kv_layout": "projected",
        "softmax": "divide",
        "exp": "exact",
        "denominator": "reverse",
    }
    at |= dict.fromkeys(("scores", "probabilities", "output"), FP32)
    mask = torch.ones(2, 11, dtype=torch.bool)
    ours = attention(q, k, v.transpose(1, 2), mask, w={}, p={"window": None}, at=at).view(2, 11, 3, 12)
    scores = (matmul(q, k.transpose(2, 3), FP32) * 12**-0.5).numpy()
    for b, t, h in np.ndindex(2, 11, 3):
        row = scores[b, h, t, : t + 1]
        powers = [exp(s - max(row)) for s in row]
        wanted = powers[4] / SUM["reverse"](powers) if t >= 4 else F32(0)
        assert ours[b, t, h, 0].item() == wanted


def to_tf32(x: Tensor) -> Tensor:
    """11 significant bits, ties away from zero, by exact arithmetic."""
    out = []
    for value in x.flatten().tolist():
        mantissa, exponent = math.frexp(abs(value))
        out.append(math.copysign(math.ldexp(math.floor(mantissa * 2**11 + 0.5), exponent - 11), value))
    return torch.tensor(out, dtype=torch.float32).view_as(x)


def test_tf32_operands_of_eager_attention() -> None:
    """One term in each sum: q and k have one column, and the values one power of two, at the first key."""
    q, k = random(1, 2, 9, 1, dtype=FP32), random(1, 2, 9, 1, dtype=FP32, seed=1)
    v = torch.zeros(1, 9, 2, 1)
    v[:, 0] = 0.5
    at: dict[str, Any] = EAGER | {"kv_layout": "projected", "tf32": "yes"}
    at |= dict.fromkeys(("scores", "probabilities", "output"), FP32)
    mask = torch.ones(1, 9, dtype=torch.bool)
    ours = attention(q, k, v.transpose(1, 2), mask, w={}, p={"window": None}, at=at)
    scores = to_tf32(q) @ to_tf32(k).transpose(2, 3)
    hidden = torch.full((9, 9), torch.finfo(FP32).min).triu(1)
    p = F.softmax(scores + hidden, dim=-1)
    assert_bits(ours, (to_tf32(p[..., :1]) * 0.5).transpose(1, 2).flatten(2))
    without_tf32 = attention(q, k, v.transpose(1, 2), mask, w={}, p={"window": None}, at=at | {"tf32": "no"})
    assert not torch.equal(ours, without_tf32)


@pytest.mark.parametrize("projection", ["context", "absorbed"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_tf32_operands_of_kv_b(projection: str, implementation: str) -> None:
    """As with operands that were rounded before: latent and kv_b; absorbed, q_nope, kv_b and the latent output."""
    tokens, heads, nope, width, turned, rank = 9, 3, 5, 7, 4, 11
    operands_of_mla = (
        random(2, tokens, heads, nope, dtype=FP32),
        random(2, heads, tokens, turned, dtype=FP32, seed=1),
        random(2, tokens, rank, dtype=FP32, seed=2),
        random(2, 1, tokens, turned, dtype=FP32, seed=3),
        torch.ones(2, tokens, dtype=torch.bool),
    )
    kv_b = random(heads * (nope + width), rank, dtype=FP32, seed=4)
    at: dict[str, Any] = EAGER | {"implementation": implementation, "projection": projection}
    at |= dict.fromkeys(("kv_b", "q_latent", "scores", "probabilities", "output"), FP32)
    # In bf16 the latent output fits.
    at["o_latent"] = BF16
    p = {"heads": heads, "value_dim": width, "rope": ROPES["default"]}

    def run(q_nope: Tensor, latent: Tensor, weight: Tensor, tf32: str) -> Tensor:
        operands = (q_nope, operands_of_mla[1], latent.unsqueeze(1), *operands_of_mla[3:])
        return mla(*operands, w={"kv_b": weight}, p=p, at=at | {"kv_b_tf32": tf32})

    q_nope, latent = operands_of_mla[0], operands_of_mla[2]
    before = (to_tf32(q_nope), latent) if projection == "absorbed" else (q_nope, to_tf32(latent))
    ours = run(q_nope, latent, kv_b, "yes")
    assert_bits(ours, run(*before, to_tf32(kv_b), "no"))
    assert not torch.equal(ours, run(q_nope, latent, kv_b, "no"))


@pytest.mark.parametrize("kv_b", [BF16, FP32])
@pytest.mark.parametrize("q_latent", [BF16, FP32])
@pytest.mark.parametrize("o_latent", [BF16, FP32])
@pytest.mark.parametrize("rope_type", ROPES)
def test_absorbed_mla(kv_b: torch.dtype, q_latent: torch.dtype, o_latent: torch.dtype, rope_type: str) -> None:
    """Latents and value weights with one power of two in each column: those sums are one term."""
    tokens, heads, nope, width, turned, rank = 9, 3, 5, 7, 4, 11
    q_nope, q_rope = (
        coarse(2, tokens, heads, nope, dtype=BF16, seed=0),
        coarse(2, heads, tokens, turned, dtype=BF16, seed=1),
    )
    k_rope = coarse(2, 1, tokens, turned, dtype=BF16, seed=2)
    latent = torch.stack([one_per_column(tokens, rank, seed) for seed in (3, 4)]).to(BF16)
    keys = coarse(heads, nope, rank, dtype=FP32, seed=5) * (1 + 2**-5)  # more bits than bf16 holds
    values = one_per_column(rank, heads * width, seed=6).t().view(heads, width, rank) * (1 + 2**-9)
    weight = torch.cat((keys, values), dim=1).flatten(0, 1)
    at = EAGER | {"projection": "absorbed", "kv_b": kv_b, "q_latent": q_latent, "o_latent": o_latent}
    at |= {"scores": FP32, "probabilities": BF16, "output": BF16}
    p = {"heads": heads, "value_dim": width, "rope": ROPES[rope_type]}
    mask = torch.ones(2, tokens, dtype=torch.bool)
    ours = mla(q_nope, q_rope, latent.unsqueeze(1), k_rope, mask, w={"kv_b": weight}, p=p, at=at)

    q_in_latent = matmul(q_nope.transpose(1, 2).to(kv_b), keys.to(kv_b), q_latent)
    q = torch.cat((q_in_latent, q_rope.to(q_latent)), dim=-1).float()
    shared = latent.unsqueeze(1).expand(-1, heads, -1, -1)
    k = torch.cat((shared, k_rope.expand(-1, heads, -1, -1)), dim=-1).float()
    mscale = 1.0 if rope_type == "default" else 0.1 * 0.5 * math.log(8.0) + 1.0
    scale = (nope + turned) ** -0.5 * mscale * mscale
    inner = eager(q, k, shared.float(), scale, at | {"output": o_latent})
    o = inner.view(2, tokens, heads, rank).transpose(1, 2).to(kv_b)
    assert_bits(ours, matmul(o, values.to(kv_b).transpose(1, 2), BF16).transpose(1, 2).flatten(2))


def test_the_fma_of_the_evaluations_rounds_once() -> None:
    """A product on a tie that a tiny addend breaks, and the tie itself, which goes to the even neighbour."""
    tie = F32(1 + 2**-12)
    assert fma(tie, tie, F32(2.0**-80)) == np.nextafter(F32(1 + 2**-11), F32(2))
    assert fma(tie, tie, F32(0)) == F32(1 + 2**-11)
    assert exactly(Fraction(1, 3)) == F32(1 / 3)
    draw = np.random.default_rng(0)
    # Few bits, so that many sums lie on a tie or beside one.
    numbers = (draw.integers(-4097, 4098, (3, 2000)) * 2.0 ** draw.integers(-30, 30, (3, 2000))).astype(F32)
    for a, b, c in numbers.T:
        assert fma(a, b, c) == exactly(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


@pytest.mark.parametrize(
    ("choices", "attribute", "says"),
    [
        ({"implementation": "sdpa"}, "implementation", "has no sinks"),
        ({"sink": "start", "exponential": "exp2"}, "sink", "Set `exponential: exp`"),
        ({"sink": "end", "splits": 2}, "sink", "Set `start`, or `splits: 1`"),
        ({"sink": "rescale", "splits": "fixed"}, "sink", "Set `start`, or `splits: 1`"),
    ],
    ids=str,
)
def test_what_sinks_do_not_go_with(choices: dict[str, Any], attribute: str, says: str) -> None:
    values: dict[str, Any] = {
        "implementation": "flash",
        "tensor": 1,
        "blocks": 0,
        "exponential": "exp",
        "splits": 1,
    } | choices
    assert ATTENTION.refusals.values is not None
    refusal = ATTENTION.refusals.values({"sinks": (4,)}, values)
    assert refusal is not None
    assert refusal[0] == attribute
    assert says in refusal[1]
    if attribute == "implementation":
        assert ATTENTION.refusals.values({}, values) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_a_sink_as_a_factor(dtype: torch.dtype) -> None:
    """Transformers' function for Granite with windows, and, algebraically, a sink as a score."""
    generator = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(2, heads, 11, 24, generator=generator).to(dtype) for heads in (4, 2, 2))
    sinks = torch.randn(4, generator=generator).to(dtype)
    module: Any = SimpleNamespace(num_key_value_groups=2, sinks=sinks, training=False)
    hidden = torch.full((11, 11), torch.finfo(dtype).min, dtype=dtype).triu(1)
    theirs, _ = granite_attention(module, q, k, v, hidden, 24**-0.5)
    at = {"implementation": "eager", "scores": dtype, "tf32": "no", "softmax": "native", "probabilities": dtype}
    at |= {"output": dtype, "kv_layout": "projected", "sink_as": "factor"}
    mask = torch.ones(2, 11, dtype=torch.bool)
    how: dict[str, Any] = {"w": {"sinks": sinks}, "p": {"window": None}}
    ours = attention(q, k, v, mask, **how, at=at)
    assert same_bits(ours, theirs.flatten(2))
    as_score = attention(q, k, v, mask, **how, at=at | {"sink_as": "score", "shifted": dtype})
    assert torch.allclose(ours.float(), as_score.float(), atol=0.05 if dtype == torch.bfloat16 else 1e-5)
    assert not same_bits(ours, as_score)
