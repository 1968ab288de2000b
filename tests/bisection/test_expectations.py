"""Every kind of expectation, met, not met and open, on a report whose numbers are written here."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from moeparity.bisection.distribution.data import Distribution
from moeparity.bisection.expectations import expectations, refuse_unknown
from moeparity.bisection.record.data import Record
from moeparity.bisection.report import Report
from moeparity.bisection.spikes.data import (
    EARLIER_ROUTES,
    NOT_TOLD,
    ONE_FLIP,
    OWN_ROUTES,
    UNLIKELY,
    Cause,
    Spikes,
    SpikingDraw,
)
from moeparity.bisection.updates.data import StaleKeys, UpdatePart, Updates
from moeparity.bisection.updates.split import PARTS
from moeparity.bisection.verdict.data import Metrics
from moeparity.check.recipes import Checked
from moeparity.errors import MoeparityError, Where
from moeparity.metrics.verdict import Status
from moeparity.output.findings import Finding, combined
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from moeparity.plan.spec.expect import DistributionBounds, Expect, MetricBounds, SpikeBounds, UpdateBounds
from tests.bisection.reports import REPORT, fill, grown
from tests.errors.base import BASE, copy

WHERE = Where(Path("recipe.yaml"))
GRAPH = expand(Config(BASE / "config.json"))
ACTS, MASKED, IDLE, REFUSED = REPORT.toggles


def judged(expect: dict[str, Any], report: Report = REPORT) -> list[tuple[str, str]]:
    expected = expectations(Expect.model_validate(expect), GRAPH, WHERE)
    return [(expectation.says, expectation.judge(report)[0]) for expectation in expected]


def findings(expect: dict[str, Any], report: Report) -> list[Finding]:
    return [expectation.finding(report) for expectation in expectations(Expect.model_validate(expect), GRAPH, WHERE)]


def status(expect: dict[str, Any], report: Report = REPORT) -> str:
    ((_, judgement),) = judged(expect, report)
    return judgement


def with_verdict(status: Status) -> Report:
    return replace(REPORT, verdict=replace(REPORT.verdict, status=status))


def with_interval(low: float, high: float, **changes: Any) -> Report:
    value = replace(REPORT.verdict.value, low=low, high=high, estimate=changes.pop("estimate", (low + high) / 2))
    run = replace(REPORT.run, **{"sequences": 30} | changes)
    return replace(REPORT, verdict=replace(REPORT.verdict, value=value), run=run)


@pytest.mark.parametrize("expected", ["pass", "fail", "inconclusive"])
@pytest.mark.parametrize("actual", ["pass", "fail", "inconclusive"])
def test_a_verdict_that_is_not_decided_leaves_the_expectation_open(expected: str, actual: Status) -> None:
    wanted = "ok" if expected == actual else "inconclusive" if actual == "inconclusive" else "fail"
    assert status({"verdict": expected}, with_verdict(actual)) == wanted


def with_record(record: Record) -> Report:
    return replace(with_verdict("pass"), record=record)


CONTRADICTED = fill(Record, status="not reproduced", side="candidate", reading=("",))


@pytest.mark.parametrize(
    "expect",
    [
        {},
        {"verdict": "pass"},
        {"metrics": {"k3": {"below": 1}}},
        {"flips": {"tokens": {"below": 1}}},
        {"first_divergence": "layers[1].moe.combine"},
        {"culprits": ["acts"]},
        {"no_effect": ["idle"]},
    ],
)
def test_nothing_is_met_while_a_record_contradicts(expect: dict[str, Any]) -> None:
    (of_simulations,) = findings(expect, with_record(replace(CONTRADICTED, status="reproduced")))
    assert of_simulations.status == "ok"
    (finding,) = findings(expect, with_record(CONTRADICTED))
    assert finding.status == "inconclusive"
    assert finding.found == f"{of_simulations.found}; of two simulations, the record is not reproduced"


def test_what_is_not_met_is_not_met_with_a_record_too() -> None:
    (finding,) = findings({"metrics": {"k3": {"below": 1e-9}}}, with_record(CONTRADICTED))
    assert finding.status == "fail"


def test_a_record_that_is_not_to_be_reproduced_leaves_the_rest_to_the_simulations() -> None:
    judgements = findings({"record": "not reproduced", "metrics": {"k3": {"below": 1}}}, with_record(CONTRADICTED))
    assert [(finding.expectation, finding.status) for finding in judgements] == [
        ("record not reproduced", "ok"),
        ("k3 below 1", "ok"),
    ]


@pytest.mark.parametrize("expected", ["reproduced", "not reproduced", "no record"])
@pytest.mark.parametrize("actual", ["reproduced", "not reproduced", "no record"])
def test_what_becomes_of_a_record_can_be_expected(expected: str, actual: Any) -> None:
    (finding,) = findings({"record": expected}, with_record(replace(CONTRADICTED, status=actual)))
    assert finding.status == ("ok" if expected == actual else "fail")
    assert finding.found == actual


def test_a_record_within_its_bound_contradicts_nothing() -> None:
    bounded = replace(CONTRADICTED, gate=replace(REPORT.verdict, status="pass"))
    assert [finding.status for finding in findings({}, with_record(bounded))] == ["ok"]
    over = replace(CONTRADICTED, gate=replace(REPORT.verdict, status="inconclusive"))
    assert [finding.status for finding in findings({}, with_record(over))] == ["inconclusive"]


def test_without_expectations_the_gate_is_to_be_passed() -> None:
    assert judged({}, with_verdict("pass")) == [("verdict pass", "ok")]
    assert status({}, with_verdict("fail")) == "fail"
    assert [says for says, _ in judged({"culprits": ["idle"]})] == ["culprit idle"]


def test_every_number_of_the_whole_distributions_can_be_bounded() -> None:
    assert list(DistributionBounds.model_fields) == [field.name for field in fields(Distribution)]
    whole = Distribution(jsd=0.25, tv=0.25, max_tv=0.25, top10_jaccard=0.25, rank_change=0.25)
    for name in DistributionBounds.model_fields:
        met, missed = ({"distribution": {name: {"below": bound}}} for bound in (0.5, 0.125))
        assert judged(met, replace(REPORT, distribution=whole)) == [(f"{name} below 0.5", "ok")]
        assert status(missed, replace(REPORT, distribution=whole)) == "fail"
        assert status(met, replace(REPORT, distribution=None)) == "fail"


def test_every_part_of_a_divergence_across_updates_can_be_bounded() -> None:
    parts = tuple(fill(UpdatePart, name=name, mean_abs=0.25) for name in PARTS)
    with_stale = fill(Updates, parts=parts, stale_keys=fill(StaleKeys, tokens=3))
    none = replace(with_stale, stale_keys=None)
    for name in UpdateBounds.model_fields:
        bounds = {"above": 2, "below": 4} if name == "stale_keys" else {"above": 0.125, "below": 0.5}
        expect = {"updates": {name: bounds}}
        assert status(expect, replace(REPORT, updates=with_stale)) == "ok"
        assert status({"updates": {name: {"above": 4}}}, replace(REPORT, updates=with_stale)) == "fail"
        assert status(expect, replace(REPORT, updates=None)) == "fail"
    assert status({"updates": {"stale_keys": {"below": 1}}}, replace(REPORT, updates=none)) == "ok"


def test_every_number_of_the_spikes_can_be_bounded() -> None:
    numbers = {"mean": 1.25, "highest": 1.75, "draws_above": 0.25, "tokens": 0.125, "always": 0.5}
    numbers |= {"routes": 0.375, "unlikely": 0.5, "not_told": 0.125}
    assert set(SpikeBounds.model_fields) == set(numbers)
    draws = [
        SpikingDraw(draw=draw, mean=mean, highest_sequence=2.0, highest=highest, spikes=2, carried=1.0)
        for draw, (mean, highest) in enumerate([(1.25, 1.5), (1.125, 1.75), (1.0, 1.0), (1.0, 1.0)])
    ]
    counts = {ONE_FLIP: 1, OWN_ROUTES: 1, EARLIER_ROUTES: 1, UNLIKELY: 4, NOT_TOLD: 1}
    spikes = Spikes(
        above=1.1,
        alarm=1.2,
        scored=16,
        draws=tuple(draws),
        median=1.0,
        draws_above=0.25,
        rate=REPORT.verdict.value,
        tokens=2,
        always=1,
        spikes=8,
        causes=tuple(Cause(name=name, spikes=count, tokens=1) for name, count in counts.items()),
        shared=(),
        listed=(),
        reading=(),
    )
    report = replace(REPORT, spikes=spikes)
    for name, number in numbers.items():
        near = {"above": number - 2**-20, "below": number + 2**-20}
        assert judged({"spikes": {name: near}}, report) == [
            (f"spikes {name} above {near['above']:g} and below {near['below']:g}", "ok")
        ]
        assert status({"spikes": {name: {"above": number}}}, report) == "fail"
        assert status({"spikes": {name: {"above": 0}}}, REPORT) == "fail"


def test_every_metric_of_the_report_can_be_bounded() -> None:
    assert list(MetricBounds.model_fields) == [field.name for field in fields(Metrics)]
    for field in fields(Metrics):
        expect = {"metrics": {field.name: {"above": -0.0 if field.name == "top1_agreement" else -1.0}}}
        changes: dict[str, Any] = {field.name: math.nan}
        broken = replace(REPORT, metrics=replace(REPORT.metrics, **changes))
        assert (status(expect), status(expect, broken)) == ("ok", "fail")


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ({"below": 0.0014}, "ok"),
        ({"below": 0.0013}, "fail"),
        ({"above": 0.0012}, "ok"),
        ({"above": 0.0013}, "fail"),
        ({"above": 0.001, "below": 0.002}, "ok"),
        ({"above": 0.0015, "below": 0.002}, "fail"),
    ],
)
def test_bounds_are_strict(bounds: dict[str, float], wanted: str) -> None:
    assert status({"metrics": {"k3": bounds}}) == wanted


@pytest.mark.parametrize(
    ("bounds", "low", "high", "wanted"),
    [
        ({"below": 3.0}, 1.0, 2.0, "ok"),
        ({"below": 2.0}, 1.0, 2.0, "inconclusive"),
        ({"below": 1.0}, 1.0, 2.0, "fail"),
        ({"above": 0.5}, 1.0, 2.0, "ok"),
        ({"above": 1.0}, 1.0, 2.0, "inconclusive"),
        ({"above": 2.0}, 1.0, 2.0, "fail"),
        ({"above": 0.5, "below": 1.5}, 1.0, 2.0, "inconclusive"),
        ({"above": 1.5, "below": 1.0}, 1.0, 2.0, "refused"),
        ({"below": 3.0}, -math.inf, math.inf, "inconclusive"),
    ],
)
def test_an_interval_that_holds_a_bound_is_open(bounds: dict[str, float], low: float, high: float, wanted: str) -> None:
    if wanted == "refused":
        with pytest.raises(ValueError, match="no number lies above"):
            Expect.model_validate({"interval": bounds})
    else:
        assert status({"interval": bounds}, with_interval(low, high, estimate=1.5)) == wanted


def test_an_interval_from_few_sequences_meets_no_upper_bound_unless_bits_are_equal() -> None:
    few = with_interval(1.0, 2.0, sequences=24)
    assert status({"interval": {"below": 3.0}}, few) == "inconclusive"
    assert status({"interval": {"above": 0.5}}, few) == "ok"
    equal = replace(few, verdict=replace(few.verdict, status="pass"))
    assert status({"interval": {"below": 3.0}}, equal) == "ok"


def test_an_interval_around_a_number_that_is_none_fails() -> None:
    assert status({"interval": {"below": 3.0}}, with_interval(-math.inf, math.inf, estimate=math.nan)) == "fail"


def test_flips_are_shares_of_tokens_and_of_token_layers() -> None:
    # 18 of 240 tokens; 12 of 240 token-layers
    for key, share in (("tokens", 18 / 240), ("token_layers", 12 / 240)):
        assert status({"flips": {key: {"above": share - 0.001, "below": share + 0.001}}}) == "ok"
        assert status({"flips": {key: {"below": share - 0.001}}}) == "fail"
        assert status({"flips": {key: {"below": 1.0}}}, replace(REPORT, flips=None)) == "fail"


def test_growth_is_bounded_with_and_without_flips() -> None:
    report = grown([0.25, 0.5, 4.0, 4.0, 1.0], {2: 3})
    for key, factor in (("step", 8.0), ("step_with_flips", 8.0), ("step_without_flips", 2.0)):
        assert status({"growth": {key: {"above": factor - 0.1, "below": factor + 0.1}}}, report) == "ok"
        assert status({"growth": {key: {"below": factor}}}, report) == "fail"
    steady = grown([0.25, 0.5, 1.0, 1.0], {})
    assert status({"growth": {"step_with_flips": {"below": 9.0}}}, steady) == "fail"
    assert status({"growth": {"step_without_flips": {"below": 3.0}}}, steady) == "ok"


@pytest.mark.parametrize("key", ["step_with_flips", "step_without_flips"])
def test_growth_at_flips_is_refused_where_nothing_is_routed(tmp_path: Path, key: str) -> None:
    copy(tmp_path / "dense", config={"model_type": "qwen3", "intermediate_size": 8})
    dense = expand(Config(tmp_path / "dense" / "config.json"))
    with pytest.raises(MoeparityError, match=r"expect\.growth: qwen3 has no router here"):
        expectations(Expect.model_validate({"growth": {key: {"below": 3.0}}}), dense, WHERE)
    assert len(expectations(Expect.model_validate({"growth": {"step": {"below": 3.0}}}), dense, WHERE)) == 1


def test_bounds_on_flips_are_refused_where_nothing_is_routed(tmp_path: Path) -> None:
    copy(tmp_path / "dense", config={"model_type": "qwen3", "intermediate_size": 8})
    dense = expand(Config(tmp_path / "dense" / "config.json"))
    with pytest.raises(MoeparityError, match=r"expect\.flips: qwen3 has no router here"):
        expectations(Expect.model_validate({"flips": {"tokens": {"below": 0.5}}}), dense, WHERE)


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ("layers[1].moe.combine", "ok"),
        ("layers[*].moe.combine", "ok"),
        ("layers[-1].moe", "ok"),
        ("layers[0].moe.combine", "fail"),
        ("layers[*].attention.*", "fail"),
        ("none", "fail"),
    ],
)
def test_first_divergence(selector: str, wanted: str) -> None:
    assert status({"first_divergence": selector}) == wanted


def test_no_divergence() -> None:
    nowhere = replace(REPORT, roots=())
    assert status({"first_divergence": "none"}, nowhere) == "ok"
    assert status({"first_divergence": "layers[1].moe.combine"}, nowhere) == "fail"


def test_a_toggle_acts_when_a_trial_changes_a_bit() -> None:
    names = [toggle.name for toggle in REPORT.toggles]
    acting = [judgement for _, judgement in judged({"culprits": names})]
    idle = [judgement for _, judgement in judged({"no_effect": names})]
    assert acting == ["ok", "ok", "fail", "inconclusive"]
    assert idle == ["fail", "fail", "ok", "inconclusive"]


def test_no_culprit() -> None:
    for toggles, wanted in (
        ((), "ok"),
        ((IDLE,), "ok"),
        ((IDLE, REFUSED), "inconclusive"),
        ((REFUSED, MASKED), "fail"),
    ):
        assert status({"culprits": "none"}, replace(REPORT, toggles=toggles)) == wanted


def test_every_expectation_is_one_finding_in_the_order_of_the_schema() -> None:
    expect = {
        "no_effect": ["idle"],
        "culprits": ["masked"],
        "first_divergence": "layers[*].moe",
        "flips": {"token_layers": {"below": 0.5}, "tokens": {"below": 0.5}},
        "interval": {"below": 1.0},
        "metrics": {"kl": {"below": 1.0}, "k1": {"below": 1.0}},
        "verdict": "fail",
    }
    assert [says for says, _ in judged(expect)] == [
        "verdict fail",
        "k1 below 1",
        "kl below 1",
        "interval below 1",
        "flipped tokens below 0.5",
        "flipped token-layers below 0.5",
        "first divergence layers[*].moe",
        "culprit masked",
        "no effect of idle",
    ]


@pytest.mark.parametrize("key", ["culprits", "no_effect"])
def test_an_unknown_toggle_is_refused_with_the_nearest_name(key: str) -> None:
    expect = Expect.model_validate({key: ["idel"]})
    with pytest.raises(MoeparityError, match=rf"expect\.{key} names 'idel'.*it has idle, acts\. Did you mean 'idle'\?"):
        refuse_unknown(expect, ["idle", "acts"], WHERE)
    with pytest.raises(MoeparityError, match="it has none: both sides are set alike"):
        refuse_unknown(expect, [], WHERE)
    refuse_unknown(expect, ["idel"], WHERE)


@pytest.mark.parametrize(("codes", "wanted"), [([0], 0), ([0, 3], 3), ([3, 1, 0], 1), ([0, 1, 2, 3], 2), ([3, 2], 2)])
def test_exit_codes_combine(codes: list[int], wanted: int) -> None:
    assert combined(codes) == wanted


def test_the_exit_code_of_a_recipe() -> None:
    def code(*statuses: Any, error: str | None = None) -> int:
        findings = tuple(Finding(expectation="x", status=status, found="y") for status in statuses)
        return Checked(recipe="r", findings=findings, error=error, report=None, seconds=0.0).exit_code

    assert [code("ok"), code("ok", "fail", "inconclusive"), code("ok", "inconclusive"), code(error="no")] == [
        0,
        1,
        3,
        2,
    ]
