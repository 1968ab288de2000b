"""Where a row meets its routing weight, in both implementations, whole and cut over ranks, against a loop over slots.

The numbers are coarse, so that every GEMM is exact in fp32, whatever its order; every rounding is written out. Where
the order is, every GEMM is added up one fp32 number at a time. Taken as given is torch's silu, which in fp32 depends on
where in a vector a value lies; rounded to bf16 it does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from moeparity.ops.experts import EXPERTS as OP
from moeparity.ops.kernels.experts import experts
from tests.ops.plain import BF16, FP32, assert_bits, random, times
from tests.ops.scalar import F32, ROUND, Sum, fma, from_the_end, in_turn, tf32

B, T, K, EXPERTS, HIDDEN, WIDTH = 2, 5, 3, 6, 24, 40
SITES = ("combine", "epilogue", "activation")
BASE: dict[str, Any] = {
    "implementation": "loop",
    "gate_up": "fused",
    "projections": BF16,
    "activation": BF16,
    "product": BF16,
    "scored": BF16,
    "output": BF16,
    "tf32": "no",
    "parallel": "row",
    "tensor": 1,
    "blocks": 0,
}


def coarse(*shape: int, seed: int, dtype: torch.dtype = BF16) -> Tensor:
    return (torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)) / 2).to(dtype)


def spread_out(*shape: int, seed: int) -> Tensor:
    """One power of two in each row of the last axis: a sum over it has one term."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.randint(0, shape[-1], (*shape[:-1], 1), generator=generator)
    return torch.zeros(shape).scatter(-1, at, 2.0 ** torch.randint(-3, 4, at.shape, generator=generator)).to(BF16)


GATE, UP = coarse(EXPERTS, WIDTH, HIDDEN, seed=1), coarse(EXPERTS, WIDTH, HIDDEN, seed=2)
ONE = spread_out(EXPERTS, HIDDEN, WIDTH, seed=3)
TWO = ONE + spread_out(EXPERTS, HIDDEN, WIDTH, seed=7)
"""Down projections whose sums have one term, and two: none is to be added up, or one addition is made."""
X = coarse(B, T, HIDDEN, seed=4)


def routes(k: int) -> Tensor:
    draws = [torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(i)) for i in range(B * T)]
    return torch.stack(draws)[:, :k].view(B, T, k)


def gemm(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Sums that are exact in fp64, and in fp32 but for one addition: the order is of no account."""
    return (weight.double() @ x.double()).float().to(dtype)


def row(x: Tensor, expert: int, score: Tensor, site: str, at: dict[str, Any], down: Tensor) -> Tensor:
    """One slot's row [H] of one token x [H]."""
    if site == "input":
        x = times(x, score, at["scored"]).to(at["projections"])
    gate, up = (gemm(x, weight[expert], at["projections"]) for weight in (GATE, UP))
    hidden = times(F.silu(gate.float()).to(at["activation"]), up, at["product"])
    if site == "activation":
        hidden = times(hidden, score, at["scored"])
    if at["tf32"] == "yes":
        hidden = torch.tensor([tf32(F32(value)) for value in hidden.tolist()])
    if site == "epilogue":
        return times(gemm(hidden, down[expert], FP32), score, at["output"])
    return gemm(hidden, down[expert], at["output"])


def computed(ids: Tensor, weights: Tensor | None, site: str, at: dict[str, Any], down: Tensor = TWO) -> Tensor:
    w = {"gate_up": torch.cat((GATE, UP), dim=1), "down": down}
    return experts(X, ids, weights, w=w, p={}, at=at | {"score_site": site})


def by_hand(ids: Tensor, weights: Tensor, site: str, at: dict[str, Any], down: Tensor = TWO) -> Tensor:
    rows = [
        row(X[b, t], int(ids[b, t, k]), weights[b, t, k], site, at, down)
        for b, t, k in itertools.product(*map(range, ids.shape))
    ]
    return torch.stack(rows).view(*ids.shape, HIDDEN)


@pytest.mark.parametrize("score", [BF16, FP32])
@pytest.mark.parametrize("implementation", ["loop", "grouped", "batched"])
@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("roundings", ["each", "one", "fp32"])
def test_score_sites(site: str, roundings: str, implementation: str, score: torch.dtype) -> None:
    """`one` is Megatron-LM's fused weighted SwiGLU, `each` its unfused one (read)."""
    narrow_sites = dict.fromkeys(("activation", "product") if site == "activation" else ("activation",), FP32)
    wide = dict.fromkeys(("projections", "activation", "product", "scored", "output"), FP32)
    at = BASE | {"each": {}, "one": narrow_sites, "fp32": wide}[roundings] | {"implementation": implementation}
    ids, weights = routes(K), random(B, T, K, dtype=score, seed=5)
    ours = computed(ids, None if site == "combine" else weights, site, at)
    assert_bits(ours, by_hand(ids, weights, site, at))
    if site != "combine":
        after = times(by_hand(ids, weights, "combine", at), weights.unsqueeze(-1), at["output"])
        assert torch.equal(ours, after) == (site == "epilogue" and roundings == "fp32"), "rounded elsewhere"


@pytest.mark.parametrize("implementation", ["loop", "grouped", "batched"])
@pytest.mark.parametrize("scored", [BF16, FP32])
def test_the_score_on_the_input_of_one_expert(implementation: str, scored: torch.dtype) -> None:
    """vLLM's apply_router_weight_on_input, Llama 4 (read)."""
    at = BASE | {"scored": scored, "implementation": implementation}
    # A power of two and a half: what is projected stays coarse.
    ids, weights = routes(1), (coarse(B, T, 1, seed=6, dtype=FP32) + 0.25)
    assert_bits(computed(ids, weights, "input", at), by_hand(ids, weights, "input", at))
    w = {"gate_up": torch.cat((GATE, UP), dim=1), "down": TWO}
    for place, site in (("input", "input"), ("output", "epilogue")):
        ours = experts(X, ids, weights, w=w, p={"scored_at": place}, at=at)
        assert_bits(ours, by_hand(ids, weights, site, at))


@pytest.mark.parametrize("site", ["epilogue", "activation"])
@pytest.mark.parametrize("partial", [BF16, FP32])
def test_each_rank_scales_its_part(site: str, partial: torch.dtype) -> None:
    """Columns of down that one rank holds are the whole row's: the others have zeros there."""
    at = BASE | {"tensor": 2, "partial": partial}
    ids, weights = routes(K), random(B, T, K, dtype=FP32, seed=5)
    ours = computed(ids, weights, site, at, ONE)
    assert ours.shape == (B, 2, T, K, HIDDEN)
    whole = by_hand(ids, weights, site, BASE | {"output": partial}, ONE)
    assert_bits(ours.float().sum(1).to(partial), whole + 0.0)


@pytest.mark.parametrize("implementation", ["loop", "grouped"])
@pytest.mark.parametrize("site", ["combine", "epilogue"])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_column_wise_ranks_gather_what_one_rank_computes(site: str, implementation: str, dtype: torch.dtype) -> None:
    """Every sum is exact, so that which rank holds a column is of no account, and nothing is left in partial sums."""
    wide = dict.fromkeys(("projections", "product", "output"), dtype)
    at = BASE | wide | {"implementation": implementation, "tensor": 2, "parallel": "column"}
    ids, weights = routes(K), random(B, T, K, dtype=FP32, seed=5)
    ours = computed(ids, None if site == "combine" else weights, site, at)
    assert_bits(ours, by_hand(ids, weights, site, at))


def test_column_wise_gemms_have_the_ranks_shapes() -> None:
    """Against torch's own kernel on the columns that each of three ranks holds."""
    hidden, width, ranks, tokens = 24, 42, 3, 11
    x, ids = random(1, tokens, hidden, dtype=BF16), torch.arange(tokens).view(1, tokens, 1) % 2
    gate, up = (random(2, width, hidden, dtype=BF16, seed=i) for i in (1, 2))
    down = random(2, hidden, width, dtype=BF16, seed=3)
    at = BASE | {"tensor": ranks, "parallel": "column", "score_site": "combine"}
    ours = experts(x, ids, None, w={"gate_up": torch.cat((gate, up), dim=1), "down": down}, p={}, at=at)
    for expert in range(2):
        rows, activated = x[0, expert::2], []
        for g, u in zip(gate[expert].chunk(ranks), up[expert].chunk(ranks), strict=True):
            gate_part, right = F.linear(rows, torch.cat((g, u))).chunk(2, dim=-1)
            activated.append(F.silu(gate_part) * right)
        products = [
            F.linear(torch.cat(activated, dim=-1), down_part.clone()) for down_part in down[expert].chunk(ranks)
        ]
        assert_bits(ours[0, expert::2, 0], torch.cat(products, dim=-1))


def fused(terms: list[tuple[F32, F32]]) -> F32:
    total = terms[0][0] * terms[0][1]
    for a, b in terms[1:]:
        total = fma(a, b, total)
    return total


def four_lanes(terms: Sequence[F32]) -> F32:
    return in_turn([in_turn(terms[lane::4]) for lane in range(4)])


PRODUCTS: dict[str, Sum] = {"sequential": in_turn, "reverse": from_the_end, "lanes(4) | sequential": four_lanes}


def dot(a: list[F32], b: list[F32], at: dict[str, Any], output: str) -> F32:
    """One output of a GEMM of fp32 operands."""
    pairs = [(tf32(x), tf32(y)) if at["tf32"] == "yes" else (x, y) for x, y in zip(a, b, strict=True)]
    size, store = -(-len(pairs) // at["splits"]), ROUND[at["split"] if at["splits"] > 1 else output]
    cuts = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    whole = fused if at["order"] == "sequential(fma)" else lambda cut: PRODUCTS[at["order"]]([x * y for x, y in cut])
    sums = [store(whole(cut)) for cut in cuts]
    if at["splits_order"] == "reverse":
        sums.reverse()
    total = sums[0]
    for part in sums[1:]:
        total = store(total + part)
    return ROUND[output](total)


ONE_PART: dict[str, Any] = {"splits": 1, "split": "fp32", "splits_order": "sequential", "tf32": "no"}
FORMS: list[dict[str, Any]] = [
    *({"order": order} for order in (*PRODUCTS, "sequential(fma)")),
    *({"order": "reverse", "splits": 3, "split": dtype, "splits_order": "reverse"} for dtype in ("bf16", "fp32")),
    {"order": "sequential", "splits": 2},
    {"order": "sequential", "tf32": "yes"},
    {"order": "sequential(fma)", "tf32": "yes", "splits": 3, "split": "bf16"},
]
NAMES = {"bf16": BF16, "fp16": torch.float16, "fp32": FP32}


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("output", ["bf16", "fp32"])
@pytest.mark.parametrize("gate_up", ["fused", "split"])
def test_gemms_in_a_stated_form(form: dict[str, Any], output: str, gate_up: str) -> None:
    hidden, width, tokens, k = 9, 24, 3, 2
    x, ids = random(1, tokens, hidden, dtype=FP32), torch.tensor([[[2, 0], [0, 1], [2, 1]]])
    gate, up, down = (
        random(3, *shape, dtype=FP32, seed=i) for i, shape in enumerate([(width, hidden)] * 2 + [(hidden, width)], 1)
    )
    form_parts = ONE_PART | form
    wide = dict.fromkeys(("projections", "product"), FP32)
    at = BASE | wide | form_parts | {"split": NAMES[form_parts["split"]], "output": NAMES[output], "gate_up": gate_up}
    w = {"gate_up": torch.cat((gate, up), dim=1), "down": down}
    ours = experts(x, ids, None, w=w, p={}, at=at | {"score_site": "combine"})

    def times_matrix(row: list[F32], matrix: Tensor, rounded: str) -> list[F32]:
        return [dot(row, [F32(v) for v in column], form_parts, rounded) for column in matrix.tolist()]

    for t, slot in itertools.product(range(tokens), range(k)):
        row, expert = [F32(v) for v in x[0, t].tolist()], int(ids[0, t, slot])
        gate_row, right = (times_matrix(row, matrix[expert], "fp32") for matrix in (gate, up))
        silu = F.silu(torch.tensor(gate_row)).to(BF16).float().numpy()
        down_row = times_matrix([s * u for s, u in zip(silu, right, strict=True)], down[expert], output)
        assert_bits(ours[0, t, slot], torch.tensor(down_row).to(NAMES[output]))


@pytest.mark.parametrize("implementation", ["loop", "grouped"])
@pytest.mark.parametrize("site", SITES)
def test_tf32_in_the_kernels_of_torch(site: str, implementation: str) -> None:
    """x and the weights are a little more than what TF32 makes of them; the activations have all their bits."""
    wide = dict.fromkeys(("projections", "activation", "product", "scored", "output"), FP32)
    at = BASE | wide | {"implementation": implementation, "tf32": "yes", "score_site": site}
    ids, weights = routes(K), random(B, T, K, dtype=FP32, seed=5)
    more = 1 + 2**-14
    w = {"gate_up": torch.cat((GATE, UP), dim=1).float() * more, "down": ONE.float() * more}
    scores_given = None if site == "combine" else weights
    ours = experts(X.float() * more, ids, scores_given, w=w, p={}, at=at)
    assert_bits(ours, by_hand(ids, weights, site, at, ONE))
    assert not torch.equal(ours, experts(X.float() * more, ids, scores_given, w=w, p={}, at=at | {"tf32": "no"}))


SHAPES = {"gate": (EXPERTS, WIDTH, HIDDEN), "down": (EXPERTS, HIDDEN, WIDTH), "ids": (K,)}
ASKED: dict[str, Any] = {
    "implementation": "loop",
    "score_site": "combine",
    "projections": "bf16",
    "product": "bf16",
    "output": "bf16",
    "order": "native",
    "splits": 1,
    "tensor": 1,
    "blocks": 0,
}


@pytest.mark.parametrize(
    ("choices", "refused"),
    [
        ({}, None),
        ({"order": "tree(0+1)"}, "order"),
        ({"splits": 11, "splits_order": "sequential"}, "splits"),
        ({"tensor": 5, "parallel": "row"}, None),
        ({"tensor": 5, "parallel": "column"}, "tensor"),
        ({"tensor": 8, "parallel": "column"}, None),
        # A rank's 5 rows of down's 40 inputs are not to be had in 6 parts; column-wise all 40 are.
        ({"tensor": 8, "parallel": "row", "splits": 6, "splits_order": "sequential"}, "splits"),
        ({"tensor": 8, "parallel": "column", "splits": 6, "splits_order": "sequential"}, None),
        ({"tensor": 8, "parallel": "row", "implementation": "grouped"}, "implementation"),
        ({"tensor": 8, "parallel": "column", "implementation": "grouped"}, None),
        ({"implementation": "batched"}, None),
        ({"tensor": 8, "parallel": "column", "implementation": "batched"}, "implementation"),
    ],
    ids=str,
)
def test_what_cannot_be_computed_is_refused(choices: dict[str, Any], refused: str | None) -> None:
    assert OP.refusals.values is not None
    refusal = OP.refusals.values(SHAPES, ASKED | choices)
    assert (refusal and refusal[0]) == refused


@pytest.mark.parametrize("site", ["combine", "epilogue"])
def test_experts_without_weights_hand_on_what_they_read(site: str) -> None:
    """Two of eight; a token with three, one and none of them; times its score where that meets the row here."""
    ids = torch.tensor([[6, 0, 7], [1, 7, 3], [2, 4, 5]]).view(1, 3, 3)
    scores = (torch.arange(9.0) / 8).view(1, 3, 3)
    x, at, w = X[:1, :3], {**BASE, "score_site": site}, {"gate_up": torch.cat((GATE, UP), 1), "down": ONE}
    ours = experts(x, ids, scores if site == "epilogue" else None, w=w, p={"zero": 2}, at=at)
    clamped = ids.clamp(max=EXPERTS - 1)
    others = experts(x, clamped, scores if site == "epilogue" else None, w=w, p={}, at=at)
    for t, k in itertools.product(range(3), range(3)):
        if ids[0, t, k] < EXPERTS:
            assert_bits(ours[0, t, k], others[0, t, k])
        else:
            assert_bits(ours[0, t, k], times(x[0, t], scores[0, t, k], BF16) if site == "epilogue" else x[0, t])


def test_experts_without_weights_are_refused_in_one_gemm_of_all_and_cut_over_ranks() -> None:
    shapes = {"gate": (6, 40, 24), "up": (6, 40, 24), "down": (6, 24, 40), "ids": (3,), "zero": (2,)}
    assert OP.refusals.values is not None
    for choice, attribute in (({"implementation": "grouped"}, "implementation"), ({"tensor": 2}, "tensor")):
        refusal = OP.refusals.values(shapes, {**BASE, "score_site": "combine", **choice})
        assert refusal is not None
        assert refusal[0] == attribute
