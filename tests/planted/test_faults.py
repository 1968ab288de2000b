"""Faults that touch one token, one sequence, one micro-batch, one rare expert or padding, in several micro-batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.bisection.divergence.show import padding_reading
from moeparity.bisection.report import Report
from tests.planted.faults import CASES, Case, Fault, Found, faults_found, real_tokens
from tests.two_layers import two_layers

qwen3_moe = two_layers("qwen3_moe")


@pytest.fixture(scope="session")
def faults_by_size() -> dict[int, dict[str, Found]]:
    """What was found of each micro-batch so far."""
    return {}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
@pytest.mark.usefixtures("brief_search")
def test_a_fault_that_touches_few_tokens_is_found(
    qwen3_moe: Path, tmp_path: Path, faults_by_size: dict[int, dict[str, Found]], case: Case
) -> None:
    size = case.micro_batch
    if size not in faults_by_size:
        faults_by_size[size] = faults_found(qwen3_moe, tmp_path, size)
    fault, report = faults_by_size[size][case.label].fault, faults_by_size[size][case.label].report
    assert_one_root(report, fault)
    assert_toggle(report)
    if fault.damage in {"nan", "inf"}:
        assert_named_first(report, fault)
    else:
        assert report.nonfinite is None
    if fault.scope == "padding" and report.metrics.unequal_tokens == 0:
        assert list(padding_reading(report)) == [
            "Nothing but padding differs there: no scored token differs in any bit."
        ]


def assert_one_root(report: Report, fault: Fault) -> None:
    """The node, and of sequences and tokens those that the fault was planted in."""
    touched, real = fault.touched, real_tokens()
    assert [root.node for root in report.roots] == [fault.node.name]
    (root,) = report.roots
    expected = (int(touched.any(-1).sum()), int(touched.sum()), int((touched & ~real).sum()))
    assert (root.sequences, root.tokens, root.pads) == expected
    assert not root.same_values


def assert_toggle(report: Report) -> None:
    (toggle,) = report.toggles
    assert toggle.restores_all
    assert not toggle.had_no_effect
    assert toggle.alone is not None
    assert str(toggle.alone.kl) == str(report.metrics.kl), "NaN is the same NaN"


def assert_named_first(report: Report, fault: Fault) -> None:
    """The node, the first token of each kind that has one, and of a rare expert that expert."""
    nonfinite, real = report.nonfinite, real_tokens()
    assert nonfinite is not None
    assert {entry.side for entry in nonfinite.first} == {"candidate"}
    kinds = {False: fault.touched & real, True: fault.touched & ~real}
    first_entries = {entry.padding: entry for entry in nonfinite.first if entry.node == fault.node.name}
    assert first_entries.keys() == {padding for padding, tokens in kinds.items() if bool(tokens.any())}
    for padding, entry in first_entries.items():
        places = kinds[padding].nonzero().tolist()
        assert [entry.sequence, entry.position] == places[0]
        assert (entry.tokens, entry.sequences) == (len(places), len({sequence for sequence, _ in places}))
        assert (entry.nan > 0, entry.infinite > 0) == (fault.damage == "nan", fault.damage == "inf")
        if fault.node.op.name != "experts":
            assert entry.expert is None
        elif fault.scope == "expert":
            assert entry.expert == fault.expert
    scored = report.metrics.nonfinite_tokens
    assert (report.verdict.status == "fail") == (scored > 0)
    assert nonfinite.made_by == nonfinite.ended_by == ((report.toggles[0].name,) if scored else ())
    assert any("no shares are taken of it" in sentence for sentence in nonfinite.reading) == (scored > 0)
