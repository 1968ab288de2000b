"""What is said of a user's function."""

from __future__ import annotations

from moeparity.bisection.nearest.report import Nearest
from moeparity.bisection.nearest.text import nearest_lines
from moeparity.evidence.explain.report import ChoiceMatch, NumberRange


def match(*choices: str, equal: float = 1.0, **more: object) -> ChoiceMatch:
    return ChoiceMatch(choices=choices, equal=equal, mean_ulp=0.0, exact=equal == 1, **more)  # type: ignore[arg-type]


def answer(*matches: ChoiceMatch, as_it_is: float = 0.5) -> Nearest:
    return Nearest(node="norm", call="mine:norm", tried=50, calls=53, as_it_is=as_it_is, found=matches)


def test_the_plainest_comes_first_then_others() -> None:
    others = [match(f"norm:square=fp{i}", "norm:eps=1e-05") for i in range(5)]
    first, second = nearest_lines(answer(match("norm:normalized=fp32"), *others))
    assert first == "nearest to mine:norm at norm: norm:normalized=fp32 (all bits equal; 50 tried, 53 kernel calls)"
    assert second.startswith("  so do norm:square=fp0 with norm:eps=1e-05, or norm:square=fp1 with norm:eps=1e-05, or ")
    assert second.endswith(", and 2 more")


def test_a_number_is_told_with_those_that_do_the_same() -> None:
    interval = NumberRange(place="norm:eps", least=3.6e-4, greatest=3.8e-4)
    assert [*nearest_lines(answer(match("norm:eps=0.00037", between=(interval,))))][1:] == [
        "  so does norm:eps from 0.00036 to 0.00038"
    ]


def test_what_was_not_compared_is_not_claimed() -> None:
    (line,) = nearest_lines(answer(match("norm:normalized=fp32", compared=0.75)))
    assert "(all bits equal in the 75.00% of elements that were compared; " in line


def test_none_of_those_tried_and_how_near_the_best_comes() -> None:
    close = match("norm:square=bf16", equal=0.75)
    assert [*nearest_lines(answer(close))] == [
        "mine:norm at norm: none of the 50 tried gives its bits (53 kernel calls)",
        "  nearest: norm:square=bf16, 75.00% of elements equal (50.00% without it)",
    ]
    for as_it_is, percent in ((0.8, "80.00%"), (0.501, "50.10%"), (0.02, "2.00%")):
        far = match("norm:square=bf16", equal=0.75 if as_it_is > 0.5 else 0.5)
        assert [*nearest_lines(answer(far, as_it_is=as_it_is))][1:] == [
            f"  {percent} of elements are equal as it is, and nothing that was tried makes half of the others so"
        ]


def test_layers_of_which_the_same_is_said_are_told_together() -> None:
    (first, second) = answer(match("norm:normalized=fp32")), answer(match("norm:normalized=fp32"))
    assert [*nearest_lines(first, second)][-1] == "  the same at norm"


def test_where_nothing_can_be_tried_it_says_so() -> None:
    nothing = Nearest(node="split", call="mine:split", tried=0, calls=2, as_it_is=0.5, found=())
    assert [*nearest_lines(nothing)] == ["mine:split at split: no choice is open where it stands (2 kernel calls)"]
