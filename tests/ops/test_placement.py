"""Ops cut over simulated ranks against each rank's part written by hand in plain torch, bit for bit.

Taken as given are torch's GEMMs of the shapes that a rank has; what is cut, rounded and added up is written out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_moe.modeling_qwen3_moe import repeat_kv

from moeparity.errors import SpecError
from moeparity.numerics.collectives.registry import COLLECTIVES
from moeparity.numerics.dtypes import MODEL, torch_dtype
from moeparity.ops.kernels.placement import all_reduce
from moeparity.ops.placement import ALL_REDUCE
from moeparity.ops.registry import OPS
from tests.ops.plain import BF16, DTYPES, FP32, assert_bits, plus, random, times

B, T, RANKS = 2, 7, 4
CUT: dict[str, Any] = {"tensor": RANKS, "blocks": 0}
REDUCE: dict[str, Any] = {"reduce": "now", "collective": "none", "order": "sequential", "sequence": "whole"}
SUM: dict[str, Any] = {**REDUCE, "accumulate": BF16, "output": BF16, "bias": "after"}


def part(x: Tensor, rank: int, axis: int, ranks: int = RANKS) -> Tensor:
    """What a rank holds of x."""
    size = x.shape[axis] // ranks
    return x.narrow(axis, rank * size, size).contiguous()


def projected(x: Tensor, w: dict[str, Tensor], at: dict[str, Any], *, parallel: str, heads: int | None) -> Tensor:
    return run("linear", x, w=w, p={"parallel": parallel, "heads": heads}, **at)


def run(op: str, *inputs: Tensor | None, w: dict[str, Tensor] | None = None, p: Any = None, **at: Any) -> Tensor:
    """The kernel of an op with its defaults in bf16, but for what is given."""
    attributes = [a for a in OPS[op].attributes if a.parameter is None or (p or {}).get(a.parameter)]
    there = [a for a in attributes if a.weight is None or a.weight in (w or {})]
    defaults = {a.name: BF16 if a.default == MODEL else a.default for a in there}
    defaults |= {
        a.name: torch_dtype(a.default) for a in there if a.kind == "rounding" and a.default in {"fp32", "fp64"}
    }
    told_choices = {name: by.default for name, by in OPS[op].choices_elsewhere.items()}
    out: Tensor = OPS[op].load()(*inputs, w=w or {}, p=p or {}, at=told_choices | defaults | at)
    return out


# Linear projections.


@pytest.mark.parametrize("partial", DTYPES)
def test_row_wise_each_rank_sums_its_own_inputs(partial: torch.dtype) -> None:
    x, weight = random(B, T, 32, dtype=BF16), random(24, 32, dtype=BF16, seed=1)
    ours = projected(x, {"weight": weight}, CUT | {"partial": partial}, parallel="row", heads=None)
    shares = [(part(x, rank, -1), part(weight, rank, 1)) for rank in range(RANKS)]
    # Another dtype than that of the operands is a kernel of fp32, rounded at the end.
    by_hand = [F.linear(*s) if partial == BF16 else F.linear(*(t.float() for t in s)).to(partial) for s in shares]
    assert_bits(ours, torch.stack(by_hand, dim=1))


def test_row_wise_the_attribute_overrides_the_plan() -> None:
    x, weight = random(B, T, 32, dtype=BF16), random(24, 32, dtype=BF16, seed=1)
    at = CUT | {"partial": BF16, "output": BF16}
    planned = projected(x, {"weight": weight}, at, parallel="row", heads=None)
    for plan in ("column", "row"):
        assert_bits(projected(x, {"weight": weight}, at | {"parallel": "row"}, parallel=plan, heads=None), planned)
        across = projected(x, {"weight": weight}, at | {"parallel": "column"}, parallel=plan, heads=None)
        assert across.shape == (B, T, 24)


@pytest.mark.parametrize("bias", [False, True])
def test_column_wise_each_rank_makes_its_own_outputs(*, bias: bool) -> None:
    x, weight = random(B, T, 32, dtype=BF16), random(24, 32, dtype=BF16, seed=1)
    w = {"weight": weight} | ({"bias": random(24, dtype=BF16, seed=2)} if bias else {})
    by_hand = [F.linear(x, *(part(t, rank, 0) for t in w.values())) for rank in range(RANKS)]
    ours = projected(x, w, CUT | {"output": BF16}, parallel="column", heads=None)
    assert_bits(ours, torch.cat(by_hand, dim=-1))


def test_heads_fewer_than_ranks_are_held_by_several() -> None:
    """Two heads on four ranks are computed by two, each a whole head."""
    x, weight = random(B, T, 32, dtype=BF16), random(16, 32, dtype=BF16, seed=1)
    by_hand = [F.linear(x, part(weight, head, 0, 2)) for head in range(2)]
    ours = projected(x, {"weight": weight}, CUT | {"output": BF16}, parallel="column", heads=2)
    assert_bits(ours, torch.stack(by_hand, dim=2))


def test_the_vocabulary_is_cut_even_where_it_does_not_divide() -> None:
    x, weight = random(B, T, 32, dtype=BF16), random(37, 32, dtype=BF16, seed=1)
    by_hand = [F.linear(x, weight[first : first + 10].contiguous()) for first in (0, 10, 20, 30)]
    ours = run("lm_head", x, w={"weight": weight}, **CUT)
    assert_bits(ours, torch.cat(by_hand, dim=-1))


def test_blocks_stand_for_ranks_whatever_their_number() -> None:
    x, weight = random(B, T, 32, dtype=BF16), random(24, 32, dtype=BF16, seed=1)
    eight = projected(x, {"weight": weight}, {"tensor": 8, "blocks": 0, "partial": FP32}, parallel="row", heads=None)
    for ranks in (1, 2, 4, 8):
        at = {"tensor": ranks, "blocks": 8, "partial": FP32}
        assert_bits(projected(x, {"weight": weight}, at, parallel="row", heads=None), eight)


# The all-reduce.


def summed(partials: Tensor, at: dict[str, Any] | None = None, bias: Tensor | None = None) -> Tensor:
    return all_reduce(partials, w={} if bias is None else {"bias": bias}, p={}, at=SUM | (at or {}))


def folded(partials: list[Tensor], dtype: torch.dtype) -> Tensor:
    total = partials[0].to(dtype)
    for each in partials[1:]:
        total = plus(total, each, dtype)
    return total


@pytest.mark.parametrize(("accumulate", "output"), list(itertools.product(DTYPES, DTYPES)))
def test_ranks_in_a_stated_order(accumulate: torch.dtype, output: torch.dtype) -> None:
    partials = random(B, RANKS, T, 24, dtype=BF16)
    at = {"accumulate": accumulate, "output": output}
    of = list(partials.unbind(1))
    assert_bits(summed(partials, at), folded(of, accumulate).to(output))
    assert_bits(summed(partials, at | {"order": "reverse"}), folded(of[::-1], accumulate).to(output))
    pairs = [folded(of[i : i + 2], accumulate) for i in (0, 2)]
    assert_bits(summed(partials, at | {"order": "fold_lo"}), folded(pairs, accumulate).to(output))


@pytest.mark.parametrize("partial", [BF16, FP32])
def test_a_ring_starts_each_chunk_at_another_rank(partial: torch.dtype) -> None:
    partials = random(B, RANKS, T, 24, dtype=partial)
    flat = partials.movedim(1, 0).flatten(1)
    # Chunks of whole 16 bytes.
    step, count = 16 // flat.element_size(), flat.shape[1]
    size = math.ceil(count / RANKS / step) * step
    by_hand = torch.empty_like(flat[0])
    for chunk, first in enumerate(range(0, count, size)):
        chunk_slice = slice(first, first + size)
        by_hand[chunk_slice] = folded([flat[(chunk + 1 + hop) % RANKS, chunk_slice] for hop in range(RANKS)], partial)
    ours = summed(partials, {"collective": "nccl.ring", "output": partial})
    assert_bits(ours, by_hand.view(B, T, 24))
    assert_bits(
        summed(partials, {"collective": "flashinfer.one_shot", "output": partial}),
        folded([*partials.unbind(1)], partial),
    )
    wide = folded([*partials.unbind(1)], FP32).to(partial)
    assert_bits(summed(partials, {"collective": "vllm.one_stage", "output": partial}), wide)


@pytest.mark.parametrize("tokens", [7, 8, 3])
def test_sequence_parallel_reduces_each_ranks_own_tokens(tokens: int) -> None:
    """The message lies by destination; the last ranks' shares are short, or empty, where tokens do not divide."""
    partials = random(B, RANKS, tokens, 24, dtype=BF16)
    share = -(-tokens // RANKS)
    by_hand = [
        folded([partials[:, (rank + 1 + hop) % RANKS, rank * share : (rank + 1) * share] for hop in range(RANKS)], BF16)
        for rank in range(RANKS)
    ]
    ours = summed(partials, {"collective": "nccl.ring", "sequence": "scattered"})
    assert_bits(ours, torch.cat(by_hand, dim=1))
    assert not torch.equal(ours, summed(partials, {"collective": "nccl.ring"}))


@pytest.mark.parametrize(("collective", "ranks"), [("deepep.intranode", 3), ("deepep.internode", 16)])
def test_what_brings_each_token_home_has_one_sum_with_tokens_scattered_or_not(collective: str, ranks: int) -> None:
    """As Megatron-LM runs DeepEP under sequence parallel: each token's sum is made where the token is."""
    partials = random(B, ranks, T, 32, dtype=BF16)
    whole = summed(partials, {"collective": collective, "sequence": "whole"})
    assert_bits(summed(partials, {"collective": collective, "sequence": "scattered"}), whole)
    assert ALL_REDUCE.refusals.values is not None
    values = {"reduce": "now", "collective": collective, "sequence": "scattered", "message": "bf16"}
    assert ALL_REDUCE.refusals.values({"partials of x": (ranks,)}, values) is None


def test_a_row_wise_bias_is_added_after_or_shared_or_by_the_first_rank() -> None:
    x, weight = random(B, T, 32, dtype=BF16), random(24, 32, dtype=BF16, seed=1)
    w = {"weight": weight, "bias": random(24, dtype=BF16, seed=2)}
    shares = [(part(x, rank, -1), part(weight, rank, 1)) for rank in range(RANKS)]
    after, shared, first = (
        summed(
            projected(x, w, CUT | {"partial": BF16, "bias": bias}, parallel="row", heads=None),
            {"bias": bias},
            w["bias"],
        )
        for bias in ("after", "shared", "first")
    )
    assert_bits(after, plus(folded([F.linear(*each) for each in shares], BF16), w["bias"], BF16))
    assert_bits(shared, folded([F.linear(*each, w["bias"] / RANKS) for each in shares], BF16))
    # Inside the first rank's GEMM, before its sum is rounded.
    by_rank = [F.linear(*shares[0], w["bias"]), *(F.linear(*each) for each in shares[1:])]
    assert_bits(first, folded(by_rank, BF16))
    assert not torch.equal(after, shared)
    assert not any(torch.equal(first, placed) for placed in (after, shared))


def test_what_is_whole_passes_by() -> None:
    x = random(B, T, 24, dtype=BF16)
    assert all_reduce(x, w={"bias": random(24, dtype=BF16)}, p={}, at={}) is x


# Attention.


def attention_by_hand(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Of the heads of one rank [B, H, T, D], in the dtype they have -> [B, T, H * D]."""
    scores = torch.matmul(q, k.transpose(2, 3)) * scale
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    scores = scores + torch.zeros_like(hidden, dtype=q.dtype).masked_fill_(hidden, torch.finfo(q.dtype).min)
    probabilities = F.softmax(scores, dim=-1, dtype=FP32).to(q.dtype)
    return torch.matmul(probabilities, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(8, 8, 4), (8, 4, 2), (8, 2, 4), (4, 1, 4)])
def test_each_rank_attends_with_its_own_heads(dtype: torch.dtype, heads: int, kv_heads: int, ranks: int) -> None:
    """Key and value heads fewer than the ranks are held by several."""
    q, k = random(B, heads, T, 16, dtype=dtype), random(B, kv_heads, T, 16, dtype=dtype, seed=1)
    v = random(B, T, kv_heads, 16, dtype=dtype, seed=2)
    by_hand = []
    for rank in range(ranks):
        mine = range(rank * heads // ranks, (rank + 1) * heads // ranks)
        kv_of_rank = sorted({head * kv_heads // heads for head in mine})
        own_k, own_v = k[:, kv_of_rank].contiguous(), v[:, :, kv_of_rank].contiguous().transpose(1, 2)
        times_held = len(mine) // len(kv_of_rank)
        own_k, own_v = repeat_kv(own_k, times_held), repeat_kv(own_v, times_held)
        by_hand.append(attention_by_hand(q[:, mine.start : mine.stop].contiguous(), own_k, own_v, 16**-0.5))
    at: dict[str, Any] = {"scores": dtype, "probabilities": dtype, "output": dtype, "tensor": ranks}
    mask = torch.ones(B, T, dtype=torch.bool)
    ours = run("attention", q, k, v.transpose(1, 2), mask, p={"window": None}, **at)
    assert_bits(ours, torch.cat(by_hand, dim=-1))


def test_each_rank_expands_the_latent_into_its_own_heads() -> None:
    heads, nope, rope, value, latent_width = 4, 8, 4, 6, 12
    q_nope, q_rope = random(B, T, heads, nope, dtype=BF16), random(B, heads, T, rope, dtype=BF16, seed=1)
    latent, k_rope = random(B, T, latent_width, dtype=BF16, seed=2), random(B, 1, T, rope, dtype=BF16, seed=3)
    kv_b = random(heads * (nope + value), latent_width, dtype=BF16, seed=4)
    by_hand = []
    for head in range(heads):
        expanded = F.linear(latent, part(kv_b, head, 0, heads)).unsqueeze(1)
        k = torch.cat((expanded[..., :nope], k_rope), dim=-1)
        q = torch.cat((q_nope[:, :, head].unsqueeze(1), q_rope[:, head : head + 1]), dim=-1)
        by_hand.append(attention_by_hand(q, k, expanded[..., nope:], (nope + rope) ** -0.5))
    p = {"heads": heads, "value_dim": value, "rope": {"rope_type": "default"}}
    mask = torch.ones(B, T, dtype=torch.bool)
    own_latent = latent.unsqueeze(1)
    ours = run("mla", q_nope, q_rope, own_latent, k_rope, mask, w={"kv_b": kv_b}, p=p, projection="context", **CUT)
    once = run("mla_expand", own_latent, w={"kv_b": kv_b}, p=p, **CUT)
    assert_bits(ours, run("mla", q_nope, q_rope, None, k_rope, mask, once, w={"kv_b": kv_b}, p=p, **CUT))
    assert_bits(ours, torch.cat(by_hand, dim=-1))


# Experts.

EXPERTS, TOP_K, HIDDEN, WIDTH = 8, 4, 24, 32


def routes(seed: int = 0) -> Tensor:
    """Ids [B, T, K], each token's all different."""
    draws = [torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(seed + i)) for i in range(B * T)]
    return torch.stack(draws)[:, :TOP_K].view(B, T, TOP_K)


@pytest.mark.parametrize("partial", [BF16, FP32])
@pytest.mark.parametrize("gate_up", ["fused", "split"])
def test_each_rank_holds_a_part_of_every_expert(gate_up: str, partial: torch.dtype) -> None:
    x, ids = random(B, T, HIDDEN, dtype=BF16), routes()
    gate, up = (random(EXPERTS, WIDTH, HIDDEN, dtype=BF16, seed=s) for s in (1, 2))
    down = random(EXPERTS, HIDDEN, WIDTH, dtype=BF16, seed=3)
    by_hand = torch.empty(RANKS, B * T, TOP_K, HIDDEN, dtype=partial)
    for rank, expert in itertools.product(range(RANKS), range(EXPERTS)):
        # By slot, then token.
        slots, tokens = (ids.view(-1, TOP_K).t() == expert).nonzero(as_tuple=True)
        rows, weights = x.view(-1, HIDDEN)[tokens], [part(w[expert], rank, 0) for w in (gate, up)]
        gate_up_rows = F.linear(rows, torch.cat(weights)).chunk(2, dim=-1)
        g, u = gate_up_rows if gate_up == "fused" else [F.linear(rows, w) for w in weights]
        hidden, down_part = times(F.silu(g), u, BF16), part(down[expert], rank, 1)
        by_hand[rank, tokens, slots] = (
            F.linear(hidden, down_part) if partial == BF16 else F.linear(hidden.float(), down_part.float())
        )
    at = {"gate_up": gate_up, "partial": partial, **CUT}
    ours = run("experts", x, ids, None, w={"gate_up": torch.cat((gate, up), dim=1), "down": down}, **at)
    assert_bits(ours, by_hand.view(RANKS, B, T, TOP_K, HIDDEN).movedim(0, 1))


COMBINE: dict[str, Any] = {"weighted": FP32, "accumulate": FP32, "leaves": "slot", "order": "sequential"}


def combined(rows: Tensor, ids: Tensor | None, weights: Tensor, at: dict[str, Any]) -> Tensor:
    p = {"experts": EXPERTS, "top_k": TOP_K}
    return run("combine", rows, ids, weights, p=p, **COMBINE | at)


def sum_of(slots: list[int], rows: Tensor, weights: Tensor, partial: torch.dtype) -> Tensor:
    """Rows [K, H] and weights [K] of these slots of one token, from +0 on."""
    total = torch.zeros(rows.shape[-1])
    for slot in slots:
        total = plus(total, times(rows[slot], weights[slot], FP32), FP32)
    return total.to(partial)


@pytest.mark.parametrize("partial", DTYPES)
def test_experts_in_parts_are_combined_rank_by_rank(partial: torch.dtype) -> None:
    rows, weights = random(B, RANKS, T, TOP_K, HIDDEN, dtype=BF16), random(B, T, TOP_K, dtype=BF16, seed=1)
    ours = combined(rows, None, weights, {"partial": partial})
    assert ours.shape == (B, RANKS, T, HIDDEN)
    for b, rank, t in itertools.product(range(B), range(RANKS), range(T)):
        assert_bits(ours[b, rank, t], sum_of([*range(TOP_K)], rows[b, rank, t], weights[b, t], partial))


def by_rank(owners: list[int], ranks: int) -> list[list[int]]:
    return [[slot for slot, owner in enumerate(owners) if owner == rank] for rank in range(ranks)]


def by_first_slot(owners: list[int], ranks: int) -> list[list[int]]:
    met: dict[int, list[int]] = {}
    for slot, owner in enumerate(owners):
        met.setdefault(owner, []).append(slot)
    return [*met.values(), *([[]] * (min(ranks, TOP_K) - len(met)))]


@pytest.mark.parametrize(("partials", "grouping"), [("rank", by_rank), ("first_slot", by_first_slot)])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("leaves", ["slot", "expert"])
def test_experts_on_ranks_are_combined_by_their_owner(
    leaves: str, ranks: int, partials: str, grouping: Callable[[list[int], int], list[list[int]]]
) -> None:
    rows, weights, ids = random(B, T, TOP_K, HIDDEN, dtype=BF16), random(B, T, TOP_K, dtype=BF16, seed=1), routes()
    ours = combined(rows, ids, weights, {"partial": BF16, "expert": ranks, "partials": partials, "leaves": leaves})
    groups = {(b, t): grouping((ids[b, t] // (EXPERTS // ranks)).tolist(), ranks) for b in range(B) for t in range(T)}
    assert ours.shape == (B, len(groups[0, 0]), T, HIDDEN)
    for (b, t), ranked in groups.items():
        for i, slots in enumerate(ranked):
            ordered = sorted(slots, key=ids[b, t].tolist().__getitem__) if leaves == "expert" else slots
            assert_bits(ours[b, i, t], sum_of(ordered, rows[b, t], weights[b, t], BF16))
    emptied = {("rank", 4), ("rank", 8), ("first_slot", 4)}
    assert any([] in ranked for ranked in groups.values()) == ((partials, ranks) in emptied), "that gives +0"


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_tokens_only_slot_is_one_sum_where_sums_go_by_slots(ranks: int) -> None:
    rows, weights, ids = random(B, T, 1, HIDDEN, dtype=BF16), random(B, T, 1, dtype=BF16, seed=1), routes()[..., :1]
    ours = combined(rows, ids, weights, {"output": BF16, "expert": ranks, "partials": "first_slot"})
    assert_bits(ours, combined(rows, ids, weights, {"output": BF16, "expert": 1}))


# What is done with partial sums before they are reduced.


@pytest.mark.parametrize("op", ["add", "shared_add"])
def test_the_first_rank_adds_what_is_whole(op: str) -> None:
    """The routed experts and a shared expert joined, and one all-reduce over both."""
    routed, shared = random(B, RANKS, T, 24, dtype=BF16), random(B, RANKS, T, 24, dtype=BF16, seed=1)
    whole = random(B, T, 24, dtype=BF16, seed=2)
    added = run(op, routed, shared, p={"scale": 1.0})
    assert_bits(added, plus(routed, shared, BF16))
    assert_bits(
        summed(added), folded([plus(r, s, BF16) for r, s in zip(routed.unbind(1), shared.unbind(1), strict=True)], BF16)
    )
    first, *others = routed.unbind(1)
    expected = torch.stack([plus(first, whole, BF16), *others], dim=1)
    for a, b in ((routed, whole), (whole, routed)):
        assert_bits(run(op, a, b, p={"scale": 1.0}), expected)


def test_what_was_to_be_reduced_later_is_handed_on() -> None:
    partials = random(B, RANKS, T, 24, dtype=BF16)
    assert all_reduce(partials, w={}, p={}, at={"reduce": "later"}) is partials


def test_a_gate_weighs_each_ranks_part() -> None:
    gate, x = random(B, T, 1, dtype=BF16), random(B, RANKS, T, 24, dtype=BF16, seed=1)
    share = torch.sigmoid(gate)
    ours = run("sigmoid_gate", gate, x)
    assert_bits(ours, torch.stack([times(share, rank_part, BF16) for rank_part in x.unbind(1)], dim=1))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_swiglu_is_cut_into_the_ranks_channels(dtype: torch.dtype) -> None:
    gate, up = random(B, T, 36, dtype=dtype), random(B, T, 36, dtype=dtype, seed=1)
    by_hand = [times(F.silu(part(gate, rank, -1)), part(up, rank, -1), dtype) for rank in range(RANKS)]
    ours = run("swiglu", gate, up, p={"halves": False}, activation=dtype, output=dtype, **CUT)
    assert_bits(ours, torch.cat(by_hand, dim=-1))


def test_a_vocabulary_on_ranks_has_no_minus_zero() -> None:
    """A rank without the row adds +0 to it."""
    weight = random(8, 24, dtype=BF16)
    weight[3, :5] = -0.0
    tokens = torch.tensor([[3, 1, 3]])
    of_one_rank, four = (run("embedding", tokens, w={"weight": weight}, tensor=n) for n in (1, RANKS))
    assert_bits(of_one_rank, weight[tokens])
    assert_bits(four, weight[tokens] + 0.0)
    assert not torch.equal(of_one_rank.view(torch.int16), four.view(torch.int16))


# What a library refuses only once it sees the message.

REFUSED: dict[str, tuple[dict[str, Any], tuple[int, ...], torch.dtype, str]] = {
    "another dtype": (
        {"collective": "torch.symm_mem_two_shot"},
        (1, 4, 3, 8),
        FP32,
        r"torch.symm_mem_two_shot is known for \['bf16'\], not for fp32\.",
    ),
    "no whole packs": (
        {"collective": "flashinfer.one_shot"},
        (1, 4, 3, 7),
        BF16,
        "flashinfer.one_shot takes multiples of 16 bytes, not 42",
    ),
    "no row of the table": ({"collective": "vllm.custom"}, (1, 3, 3, 8), BF16, "vllm.custom does not take"),
    "a table without a reduce-scatter": (
        {"collective": "trtllm.all_reduce", "sequence": "scattered"},
        (1, 4, 3, 8),
        BF16,
        "trtllm.one_shot, which adds up a message of 48 bytes, has no reduce-scatter here",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_message_that_the_library_does_not_take(case: str) -> None:
    at, shape, dtype, says = REFUSED[case]
    with pytest.raises(SpecError, match=rf"^collective: {says}(.|\n)* Set another `collective`\.$"):
        summed(random(*shape, dtype=dtype), at | {"output": dtype})


def test_a_bias_is_not_lost_with_a_reduction_that_comes_later() -> None:
    assert ALL_REDUCE.refusals.values is not None
    shapes = {"partials of x": (2,), "bias": (8,)}
    refusal = ALL_REDUCE.refusals.values(shapes, {"reduce": "later", "bias": "after"})
    assert refusal == ("reduce", "the GEMM before it leaves the bias to it. Set `bias: shared` or `first` there.")
    assert all(
        ALL_REDUCE.refusals.values(shapes, {"reduce": "later", "bias": bias}) is None for bias in ("shared", "first")
    )


def test_every_collective_is_a_choice() -> None:
    attribute = ALL_REDUCE.attribute("collective")
    assert attribute is not None
    assert COLLECTIVES.keys() <= set(attribute.values)
