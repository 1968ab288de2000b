"""Every definition of a routing flip against Python sets and by hand."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.metrics.exact import Exact
from moeparity.metrics.routing import (
    Drift,
    Flips,
    cut,
    expert_pairs,
    flips,
    layers_per_token,
    perturbation,
    weight_drift,
)


def ids(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64)


def scalar_flips(a: list[list[int]], b: list[list[int]]) -> tuple[Flips, list[bool]]:
    shared = [len(set(x) & set(y)) for x, y in zip(a, b, strict=True)]
    counts = Flips(
        tokens=len(a),
        set_flips=sum(set(x) != set(y) for x, y in zip(a, b, strict=True)),
        slot_flips=sum(x != y for x, y in zip(a, b, strict=True)),
        slots_replaced=sum(len(x) - n for x, n in zip(a, shared, strict=True)),
        zero_overlap=sum(n == 0 for n in shared),
    )
    return counts, [set(x) != set(y) for x, y in zip(a, b, strict=True)]


@st.composite
def routings(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    experts = draw(st.integers(1, 7))
    k = draw(st.integers(1, experts))
    row = st.permutations(range(experts)).map(lambda order: list(order[:k]))
    pairs = draw(st.lists(st.tuples(row, row), min_size=1, max_size=6))
    return [a for a, _ in pairs], [b for _, b in pairs]


@settings(max_examples=200)
@given(pair=routings())
def test_equals_python_sets(pair: tuple[list[list[int]], list[list[int]]]) -> None:
    counts, mask = flips(ids(pair[0]), ids(pair[1]))
    assert (counts, mask.tolist()) == scalar_flips(*pair)


def test_hand_checked() -> None:
    reference = ids([[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]])
    candidate = ids([[0, 1, 2], [2, 0, 1], [0, 5, 2], [3, 4, 5]])
    counts, mask = flips(reference, candidate)
    assert counts == Flips(tokens=4, set_flips=2, slot_flips=3, slots_replaced=4, zero_overlap=1)
    assert mask.tolist() == [False, False, True, True]
    assert mask.dtype == torch.bool


def test_leading_dimensions_shape_the_mask() -> None:
    reference = torch.arange(24).reshape(2, 3, 4)
    counts, mask = flips(reference, reference.flip(-1))
    assert mask.shape == (2, 3)
    assert counts == Flips(tokens=6, set_flips=0, slot_flips=6, slots_replaced=0, zero_overlap=0)


def test_one_token_and_no_token() -> None:
    assert flips(ids([[7]]), ids([[8]]))[0].zero_overlap == 1
    flips_there, mask = flips(torch.tensor([3, 1]), torch.tensor([3, 1]))
    assert (flips_there.tokens, flips_there.slot_flips, mask.shape) == (1, 0, ())
    assert flips(ids([]).reshape(0, 2), ids([]).reshape(0, 2))[0].tokens == 0


def test_layers_add_up_and_masks_unite() -> None:
    first, a = flips(ids([[0, 1], [0, 1], [0, 1]]), ids([[0, 2], [0, 1], [1, 0]]))
    second, b = flips(ids([[0, 1], [0, 1], [0, 1]]), ids([[2, 3], [1, 0], [0, 1]]))
    assert first + second == Flips(tokens=6, set_flips=2, slot_flips=4, slots_replaced=3, zero_overlap=1)
    assert (a | b).tolist() == [True, False, False]


def test_refuses_what_is_not_a_routing() -> None:
    with pytest.raises(ValueError, match="equal shape"):
        flips(ids([[0, 1]]), ids([[0, 1, 2]]))
    with pytest.raises(ValueError, match="K >= 1"):
        flips(ids([[]]), ids([[]]))
    with pytest.raises(ValueError, match="equal shape"):
        flips(torch.tensor(1), torch.tensor(1))
    with pytest.raises(TypeError, match=r"candidate_ids is torch\.int32"):
        flips(ids([[0]]), torch.zeros(1, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match="reference_ids has a negative expert id"):
        flips(ids([[2, -1]]), ids([[0, 1]]))
    with pytest.raises(ValueError, match="candidate_ids names one expert twice"):
        flips(ids([[0, 1, 2]]), ids([[4, 1, 4]]))


def test_weight_drift_is_between_the_same_experts_whatever_their_slots() -> None:
    reference = (ids([[0, 1, 2], [3, 4, 5]]), torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]))
    candidate = (ids([[2, 0, 7], [0, 1, 2]]), torch.tensor([[0.5, 0.375, 0.125], [1.0, 0.0, 0.0]]))
    drift = weight_drift(reference, candidate)
    assert drift == Drift(shared=2, sum_abs=Exact(0.125 + 0.25), max_abs=0.25)
    assert drift.mean_abs == 0.1875
    assert drift + Drift(shared=1, sum_abs=Exact(0.5), max_abs=0.5) == Drift(
        shared=3, sum_abs=Exact(0.875), max_abs=0.5
    )
    nothing = weight_drift((reference[0][1:], reference[1][1:]), (candidate[0][1:], candidate[1][1:]))
    assert (nothing, math.isnan(nothing.mean_abs)) == (Drift(), True)
    broken = weight_drift((ids([[0]]), torch.tensor([[math.nan]])), (ids([[0]]), torch.tensor([[1.0]])))
    assert math.isnan((Drift(shared=1, sum_abs=Exact(1.0), max_abs=1.0) + broken).max_abs)


@settings(max_examples=100)
@given(pair=routings())
def test_expert_pairs_against_python_sets(pair: tuple[list[list[int]], list[list[int]]]) -> None:
    expected: Counter[tuple[int, int]] = Counter()
    for a, b in zip(*pair, strict=True):
        reference_only, candidate_only = [x for x in a if x not in b], [x for x in b if x not in a]
        expected.update(zip(reference_only, candidate_only, strict=True))
    assert expert_pairs(ids(pair[0]), ids(pair[1])) == expected


def test_layers_per_token() -> None:
    flipped = torch.tensor([[True, False, False], [True, True, False]])
    assert layers_per_token(flipped).tolist() == [2, 1, 0]


def test_the_cut_by_hand() -> None:
    """bf16 has 8 bits: between 1 and 2 an ulp is 2^-7, between 0.5 and 1 it is 2^-8."""
    scores = torch.tensor([[1.5, 1.0, 0.984375, 0.25], [1.5, 1.0, 1.0, 0.25], [0.75, 0.75, -math.inf, -math.inf]])
    cut_ = cut(scores.to(torch.bfloat16), ids([[0, 1], [0, 2], [1, 0]]))
    assert cut_.margin.tolist() == [2.0, 0.0, math.inf]
    assert cut_.ulp.tolist() == [2.0**-7, 2.0**-7, 2.0**-8]
    assert cut_.runner_up.tolist()[:2] == [2, 1]


@settings(max_examples=200)
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=0))
def test_an_ulp_is_the_distance_to_the_next_number(value: float) -> None:
    at = torch.tensor([value], dtype=torch.float32)
    above = torch.nextafter(at, torch.tensor([math.inf]))
    cut_ = cut(torch.tensor([[value, -1.0]]), ids([[0]]))
    assert cut_.ulp.item() == above.double().item() - at.double().item() or not math.isfinite(above.item())


def test_perturbation_looks_at_what_either_side_chose_and_at_the_runner_up() -> None:
    ours = torch.tensor([[1.5, 1.25, 1.0, 0.5, 0.25]])
    candidate = torch.tensor([[1.5, 1.25, 1.0 + 3 * 2.0**-23, 9.0, 0.25]])
    at = cut(ours, ids([[0, 1]]))
    assert perturbation(ours, candidate, (ids([[0, 1]]), ids([[0, 1]])), at).tolist() == [3.0]
    assert perturbation(ours, candidate, (ids([[0, 1]]), ids([[0, 3]])), at).tolist() == [8.5 * 2**23]


@settings(max_examples=200)
@given(data=st.data())
def test_a_flip_needs_half_the_margin(data: st.DataObject) -> None:
    """What `docs/flips.md` claims of any two rows of scores."""
    numbers = st.lists(st.integers(0, 60), min_size=5, max_size=5)
    rows = [torch.tensor([data.draw(numbers)]).float() + 64.0 for _ in range(2)]
    top_ids = [row.topk(2).indices for row in rows]
    at = cut(rows[0], top_ids[0])
    change = perturbation(rows[0], rows[1], (top_ids[0], top_ids[1]), at)
    if flips(*top_ids)[0].set_flips:
        assert float(at.margin) <= 2 * float(change)
