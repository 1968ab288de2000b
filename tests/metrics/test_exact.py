"""Sums that do not depend on the order or the grouping of their terms, and are correctly rounded."""

from __future__ import annotations

import math
import pickle

from hypothesis import given
from hypothesis import strategies as st

from moeparity.bisection.resume.codec import Codec
from moeparity.metrics.exact import Exact

TERMS = st.lists(st.floats(-1e30, 1e30) | st.sampled_from([1e16, -1e16, 1.0, 2.0**-60, 5e-324, 0.1]), max_size=12)


@given(TERMS, st.randoms(use_true_random=False), st.integers(1, 4))
def test_any_order_and_any_groups_give_the_rounded_sum(terms: list[float], random: object, groups: int) -> None:
    shuffled = list(terms)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    parts = [sum(shuffled[start::groups], Exact()) for start in range(groups)]
    assert float(sum(parts, Exact())).hex() == math.fsum(terms).hex()


def test_a_plain_sum_of_these_does_depend_on_it() -> None:
    """So that the test above can fail."""
    terms = [1.0, 1e16, -1e16]
    assert sum(terms) != sum(reversed(terms))
    assert sum(map(Exact, terms)) == sum(map(Exact, reversed(terms))) == 1.0


def test_what_is_not_finite_comes_out_as_in_a_plain_sum() -> None:
    assert math.isnan(Exact([1.0, math.nan]) + 2.0)
    assert Exact([1.0, math.inf]) + Exact(-5.0) == math.inf
    assert math.isnan(Exact(math.inf) + Exact(-math.inf))
    assert Exact([1.7e308]) + Exact(1.7e308) == math.inf


def test_it_is_written_with_what_rounding_left_out() -> None:
    total = Exact([1e16, 1.0, 2.0**-60])
    plain, tensors = Codec([]).encode([total, Exact(math.inf)])
    (again, infinite) = Codec([]).decode(plain, tensors)
    assert (type(again), again.parts, infinite) == (Exact, total.parts, math.inf)
    assert pickle.loads(pickle.dumps(total)).parts == total.parts  # noqa: S301
    assert again + -1e16 == 1.0
