"""Cases: how they are written and read, where they are cut, and which one a step is of."""

from __future__ import annotations

import re
from random import Random

import pytest

from moeparity.plan.schedule.cases import NUMBERS, Range, Sizes, case_of, contains, cut, described, merged, parse, write
from moeparity.plan.schedule.steps import PHASES


@pytest.mark.parametrize(
    "text", ["decode", "decode[rows :65]", "chunk[keys 1024:]", "verify[rows 8:65, keys 1024:4096, queries :3]"]
)
def test_what_is_written_is_read(text: str) -> None:
    assert write(*parse(text)) == text


def test_numbers_come_in_one_order_and_all_of_them_is_none() -> None:
    assert write(*parse(" decode[ keys 3: ,rows :2]")) == "decode[rows :2, keys 3:]"
    assert write("decode", {"rows": Range(0, None)}) == "decode"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dekode", "dekode"),
        ("decode[rows]", "rows"),
        ("decode[tokens 3:]", "tokens 3:"),
        ("decode[rows 3:, rows :9]", "rows :9"),
        ("decode[rows 9:3]", "rows 9:3"),
        ("decode[rows 3:", "decode[rows 3:"),
        ("decode[]", ""),
    ],
)
def test_what_is_no_case_is_told(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse(text)


def test_a_phase_is_cut_where_rules_of_it_begin_and_end() -> None:
    cases = cut(["prefill", "decode"], ["decode[rows :65]", "decode[keys 1024:]", "chunk[rows :3]"])
    assert cases == (
        "prefill",
        "decode[rows :65, keys :1024]",
        "decode[rows :65, keys 1024:]",
        "decode[rows 65:, keys :1024]",
        "decode[rows 65:, keys 1024:]",
    )
    assert cut(cases, ["decode[rows :65]"]) == cases, "what is cut already stays as it is"


def test_every_step_is_of_one_case_which_each_rule_holds_in_or_not() -> None:
    draw = Random(3)  # noqa: S311
    for _ in range(40):
        rules = []
        for _ in range(draw.randint(1, 5)):
            names = draw.sample(NUMBERS, draw.randint(1, 3))
            firsts = {name: draw.randint(0, 6) for name in names}
            ranges = {name: Range(n, draw.choice([None, n + draw.randint(1, 5)])) for name, n in firsts.items()}
            rules.append(write(draw.choice(PHASES[:2]), ranges))
        cases = cut(PHASES[:2], rules)
        for _ in range(60):
            sizes = Sizes(draw.choice(PHASES[:2]), *(draw.randint(1, 12) for _ in NUMBERS))
            (case,) = [case for case in cases if case_of([case], sizes)]
            assert case_of(cases, sizes) == case
            for rule in rules:
                assert contains(rule, case) == (case_of([rule], sizes) is not None)
    assert case_of(["prefill"], Sizes("decode", 1, 1, 1, 1)) is None


def test_in_words_phases_with_the_same_numbers_are_together() -> None:
    assert described(["decode", "verify"]) == "decode, verify"
    assert described([f"{phase}[rows :65]" for phase in PHASES]) == "all phases[rows :65]"
    assert described(["decode[keys 3:]", "chunk[keys 3:]"]) == "decode[keys 3:], chunk[keys 3:]"
    assert described(["decode[keys 3:]", "prefill"]) == "decode[keys 3:], prefill"


def test_cases_without_a_cut_between_them_are_one() -> None:
    cases = cut(["decode"], ["decode[rows :65]", "decode[keys 1024:]"])
    assert merged(cases) == {"decode": cases}
    assert list(merged(cases[1:])) == ["decode[keys 1024:]", "decode[rows 65:, keys :1024]"]
    assert list(merged(["prefill", "decode[rows :3]"])) == ["prefill", "decode[rows :3]"]
    assert described(cases[2:]) == "decode[rows 65:]"
