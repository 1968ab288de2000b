"""Experts, the sum over a token's slots, and the copies to experts and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from moeparity.numerics.collectives.execute import all_reduce
from moeparity.numerics.collectives.registry import COLLECTIVES
from moeparity.ops.kernels.combine import combine
from moeparity.ops.kernels.elementwise import swiglu
from moeparity.ops.kernels.experts import experts
from moeparity.ops.kernels.router import router
from tests.engines.triton_kernels.case import Case, Outputs, Seen
from tests.engines.triton_kernels.gemms import INSIDE
from tests.ops.plain import BF16, FP32, random

Settings = dict[str, Any]
ORDERS = ("order", "leaves", "expert")
"""What a few bf16 rows, added in fp32 and rounded to bf16, mostly tell nothing of."""


def short_name(dtype: torch.dtype) -> str:
    """As tables name it."""
    return "bf16" if dtype == BF16 else "fp32"


def routed(tokens: int, count: int, k: int, seed: int) -> tuple[Tensor, Tensor]:
    """ids and weights [N, K]; the last expert has one token at most."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.rand(tokens, count - 1, generator=g).argsort(-1)[:, :k].contiguous()
    ids[-1, 0] = count - 1
    return ids, torch.rand(tokens, k, generator=g)


def zero_sums(tokens: int, slots: int, hidden: int) -> Tensor:
    """bf16 rows that add up to 0 over the slots, of sizes 2^-14 to 2^14: what is left of a sum is its roundings."""
    g = torch.Generator().manual_seed(hidden)
    shape = (tokens, slots // 2, hidden)
    half = torch.randn(shape, generator=g) * 2.0 ** torch.randint(-14, 15, shape, generator=g)
    halves = torch.cat([half, -half], dim=1).to(BF16)
    return halves[:, torch.randperm(slots, generator=g)].contiguous()


def two_terms(count: int, rows: int, k: int, seed: int) -> Tensor:
    """[count, rows, k] with 1 and 2^-9 in each row: a dot product with bf16 is exact in fp32, in any order."""
    g = torch.Generator().manual_seed(seed)
    places = torch.rand(count, rows, k, generator=g).argsort(-1)[..., :2]
    return torch.zeros(count, rows, k).scatter(-1, places, torch.tensor([1.0, 2.0**-9]).expand_as(places)).to(BF16)


def experts_at(**at: Any) -> Settings:
    """The Triton experts of the profiles `vllm` and `sglang`."""
    base = {"implementation": "loop", "gate_up": "fused", "projections": BF16, "product": BF16, "output": BF16}
    return {**base, "score_site": "epilogue", "tensor": 1, "blocks": 0, "parallel": "row", "tf32": "no", **at}


def combine_at(**at: Any) -> Settings:
    """Rows that have met their weights, added by slot in fp32."""
    base = {"accumulate": FP32, "leaves": "slot", "order": "sequential", "output": BF16, "expert": 1}
    return {**base, "scaling": "weights", "score_site": "epilogue", "partial": BF16, "weighted": FP32, **at}


def combined(rows: Tensor, weights: Tensor | None, scale: float = 1.0, **at: Any) -> Tensor:
    """rows [N, K, H], weights [N, K] -> [N, H]."""
    p = {"experts": 8, "top_k": rows.shape[1], "scale": scale}
    weighted = None if weights is None else weights.unsqueeze(0)
    settings = combine_at(score_site="epilogue" if weights is None else "combine", **at)
    return combine(rows.unsqueeze(0), None, weighted, w={}, p=p, at=settings).squeeze(0)


def experts_case(program: str, tokens: int, count: int, k: int, activation: torch.dtype) -> Case:
    """Gates above 18, whose silu is the gate itself, so that no exponential shows."""
    hidden, width = 160, 72
    g = torch.Generator().manual_seed(tokens)
    x = (torch.randint(18 * 4, 60 * 4, (tokens, hidden), generator=g) / 4).to(BF16)
    gate_up, down = two_terms(count, 2 * width, hidden, seed=2), two_terms(count, hidden, width, seed=3)
    ids, weights = routed(tokens, count, k, seed=4)
    inputs = {"x": x, "gate_up": gate_up, "down": down, "ids": ids, "weights": weights}

    def computed(**at: Any) -> Outputs:
        scored = experts_at(activation=activation, **at)
        operands = x.unsqueeze(0), ids.unsqueeze(0), weights.unsqueeze(0)
        rows = experts(*operands, w={"gate_up": gate_up, "down": down}, p={}, at=scored).squeeze(0)
        return {"rows": rows, "output": combined(rows, None)}

    blind = ("implementation", "gate_up", "activation", "product", "tf32", "logistic", "tensor", "blocks")
    return Case(
        program=program,
        kernel="fused_moe_kernel",
        kind="experts",
        shapes=f"{tokens} tokens, {count} experts, top-{k}, {hidden} x {width} bf16",
        arguments=inputs,
        ours=computed,
        other_outputs=lambda: computed(projections=FP32),
        says="gate and up rounded; the routing weight times the fp32 accumulator, then one rounding",
        recorded=(Seen(op="experts", at=experts_at(activation=activation), blind=blind),),
        blind=f"{INSIDE}; silu and the sum over slots, which are no Triton kernels there",
    )


def weighted_sum_case(tokens: int, k: int, hidden: int, dtype: torch.dtype) -> Case:
    rows = random(tokens, k, hidden, dtype=dtype, seed=k)
    weights = random(tokens, k, dtype=FP32, seed=9).sigmoid()
    at: Settings = {"output": dtype, "order": "sequential(zero)"}
    return Case(
        program="live_vllm",
        kernel="moe_fused_mul_sum_kernel",
        kind="weighted_sum",
        shapes=f"{tokens} x {k} x {hidden} {'bf16' if dtype == BF16 else 'fp32'}",
        arguments={"rows": rows, "weights": weights, "ids": None},
        ours=lambda: {"output": combined(rows, weights, **at)},
        other_outputs=lambda: {"output": combined(rows, weights, **at | {"weighted": BF16})},
        says="fp32 products added by slot, ascending, one rounding",
        recorded=(Seen(op="combine", at=combine_at(score_site="combine", output=dtype), operands=dtype, blind=ORDERS),),
        blind="contraction of product and addition",
    )


def gather_case(program: str, tokens: int, k: int, hidden: int, *, absent: bool, dtype: torch.dtype = BF16) -> Case:
    """Rows lie as experts leave them; ids of -1, or of experts elsewhere, add nothing."""
    g = torch.Generator().manual_seed(tokens)
    rows = random(tokens * k, hidden, dtype=dtype, seed=k)
    weights = random(tokens, k, dtype=FP32, seed=5).sigmoid()
    places = torch.randperm(tokens * k, generator=g).view(tokens, k).int()
    ids = torch.randint(0, 6, (tokens, k), generator=g)
    is_routed = torch.ones_like(ids, dtype=torch.bool)
    if absent:
        is_routed = torch.rand(tokens, k, generator=g) < 0.7
        ids = torch.where(is_routed, ids, -1)
    by_place = torch.where(is_routed.unsqueeze(-1), rows[places.long()], 0)

    def summed(**at: Any) -> Outputs:
        return {"output": combined(by_place, weights, **{"order": "sequential(zero)", "output": dtype, **at})}

    return Case(
        program=program,
        kernel="_fwd_kernel_ep_gather",
        kind="gather",
        shapes=f"{tokens} x {k} x {hidden} {short_name(dtype)}{', experts elsewhere' if absent else ''}",
        arguments={"rows": rows, "ids": ids, "weights": weights, "places": places, "expert_map": None},
        ours=summed,
        other_outputs=lambda: summed(weighted=BF16),
        says="fp32 products added by slot, ascending, one rounding; slots of other ranks add nothing",
        recorded=(Seen(op="combine", at=combine_at(score_site="combine"), blind=ORDERS),),
        blind="contraction of product and addition",
    )


def unpermute_case(tokens: int, k: int, hidden: int) -> Case:
    """Rows lie by expert, then token; a token's slots are in any order of experts."""
    x, (ids, _) = random(tokens, hidden, dtype=BF16, seed=2), routed(tokens, 7, k, seed=4)
    by_slot = zero_sums(tokens, k, hidden)
    by_expert = (ids * tokens + torch.arange(tokens).unsqueeze(1)).flatten().argsort()
    inputs = {"x": x, "chosen": torch.zeros(tokens, 7, dtype=torch.int32).scatter(1, ids, 1)}

    def summed(**at: Any) -> Outputs:
        settings = combine_at(leaves="expert", **{"order": "reverse", **at})
        p = {"experts": 7, "top_k": k, "scale": 1.0}
        output = combine(by_slot.unsqueeze(0), ids.unsqueeze(0), None, w={}, p=p, at=settings).squeeze(0)
        return {"permuted": x[by_expert // k], "output": output}

    at = combine_at(leaves="expert", order="reverse")
    return Case(
        program="live_te",
        kernel="_row_id_map_pass_1_kernel, _2_kernel, _3_kernel, _permute_kernel, _unpermute_kernel",
        kind="unpermute",
        shapes=f"{tokens} x {k} x {hidden} bf16",
        arguments={**inputs, "rows": by_slot.flatten(0, 1)[by_expert]},
        ours=summed,
        other_outputs=lambda: summed(order="sequential"),
        says="rows by expert, then token; added in fp32, the highest expert first, and rounded once",
        recorded=(Seen(op="combine", at=at, blind=("expert", "scaling")),),
        blind="rows that meet their weight here (`merging_probs`)",
    )


def post_reorder_case(tokens: int, k: int, hidden: int) -> Case:
    g = torch.Generator().manual_seed(tokens)
    rows, weights = random(tokens * k, hidden, dtype=BF16, seed=k), random(tokens, k, dtype=FP32, seed=5).sigmoid()
    places = torch.randperm(tokens * k, generator=g).view(tokens, k)
    by_place = rows[places]
    at = {"weighted": BF16, "accumulate": BF16, "order": "sequential(zero)"}

    def summed(**changes: Any) -> Outputs:
        return {"output": combined(by_place, weights.to(BF16), **{**at, **changes})}

    return Case(
        program="live_sglang",
        kernel="deepep_post_reorder_triton_kernel",
        kind="post_reorder",
        shapes=f"{tokens} x {k} x {hidden} bf16",
        arguments={
            "rows": rows,
            "ids": torch.zeros(tokens, k, dtype=torch.int64),
            "weights": weights,
            "places": places,
        },
        ours=summed,
        other_outputs=lambda: summed(accumulate=FP32),
        says="weights, products and every addition rounded to bf16, by slot",
        recorded=(Seen(op="combine", at=combine_at(score_site="combine", **at), blind=("leaves", "expert")),),
        blind="contraction of product and addition",
    )


def sum_reduce_case(tokens: int, k: int, hidden: int, scale: float) -> Case:
    rows = zero_sums(tokens, k, hidden) if scale == 1 else random(tokens, k, hidden, dtype=BF16, seed=hidden)

    def summed(scaling: str = "accumulator", **at: Any) -> Outputs:
        return {"output": combined(rows, None, scale, scaling=scaling, **at)}

    changes = {"scaling": "output"} if scale != 1 and k > 1 else {"order": "reverse"}
    at = combine_at(scaling="accumulator")
    return Case(
        program="live_sglang",
        kernel="_moe_sum_reduce_kernel",
        kind="sum_reduce",
        shapes=f"{tokens} x {k} x {hidden} bf16, scale {scale}",
        arguments={"rows": rows, "scale": scale},
        ours=lambda: summed(order="sequential(zero)"),
        other_outputs=lambda: summed(**changes) if k > 1 else {"output": (rows[:, 0] * scale).roll(1, -1)},
        says="rows added by slot in fp32, times the routed scale, one rounding",
        recorded=(Seen(op="combine", at=at, blind=("expert",) if scale != 1 else ("expert", "scaling")),),
    )


def swiglu_case(rows: int, width: int, masked: bool) -> Case:
    """x * sigmoid(x) rounded ahead of up; for DeepEP's masked rows x / (1 + exp(-x)) and one rounding."""
    gate_up = 3 * random(rows, 2 * width, dtype=BF16, seed=width)
    gate, up = gate_up.chunk(2, -1)
    half = BF16 if not masked else FP32
    at = {"output": BF16, "logistic": "exp", "tensor": 1, "blocks": 0}

    blind = ("tensor", "blocks", *(() if masked else ("logistic",)))

    def activated(stored: torch.dtype = half) -> Outputs:
        if masked:
            return {"output": swiglu(gate, up, w={}, p={}, at={**at, "activation": stored}).unsqueeze(0)}
        silu = gate.float() * (1 / (1 + torch.exp(-gate.float())))
        return {"output": (silu.to(stored).float() * up.float()).to(BF16)}

    return Case(
        program="live_sglang",
        kernel="_silu_and_mul_kernel" if masked else "act_and_mul_kernel",
        kind="masked_swiglu" if masked else "swiglu",
        shapes=f"{rows} x {width} bf16",
        arguments={"gate_up": gate_up.unsqueeze(0) if masked else gate_up},
        ours=activated,
        other_outputs=lambda: activated(BF16 if masked else FP32),
        says="x / (1 + exp(-x)) in fp32, times up, one rounding"
        if masked
        else "x * sigmoid(x), which no `logistic` is, rounded, then times up",
        recorded=(Seen(op="swiglu", at={**at, "activation": half}, blind=blind),),
        blind="exp, torch's on both sides",
    )


def gate_case(tokens: int, count: int, k: int, dtype: torch.dtype, **model: Any) -> Case:
    """Softmax of OLMoE and Qwen, sigmoid with a bias of GLM, and DeepSeek's groups; logits of bf16 have ties. `low`:
    half of the experts lie so far below the others that their scores are 0.
    """
    logits = 2 * random(tokens, count, dtype=FP32, seed=count)
    if model.get("low"):
        logits[:, 1::2] = -200 - logits[:, 1::2].abs().mul(4).floor()
    logits = logits.to(dtype)
    softmax, groups, top_groups = model["score"] == "softmax", model.get("groups", 1), model.get("top_groups", 1)
    bias = None if softmax else 0.1 * random(count, dtype=FP32, seed=2)
    p = {"top_k": k, "score": model["score"], "renormalize": True, "experts": count, "groups": groups,
         "top_groups": top_groups, "scale": model.get("scale", 1.0), "shared": False}  # fmt: skip
    at: Settings = {"scores": FP32, "tie_break": "lowest_index", "renormalize": "divide", "renormalize_eps": 0.0,
          "renormalize_eps_at": "sum", "renormalize_order": "sequential", "total": FP32, "weights": FP32,
          "scaling": "weights", "slots": "sorted", "math": "torch", "chosen": "scores"}  # fmt: skip
    if softmax:
        at |= {"timing": "before_topk", "softmax": "divide", "denominator": "sequential", "rank_on": "logits"}
    else:
        at |= {"sigmoid": "exp", "correction": FP32, "choice": FP32}
    if groups > 1:
        at |= {"group_score": "top2_sum", "group_mask": "neg_inf"}
    w = {} if bias is None else {"bias": bias}
    settings = {"scoring_func": model["score"], "renormalize": True, "routed_scaling_factor": p["scale"],
                "apply_routed_scaling_factor_on_output": p["scale"] != 1, "num_expert_group": groups,
                "topk_group": top_groups}  # fmt: skip

    def chosen(**changes: Any) -> Outputs:
        ids, weights = router(logits.unsqueeze(0), w=w, p=p, at={**at, **changes})
        return {"weights": weights[0], "ids": ids[0].int()}

    blind = ("math", "denominator", "renormalize_order", "renormalize_eps", "renormalize_eps_at", "slots")
    return Case(
        program="live_sglang",
        kernel="_router_triton_kernel",
        kind="gate",
        shapes=f"{tokens} x {count}, top-{k}, {model['score']}"
        f"{f', {top_groups} of {groups} groups' if groups > 1 else ''}"
        f"{', scaled' if p['scale'] != 1 else ''}, {'bf16' if dtype == BF16 else 'fp32'}",
        arguments={"logits": logits, "bias": bias, "k": k, **settings},
        ours=chosen,
        other_outputs=lambda: chosen(renormalize="scale_over_sum"),
        says="scores in fp32, ties to the lowest index, weights over their sum, then scaled",
        recorded=(
            Seen(op="router", at=at, blind=(*blind, "rank_on", "group_mask", "group_score"), operands=dtype, p=p),
        ),
        blind="exp, torch's on both sides; the trees of the sums over experts and slots",
    )


def gate_cases() -> Iterator[Case]:
    """The routers of the models that the profile `sglang` knows."""
    for dtype in (BF16, FP32):
        yield gate_case(40, 128, 8, dtype, score="softmax")
        yield gate_case(40, 160, 8, dtype, score="sigmoid", scale=2.5)
        yield gate_case(40, 256, 8, dtype, score="sigmoid", groups=8, top_groups=4, scale=2.5)
    yield gate_case(7, 60, 4, FP32, score="softmax")


def scatter_case(program: str, tokens: int, k: int, hidden: int) -> Case:
    """Not a number is computed: where each row goes."""
    x, (ids, _) = random(tokens, hidden, dtype=BF16, seed=2), routed(tokens, 6, k, seed=1)
    counts = torch.bincount(ids.flatten(), minlength=6)
    starts = torch.cat([counts.new_zeros(1), ((counts + 127) // 128 * 128).cumsum(0)])
    rows, places = torch.zeros(int(starts[-1]), hidden, dtype=BF16), torch.empty_like(ids, dtype=torch.int32)
    met = starts[:-1].clone()
    for token in range(tokens):
        for slot in range(k):
            expert = ids[token, slot]
            places[token, slot] = met[expert]
            rows[met[expert]] = x[token]
            met[expert] += 1
    return Case(
        program=program,
        kernel="_fwd_kernel_ep_scatter_1, _2",
        kind="scatter",
        shapes=f"{tokens} x {k} x {hidden} bf16",
        arguments={"x": x, "ids": ids, "experts": 6},
        ours=lambda: {"rows": rows, "places": places},
        other_outputs=lambda: {"rows": rows.roll(1, 0)},
        says="rows by expert, each expert's from a multiple of 128 on; nothing is rounded",
        blind="on a GPU the rows of an expert lie as its blocks arrive (atomics)",
    )


def ranks_case(ranks: int, n: int) -> Case:
    parts = random(ranks, n, dtype=BF16, seed=ranks) * 2.0 ** torch.randint(
        -8, 9, (ranks, 1), generator=torch.Generator().manual_seed(1)
    )
    parts = parts.to(BF16)

    def reduced(name: str = "vllm.one_stage") -> Outputs:
        return {"output": all_reduce(COLLECTIVES[name], list(parts))[0]}

    return Case(
        program="live_vllm",
        kernel="_fixed_order_sum_kernel",
        kind="ranks_sum",
        shapes=f"{ranks} ranks x {n} bf16",
        arguments={"parts": parts},
        ours=reduced,
        other_outputs=lambda: reduced("nccl.ring"),
        says="ranks ascending in fp32, one rounding (`vllm.one_stage`; ROCm only)",
        recorded=(Seen(op="all_reduce", at={"collective": "vllm.one_stage"}),),
    )


def cases() -> Iterator[Case]:
    """Tokens on both sides of the rules that pick tiles: naive blocks, 32, 64, 96; rare experts; one token."""
    for tokens, count, k in ((1, 64, 2), (19, 7, 4), (70, 5, 3), (130, 9, 2)):
        yield experts_case("live_vllm", tokens, count, k, BF16)
    for k, hidden, dtype in ((8, 1100, BF16), (2, 200, BF16), (5, 700, FP32)):
        yield weighted_sum_case(6, k, hidden, dtype)
    for tokens, count, k in ((1, 64, 2), (19, 7, 4), (70, 5, 3)):
        yield experts_case("live_sglang", tokens, count, k, BF16)
    for k, hidden, scale in ((8, 2100, 1.0), (6, 700, 2.5), (1, 40, 1.5)):
        yield sum_reduce_case(5, k, hidden, scale)
    yield swiglu_case(7, 1100, masked=False)
    yield swiglu_case(7, 200, masked=True)
    yield gather_case("live_sglang", 9, 8, 1024, absent=False)
    yield gather_case("live_sglang", 9, 6, 384, absent=True)
    yield post_reorder_case(9, 6, 700)
    yield unpermute_case(19, 4, 300)
    yield unpermute_case(5, 6, 70)
    yield from gate_cases()
    yield gather_case("live_vllm", 9, 8, 512, absent=False)
    yield gather_case("live_vllm", 9, 6, 384, absent=True)
    yield scatter_case("live_vllm", 40, 3, 256)
    yield ranks_case(8, 1504)
    yield ranks_case(4, 104)
