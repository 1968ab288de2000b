"""`flips` against Python sets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.observe.routing import Flips, flips


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


@settings(deadline=None, max_examples=200)
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
    one, mask = flips(torch.tensor([3, 1]), torch.tensor([3, 1]))
    assert (one.tokens, one.slot_flips, mask.shape) == (1, 0, ())
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
