"""Orders: trees against trees written down by hand, their text, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moeparity.numerics.dtypes import FLOAT_NAMES
from moeparity.numerics.orders import EXPLICIT, FORMS, AnyTree, Level, Order, OrderError, Sum, leaves_of, parse, tree

N = None
GOLDEN: dict[tuple[str, int], AnyTree] = {
    ("sequential", 1): 0,
    ("sequential", 2): (0, 1),
    ("sequential", 5): (0, 1, 2, 3, 4),
    ("reverse", 1): 0,
    ("reverse", 2): (1, 0),
    ("reverse", 5): (4, 3, 2, 1, 0),
    ("fold_hi", 1): 0,
    ("fold_hi", 2): (0, 1),
    ("fold_hi", 3): ((0, 2), (1, N)),
    ("fold_hi", 5): (((0, 4), (2, N)), ((1, N), (3, N))),
    ("fold_hi", 8): (((0, 4), (2, 6)), ((1, 5), (3, 7))),
    ("fold_hi(skip)", 3): ((0, 2), 1),
    ("fold_hi(skip)", 5): (((0, 4), 2), (1, 3)),
    ("fold_lo", 1): 0,
    ("fold_lo", 2): (0, 1),
    ("fold_lo", 3): ((0, 1), (2, N)),
    ("fold_lo", 5): (((0, 1), (2, 3)), ((4, N), N)),
    ("fold_lo", 8): (((0, 1), (2, 3)), ((4, 5), (6, 7))),
    ("fold_lo(skip)", 5): (((0, 1), (2, 3)), 4),
    ("fold_hi(4) | sequential", 6): (((0, 2), (1, 3)), (4, 5)),
    ("threads(2) | sequential", 5): ((0, 2, 4), (1, 3)),
    ("threads(2, vector=2) | sequential", 7): ((0, 1, 4, 5), (2, 3, 6)),
    ("halves(4) | sequential", 6): ((0, 2), (1, 3), 4, 5),
    ("halves(4) | sequential", 7): ((0, 2), (1, 3), (4, 6), 5),
    ("threads(4, vector=2) | fold_lo", 5): (((0, 1), (2, 3)), (4, N)),
    ("lanes(3) | reverse", 7): ((2, 5), (1, 4), (0, 3, 6)),
    ("lanes(8) | sequential", 3): (0, 1, 2),
    ("blocks(3) | sequential", 7): ((0, 1, 2), (3, 4, 5), 6),
    ("blocks(4, vector=2, back) | sequential", 7): ((1, 0, 3, 2), (5, 4, 6)),
    ("blocks(3, vector=2, back) | sequential", 5): ((1, 0, 2), (4, 3)),
    ("lanes(4) | blocks(2) | sequential", 8): (((0, 4), (1, 5)), ((2, 6), (3, 7))),
    ("rotate(1, 1)", 4): (1, 2, 3, 0),
    ("rotate(-1, -1)", 4): (3, 2, 1, 0),
    ("rotate(5, -1)", 3): (2, 1, 0),
    ("tree((0+2)+(1+3))", 4): (0, 2, (1, 3)),
    ("tree(2+(0+1))", 3): (2, (0, 1)),
    ("fused(2)", 3): Sum(children=(0, 1, 2), how="fused", width=2),
    ("tree([0+1+2]+3)", 4): (Sum(children=(0, 1, 2), how="fused", width=3), 3),
    ("sequential(zero)", 1): Sum(children=(0,), zero=True),
    ("sequential(kahan)", 3): Sum(children=(0, 1, 2), how="kahan"),
    ("blocks(2, fma) | sequential", 3): (Sum(children=(0, 1), fma=True), 2),
    ("blocks(2, accumulate=fp32, round=bf16) | sequential", 3): (
        Sum(children=(0, 1), accumulate="fp32", round="bf16"),
        Sum(children=(2,), accumulate="fp32", round="bf16"),
    ),
    ("fold_hi(accumulate=bf16, round=fp32)", 2): Sum(
        children=(Sum(children=(0, 1), accumulate="bf16"),), accumulate="bf16", round="fp32"
    ),
}


@pytest.mark.parametrize(("order", "leaves"), GOLDEN)
def test_golden(order: str, leaves: int) -> None:
    assert tree(parse(order), leaves) == GOLDEN[order, leaves]


def test_every_form_has_a_golden_or_a_test_of_its_own() -> None:
    in_goldens = {level.name for order, _ in GOLDEN for level in parse(order).levels}
    assert in_goldens | {"cascade", "unordered"} == set(FORMS)


@st.composite
def level(draw: st.DrawFn, *, first: bool, last: bool, products: bool, fused: bool) -> Level:
    names = [n for n, f in FORMS.items() if n.startswith("fold") or f.partial != last]
    names = [n for n in names if (first or n != "tree") and (fused or n not in {"fused", "tree"})]
    name = draw(st.sampled_from(names))
    numbers = [
        draw(st.sampled_from(n.choices) if n.choices else st.integers(-9 if n.least is None else n.least, 9))
        for n in FORMS[name].numbers
    ]
    if name.startswith("fold"):
        numbers = [0 if last else numbers[0]]
    words = draw(st.sets(st.sampled_from(FORMS[name].words or ("",)))) - {""}
    words -= set() if first and products else {"fma"}
    exclusive = sorted(words & {"fma", "kahan", "neumaier"})
    words -= set(exclusive[1:])
    explicit = draw(explicit_tree(fused="fma" not in words)) if name == "tree" else None
    accumulate, rounding = (draw(st.none() | st.sampled_from(FLOAT_NAMES)) for _ in range(2))
    return Level(
        name=name,
        numbers=tuple(numbers),
        words=tuple(sorted(words)),
        accumulate=accumulate,
        round=rounding,
        explicit=explicit,
    )


@st.composite
def explicit_tree(draw: st.DrawFn, *, fused: bool) -> AnyTree:
    nodes: list[AnyTree] = list(draw(st.permutations(range(draw(st.integers(2, 9))))))
    while len(nodes) > 1:
        width = draw(st.integers(2, len(nodes)))
        at = draw(st.integers(0, len(nodes) - width))
        members = nodes[at : at + width]
        if fused and draw(st.booleans()):
            nodes[at : at + width] = [Sum(children=tuple(members), how="fused", width=width)]
        else:
            # (0+1)+2 is 0+1+2.
            nodes[at : at + width] = [(*members[0], *members[1:]) if isinstance(members[0], tuple) else tuple(members)]
    return nodes[0]


@st.composite
def orders(draw: st.DrawFn, *, products: bool = True, fused: bool = True) -> Order:
    """Any order of up to three levels."""
    count = draw(st.integers(1, 3))
    return Order(
        tuple(draw(level(first=i == 0, last=i == count - 1, products=products, fused=fused)) for i in range(count))
    )


@settings(max_examples=500)
@given(order=orders())
def test_what_is_printed_is_read_back(order: Order) -> None:
    assert parse(str(order)) == order
    assert str(parse(str(order))) == str(order)
    assert parse(f"  {str(order).replace(' ', '').replace('|', ' | ')} ") == order


@settings(max_examples=200)
@given(order=orders(), leaves=st.integers(1, 70))
def test_every_leaf_is_added_once(order: Order, leaves: int) -> None:
    leaves = order.leaves or leaves
    assert sorted(leaves_of(tree(order, leaves))) == list(range(leaves))
    assert sorted(leaves_of(tree(order, leaves, rooted=True))) == list(range(leaves))


@pytest.mark.parametrize(
    "order", [*EXPLICIT, "cascade", "cascade(halves)", "threads(4, vector=2) | fold_hi(2) | fold_lo"]
)
@pytest.mark.parametrize("leaves", [*range(1, 70), 511, 512, 513, 1000])
def test_every_leaf_is_added_once_at_every_size(order: str, leaves: int) -> None:
    assert sorted(leaves_of(tree(parse(order), leaves))) == list(range(leaves))


@given(seed=st.integers(0, 99), leaves=st.integers(8, 40))
def test_a_seed_is_one_permutation(seed: int, leaves: int) -> None:
    draw, second, of_next_seed = (tree(parse(f"unordered({s})"), leaves) for s in (seed, seed, seed + 1))
    assert draw == second
    assert isinstance(draw, tuple)
    assume(draw != of_next_seed)  # of 8! and more
    assert sorted(leaves_of(draw)) == sorted(leaves_of(of_next_seed)) == list(range(leaves))


def test_an_explicit_tree_is_one_for_its_own_size() -> None:
    with pytest.raises(OrderError, match=r"tree\(...\) adds up 3 values, and there are 4"):
        tree(parse("tree(0+1+2)"), 4)


WRONG = {
    "": "character 1: nothing more; expected one of sequential",
    "sequentail": "character 1: 'sequentail'; expected one of sequential, .* Did you mean 'sequential'",
    "$": r"character 1: '\$'; expected one of",
    "native": "native is no order that can be written out",
    "ring": "character 1: 'ring'; expected one of",
    "rotate(1)": r"rotate needs step: write `rotate\(1, 1\)`",
    "rotate": r"rotate needs start: write `rotate\(1, 1\)`",
    "rotate(1, 2)": "character 11: '2'; expected 1 or -1 for step",
    "threads(4)": r"threads\(4\) can leave several values; say how they are added, as in `threads\(4\) \| sequential`",
    "threads(4, vecto=2) | fold_hi": r"character 12: 'vecto'; expected one of fma, .* Did you mean 'vector'",
    "threads(0) | fold_hi": "character 9: '0'; expected a whole number from 1 to 1048576 for threads",
    "threads(4, vector=x) | fold_hi": "character 19: 'x'; expected a whole number from 1",
    "threads(4, vector 2) | fold_hi": "character 19: '2'; expected `=` after vector",
    "threads(4, 2, 3) | fold_hi": "character 15: '3'; expected no further number: threads takes 2",
    "unordered(99999999999999999999999)": "expected a whole number from 0",
    "blocks(8, accumulate=bf17) | sequential": "character 22: 'bf17'; expected one of bf16, .* Did you mean 'bf16'",
    "fold_hi | fold_hi": r"fold_hi leaves one value, .*; a fold of parts has a width, `fold_hi\(32\)`",
    "sequential | fold_hi": "sequential leaves one value, so that nothing is left",
    "sequential(": "character 12: nothing more; expected one of fma",
    "sequential)": r"character 11: '\)'; expected `\|` or the end",
    "sequential(fma, kahan)": "fma and kahan exclude each other",
    "sequential(fma": "character 15: nothing more; expected `,` or `",
    "blocks(2) | sequential(fma)": "fma in sequential: only the first level adds leaves",
    "tree": "tree: expected the sum written out",
    "tree()": r"character 6: '\)'; expected the number of a leaf",
    "tree(0)": "character 6: '0'; expected each of the leaves 0 to 1 once",
    "tree(0+2)": "expected each of the leaves 0 to 1 once",
    "tree(0+1+1)": "expected each of the leaves 0 to 2 once",
    "tree(0+-1)": "character 8: '-1'; expected the number of a leaf",
    "tree((0+1": r"character 10: nothing more; expected `\+` or `\)`",
    "tree([0+1)]": r"character 10: '\)'; expected `\+` or `\]`",
    "tree([0+1+2], fma)": "tree: fma contracts additions one by one",
    "tree(" + "(" * 300 + "0": "expected at most 200 sums in each other",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_order_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(OrderError, match=WRONG[text]):
        parse(text)


@given(text=st.text(st.sampled_from("sequential()|,=+[]0123456789-fold_hi tree"), max_size=30) | st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        order = parse(text)
    except OrderError:
        return
    assert parse(str(order)) == order
