"""What is said of a user's function."""

from __future__ import annotations

from moeparity.bisection.nearest.data import Nearest
from moeparity.bisection.nearest.show import nearest_lines
from moeparity.evidence.explain.report import ChoiceMatch


def match(*choices: str, equal: float = 1.0, **more: object) -> ChoiceMatch:
    return ChoiceMatch(choices=choices, equal=equal, mean_ulp=0.0, exact=equal == 1, **more)  # type: ignore[arg-type]


def answer(*matches: ChoiceMatch, as_it_is: float = 0.5) -> Nearest:
    return Nearest(node="norm", call="mine:norm", tried=50, calls=53, as_it_is=as_it_is, found=matches)


def test_none_of_those_tried_and_how_near_the_best_comes() -> None:
    close = match("norm:square=bf16", equal=0.75)
    assert [*nearest_lines(answer(close))] == [
        "mine:norm at norm: none of the 50 tried gives its bits (53 kernel calls)",
        "  nearest: norm:square=bf16, 75.00% of elements equal (50.00% without it)",
    ]
    for as_it_is, percent in ((0.8, "80.00%"), (0.501, "50.10%"), (0.02, "2.00%")):
        far = match("norm:square=bf16", equal=0.75 if as_it_is > 0.5 else 0.5)
        assert [*nearest_lines(answer(far, as_it_is=as_it_is))][1:] == [
            f"  {percent} of elements are equal as it is, and nothing tried makes half of the others equal"
        ]
