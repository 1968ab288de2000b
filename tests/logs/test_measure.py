"""Logs measured: intervals that hold, verdicts that are refused, gates, groups, outliers, text and JSON."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner, Result

from moeparity.check.recipes import check
from moeparity.cli.commands import app
from moeparity.errors import MoeparityError, Where
from moeparity.logs.chunks import Chunker
from moeparity.logs.diagnosis import CAUSES
from moeparity.logs.log_files import measure_files
from moeparity.logs.measure import Measurement, measure
from moeparity.logs.record import Sequence
from moeparity.logs.report import LogFile, LogReport
from moeparity.logs.request import MetricsRequest, read_gate
from moeparity.logs.show import document
from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.chunk import UNKNOWN
from moeparity.metrics.groups import Groups
from moeparity.metrics.interval import sequence_mean, token_mean
from moeparity.metrics.registry import METRICS
from moeparity.metrics.verdict import Gate
from tests.metrics.made import noisy, records
from tests.printed import printed


def present(column: Tensor | None) -> Tensor:
    assert column is not None
    return column


def gated(count: int, *, gate: str = "k3<1e-3", size: float = 0.02) -> LogReport:
    return measure(records(count, 60, size), MetricsRequest(gate=read_gate(gate)))


def text(report: LogReport, *sets: str) -> str:
    return printed(document(report, "log.jsonl", sets), 160)


def test_of_many_files_the_first_and_the_last_are_shown() -> None:
    report = gated(2)
    files = tuple(LogFile(path=f"step{i}.jsonl", format="own", note="made by hand" * (i == 3)) for i in range(9))
    output = text(replace(report, files=files))
    assert "step0.jsonl (own)" in output
    assert "... 7 more (own) (own; made by hand); --json names all" in output
    assert "step8.jsonl (own)" in output
    assert "step4.jsonl" not in output
    assert "step5.jsonl (own)" in text(replace(report, files=files[:6]))


def write(path: Path, sequences: list[Sequence], *, trainer: bool = True) -> Path:
    """The sequences as a file of moeparity's own format."""
    lines = []
    for each in sequences:
        line = {"id": each.id, "input_ids": each.token_ids.tolist(), "step": each.step, "prompt_tokens": 0}
        line["logprobs"] = each.rollout.tolist()
        if trainer:
            line["trainer_logprobs"] = each.trainer.tolist()
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("count", "gate", "status"),
    [(30, "k3<1e-3", "pass"), (30, "k3<1e-4", "fail"), (24, "k3<1e-3", "inconclusive"), (24, "k3<1e-4", "fail"),
     (30, "k3<2e-4", "inconclusive"), (1, "k3<1e-3", "inconclusive")],
)  # fmt: skip
def test_verdicts(count: int, gate: str, status: str) -> None:
    report = gated(count, gate=gate)
    assert report.verdict.status == status
    assert report.exit_code == {"pass": 0, "fail": 1, "inconclusive": 3}[status]


def test_equal_sides_pass_no_gate_below_25_sequences() -> None:
    alike = [replace(sequence, trainer=sequence.rollout) for sequence in records(25, 5, 0.1)]
    assert measure(alike[:24], MetricsRequest(gate=read_gate("k3<1e-9"))).verdict.status == "inconclusive"
    assert measure(alike, MetricsRequest(gate=read_gate("k3<1e-9"))).verdict.status == "pass"


def test_a_token_of_probability_0_fails() -> None:
    [first, *others] = records(30, 60, 0.02)
    spoilt = first.rollout.clone()
    spoilt[3] = -math.inf
    report = measure([replace(first, rollout=spoilt), *others], MetricsRequest(gate=read_gate("k3<1e-3")))
    assert (report.verdict.status, report.infinite) == ("fail", 1)
    assert "got probability 0 from one side only" in text(report)
    assert json.loads(report.to_json())["verdict"]["value"]["estimate"] == "inf"


@pytest.mark.parametrize("name", ["token_mult_prob_error", "mean_ratio"])
def test_intervals_move_with_the_offset(name: str) -> None:
    report = gated(30, gate=f"{name}<1.5")
    metric = report.metric(name)
    assert metric.value.low < metric.value.estimate < metric.value.high
    assert abs(metric.value.estimate - 1) < 0.1
    assert report.verdict.value == metric.value


@pytest.mark.parametrize("name", ["k1", "areal/behave_approx_kl", "verl/log_ppl_diff", "verl/chi2_token"])
def test_far_below_parity_is_no_parity(name: str) -> None:
    distant = [replace(sequence, trainer=present(sequence.trainer) - 1) for sequence in records(30, 60, 0.02)]
    swapped = [replace(sequence, rollout=sequence.trainer, trainer=sequence.rollout) for sequence in distant]
    statuses = [
        measure(log, MetricsRequest(gate=read_gate(f"{name}<0.01"))).verdict.status for log in (distant, swapped)
    ]
    assert statuses == ["fail", "fail"]
    assert "as a distance from 0" in measure(distant, MetricsRequest(gate=read_gate(f"{name}<0.01"))).verdict.reason


def test_a_ratio_below_1_is_as_far_as_one_above() -> None:
    shifted = [replace(each, trainer=present(each.trainer) - 1) for each in records(30, 60, 0.02)]
    for name in ("mean_ratio", "nemo-rl/sampling_importance_ratio", "verl/ppl_ratio"):
        assert measure(shifted, MetricsRequest(gate=read_gate(f"{name}<1.05"))).verdict.status == "fail"


def test_intervals_are_those_of_the_recipes() -> None:
    chunk_given, totals = noisy([50, 20, 70, 10], 0.1), Accumulator((METRICS["k3"], METRICS["k3_sequence"]))
    totals.add(chunk_given)
    k3 = chunk_given.delta.expm1() - chunk_given.delta
    sums = torch.zeros(4, dtype=torch.float64).index_add_(0, chunk_given.sequence, k3)
    assert totals.interval(METRICS["k3"]) == token_mean(sums, chunk_given.counts)
    assert totals.interval(METRICS["k3_sequence"]) == sequence_mean(sums, chunk_given.counts)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    # Gaussian delta of its own size in each sequence: E[k1] = -E[delta] = 0.
    generator, covered, trials = torch.Generator().manual_seed(5), 0, 200
    for _ in range(trials):
        sizes = torch.rand(30, 1, dtype=torch.float64, generator=generator)
        sums = (torch.randn(30, 20, dtype=torch.float64, generator=generator) * sizes).sum(1)
        value = token_mean(sums, torch.full((30,), 20.0), resamples=200)
        covered += value.low <= 0 <= value.high
    assert 0.9 <= covered / trials <= 0.99


def test_an_event_that_was_not_seen_is_bounded_and_not_ruled_out() -> None:
    report = gated(30, gate="f2<1e-3")
    assert report.metric("f2").value.high == pytest.approx(3 / 1800)
    assert report.metric("f2").value.method == "rule of three"
    assert report.verdict.status == "inconclusive"
    assert gated(30, gate="f2<2e-3").verdict.status == "pass"


def test_chunks_of_any_size_give_the_same_report() -> None:
    whole, parts = Measurement(MetricsRequest(by=("step",))), Measurement(MetricsRequest(by=("step",)))
    for measurement, size in ((whole, 1 << 20), (parts, 100)):
        for chunk in measurement.chunker.chunks(records(30, 20, 0.1), tokens=size):
            measurement.add(chunk)
    first, second = (json.loads(each.report(()).to_json()) for each in (whole, parts))
    for first_metric, second_metric in zip(first.pop("metrics"), second.pop("metrics"), strict=True):
        values = [float(each["value"]["estimate"]) for each in (first_metric, second_metric)]
        assert values[0] == pytest.approx(values[1], rel=1e-12, nan_ok=True)
    assert first["outliers"] == second["outliers"]
    assert [g["name"] for g in first["groupings"][0]["groups"]] == ["0", "1"]


def test_the_worst_sequences_are_found_in_any_chunk() -> None:
    sequences = records(12, 10, 0.01)
    spoilt = replace(sequences[7], trainer=present(sequences[7].trainer) - 1)
    sequences[7] = spoilt
    report = measure(sequences, MetricsRequest())
    assert report.outliers[0].id == "s7"
    assert report.outliers[0].where == "log.jsonl:8"
    assert report.outliers[0].mean_abs_delta == pytest.approx(1, rel=0.02)


def test_unscored_tokens_and_sequences_do_not_count() -> None:
    sequences = records(3, 10, 0.1)
    half = torch.arange(10) < 5
    spoilt = torch.where(half, present(sequences[0].trainer), torch.nan)
    sequences[0] = replace(sequences[0], mask=half, trainer=spoilt)
    sequences[1] = replace(sequences[1], mask=torch.zeros(10, dtype=torch.bool))
    report = measure(sequences, MetricsRequest())
    assert (report.sequences, report.tokens) == (2, 15)
    assert report.left_out == ("1 sequence without a scored token",)


def test_labels_of_a_chunk() -> None:
    [first, second] = records(2, 4, 0.1)
    routes = torch.tensor([0, 1]).repeat(4, 1, 1)
    routes_b = routes.flip(-1).clone()
    routes_b[1, 0] = torch.tensor([0, 2])
    routes_b[2] = -1
    extra = {"routed_experts": routes, "trainer_routed_experts": routes_b}
    labels: dict[str, Any] = {
        "versions": torch.tensor([3, 3, 4, 4]),
        "trainer_version": 5,
        "group": "maths",
        "extra": extra,
    }
    chunker = Chunker()
    [chunk] = chunker.chunks([replace(first, **labels), replace(second, **labels, prompt=2)])
    assert chunk.labels["version_lag"].tolist() == [2, 2, 1, 1] * 2
    # A token is predicted by the position before it; equal sets in another order are no flip.
    assert chunk.labels["flipped"].tolist() == [-1, 0, 1, -1] * 2
    assert chunk.labels["step"].tolist() == [0] * 4 + [1] * 4
    assert chunk.position.tolist() == [0, 1, 2, 3, -2, -1, 0, 1]
    assert chunker.groups == {"maths": 0}


def test_what_one_sequence_does_not_say_is_kept_of_the_others() -> None:
    [first, second] = records(2, 4, 0.1)
    routes = torch.tensor([0, 1]).repeat(4, 1, 1)
    labels: dict[str, Any] = {
        "versions": torch.tensor([3, -1, 4, 4]),
        "trainer_version": 5,
        "group": "maths",
        "extra": {"routed_experts": routes, "trainer_routed_experts": routes},
    }
    [chunk] = Chunker().chunks([replace(first, **labels), replace(second, step=None)])
    unknown = [UNKNOWN] * 4
    assert chunk.labels["version_lag"].tolist() == [2, UNKNOWN, 1, 1, *unknown]
    assert chunk.labels["step"].tolist() == [0] * 4 + unknown
    assert chunk.labels["group"].tolist() == [0] * 4 + unknown
    assert chunk.labels["flipped"].tolist() == [-1, 0, 0, 0] + [-1] * 4
    steps = Groups("step")
    steps.add(chunk)
    assert (list(steps.parts), steps.parts[0].tokens, steps.unknown) == ([0], 4, 4)


@pytest.mark.parametrize("gate_text", ["k3", "k3<", "k3<0", "k3<-1", "k3<1.2.3", "<1", "k3>1e-3"])
def test_what_is_no_gate_is_refused(gate_text: str) -> None:
    with pytest.raises(MoeparityError, match="is no gate; expected a metric"):
        read_gate(gate_text)


@pytest.mark.parametrize(
    ("log_request", "message"),
    [
        (MetricsRequest(gate=Gate(metric="k3_seq", below=1)), "'k3_seq' is no metric.*Did you mean"),
        (MetricsRequest(gate=Gate(metric="max_abs_delta", below=1)), "is a token max, of which there is no interval"),
        (
            MetricsRequest(gate=Gate(metric="nll_sampler", below=1)),
            "nll_sampler has no direction: .*expected k1, .*verl/kl",
        ),
        # At parity it is 1: such a gate could never be passed.
        (MetricsRequest(gate=Gate(metric="mean_ratio", below=0.9)), "mean_ratio is 1 at parity; a bound above that"),
        (MetricsRequest(gate=Gate(metric="token_mult_prob_error", below=1)), "token_mult_prob_error is 1 at parity"),
        (MetricsRequest(sets=("nemo",)), "'nemo' is no set of metrics.*Did you mean 'nemo-rl'"),
        (MetricsRequest(by=("layer",)), "'layer' is no way of grouping tokens"),
        (MetricsRequest(metrics=("verl/k3",)), "Did you mean"),
    ],
)
def test_what_is_asked_wrongly_is_refused_before_reading(log_request: MetricsRequest, message: str) -> None:
    with pytest.raises(MoeparityError, match=message):
        measure(iter([]), log_request)


def test_a_gate_on_what_the_log_lacks_is_refused() -> None:
    with pytest.raises(MoeparityError, match="miles/ess_ratio cannot be computed: the log has no current"):
        measure(records(3, 4, 0.1), MetricsRequest(gate=Gate(metric="miles/ess_ratio", below=2)))


def test_steps_become_series() -> None:
    sequences = [replace(sequence, step=10 * (index // 5)) for index, sequence in enumerate(records(30, 20, 0.02))]
    report = measure(sequences, MetricsRequest(by=("step",)))
    assert [summary.series.metric for summary in report.series] == ["k3", "mean_abs_delta"]
    k3 = report.series[0].series
    assert k3.steps == [0, 10, 20, 30, 40, 50]
    assert k3.values == [group.values["k3"] for group in report.groupings[0].groups]
    assert "Over steps" in text(report)
    assert not measure([replace(sequence, step=None) for sequence in sequences], MetricsRequest()).series


def test_alarms_are_marked() -> None:
    output = text(measure(records(30, 60, 0.3), MetricsRequest(sets=("verl",))), "verl")
    assert re.search(r"^  k3 +! 0\.0", output, re.MULTILINE)
    assert "As verl defines them" in output
    assert "healthy" in output


LEGEND = "! a published alarm is raised"


def test_a_mark_is_explained_where_it_stands_and_nowhere_else() -> None:
    """Neither in a quiet log, nor in the table of a set that raises none."""
    assert LEGEND not in text(measure(records(30, 60, 1e-4), MetricsRequest(sets=("verl",))), "verl")
    output = text(measure(records(30, 60, 0.3), MetricsRequest(sets=("verl",))), "verl")
    for table in output.split("\n\n"):
        rows = [line for line in table.splitlines() if re.match(r"  \S+ +! ", line)]
        assert bool(rows) == (LEGEND in table)


def test_what_is_bounded_on_one_side_says_which_and_why() -> None:
    """One sequence of thirty differs: no resample of the others bounds the mean from above."""
    sequences = records(30, 20, 0.0)
    rollout = present(sequences[4].rollout)
    sequences[4] = replace(sequences[4], trainer=rollout - 0.2 * (torch.arange(len(rollout)) == 7))
    output = text(measure(sequences, MetricsRequest()))
    assert re.search(r"^  k3 +\S+ +at least ", output, re.MULTILINE)
    assert re.search(r"^  mean_ratio +\S+ +at most ", output, re.MULTILINE)
    assert "the sides differ in too few sequences" in output
    assert not re.search(r"\binf\b", output)
    assert "too few sequences" not in text(measure(records(30, 20, 0.02), MetricsRequest()))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["metrics", *map(str, arguments)])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("logs") / "log.jsonl", records(30, 20, 0.02))


def test_the_command(log: Path, tmp_path: Path) -> None:
    process = run(log, "--set", "all", "--by", "step", "--gate", "k3<1e-3", "--json", tmp_path / "out.json")
    assert process.exit_code == 0, process.output
    assert "600 tokens of 30 sequences" in process.output
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["schema"] == "moeparity.log/1"
    assert {metric["name"] for metric in report["metrics"]} == METRICS.keys()
    assert run(log, "--gate", "k3<1e-5").exit_code == 1


def test_a_second_gate_is_not_dropped(log: Path) -> None:
    """The last one alone would decide otherwise: a log that fails the first would pass."""
    process = run(log, "--gate", "k3<1e-5", "--gate", "k1<1")
    assert isinstance(process.exception, MoeparityError)
    assert "--gate is given 2 times" in str(process.exception)


def test_repetitions_do_not_make_a_log_large_enough_to_pass(tmp_path: Path) -> None:
    few = records(3, 20, 0.02)
    again = [replace(few[number % 3], id=str(number)) for number in range(30)]
    process = run(write(tmp_path / "log.jsonl", again), "--gate", "k3<1e-1")
    output = " ".join(process.output.split())
    assert process.exit_code == 3, process.output
    assert "27 repeated sequences, counted once with what is repeated" in output
    assert "600 tokens of 30 sequences" in output


def test_a_repeated_sequence_has_the_intervals_of_one(tmp_path: Path) -> None:
    """The means are those of all tokens; of other sequences forty copies of one say as little as it does."""
    few = records(4, 20, 0.02)
    again = [replace(few[number % 4], id=str(number)) for number in range(40)]
    once, repeated = (
        measure_files([write(tmp_path / f"{len(log)}.jsonl", log)], MetricsRequest()) for log in (few, again)
    )
    for metric, of_repeated in zip(once.metrics, repeated.metrics, strict=True):
        assert of_repeated.value.estimate == pytest.approx(metric.value.estimate, rel=1e-9, nan_ok=True)
        assert of_repeated.value.low == pytest.approx(metric.value.low, rel=1e-6, nan_ok=True)
    assert repeated.sequences == 40


def test_copies_of_one_sequence_name_nothing(tmp_path: Path) -> None:
    """A temperature of 0.7 in forty sequences is named; in forty copies of one nothing is."""
    many = [replace(each, trainer=0.7 * each.rollout) for each in records(40, 20, 0.0) if each.rollout is not None]
    copies = [replace(many[0], id=str(number)) for number in range(40)]
    diagnoses = [
        measure_files([write(tmp_path / f"{name}.jsonl", log)], MetricsRequest()).diagnosis
        for name, log in (("many", many), ("copies", copies))
    ]
    causes = [None if each is None else each.names("named") for each in diagnoses]
    assert causes[0]
    assert causes[1] == ()


def test_a_log_without_steps_is_not_drawn(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", [replace(each, step=1) for each in records(3, 5, 0.1)])
    with pytest.raises(MoeparityError, match="does not tell of two steps"):
        measure_files([path], MetricsRequest(), plot=tmp_path / "out.svg")
    process = run(path, "--plot", tmp_path / "out.svg", "--json", tmp_path / "out.json")
    assert isinstance(process.exception, MoeparityError)
    assert "15 tokens of 3 sequences" in process.output
    assert json.loads((tmp_path / "out.json").read_text())["tokens"] == 15


def test_a_picture_that_cannot_be_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    for repeats in ([], ["--repeats"]):
        process = run(tmp_path / "none.jsonl", tmp_path / "none.jsonl", "--plot", tmp_path / "out.gif", *repeats)
        assert "a picture ends in one of" in str(process.exception)


def test_two_files_are_joined(log: Path, tmp_path: Path) -> None:
    sequences = records(30, 20, 0.02)
    alone = write(tmp_path / "rollout.jsonl", sequences, trainer=False)
    process = run(alone, "--trainer", log)
    assert process.exit_code == 0, process.output
    assert isinstance(run(alone).exception, MoeparityError)


def test_runs_of_one_batch_are_told_apart(log: Path, tmp_path: Path) -> None:
    spiked = records(30, 20, 0.02)
    values = spiked[4].trainer.clone()
    values[7] -= 5
    spiked[4] = replace(spiked[4], trainer=values)
    second_log = write(tmp_path / "again.jsonl", spiked)
    third = write(tmp_path / "third.jsonl", records(30, 20, 0.02))
    process = run("--repeats", log, second_log, third, "--json", tmp_path / "out.json", "--plot", tmp_path / "runs.svg")
    assert process.exit_code == 0, process.output
    assert "k3 of one batch in 3 runs" in process.output
    assert f"1 of 3 runs with a spike: {second_log}" in " ".join(process.output.split())
    report = json.loads((tmp_path / "out.json").read_text())
    k3, _ = report["metrics"]
    assert k3["values"][0] == k3["values"][2] == k3["least"] < k3["values"][1] == k3["greatest"]
    assert [each["id"] for each in k3["unsteady"]] == [spiked[4].id]
    assert (tmp_path / "runs.svg").read_text().startswith("<?xml")
    for wrong, says in ((("--gate", "k3<1"), "--gate is for one log"), ((), "one run; at least 2 runs")):
        assert says in str(run("--repeats", log, *wrong).exception)


def write_check(folder: Path, expect: str, *, gate: str = "{metric: k3, below: 1e-3}") -> Path:
    path = folder / "check.yaml"
    path.write_text(f"kind: log\nfiles: ['lo*.jsonl']\ngate: {gate}\n{expect}\n")
    return path


@pytest.mark.parametrize(
    ("expect", "code"),
    [
        ("", 0),
        ("expect: {metrics: {token_mult_prob_error: {below: 1.05}, verl/k3_kl: {below: 1e-3}}}", 0),
        ("expect: {metrics: {max_abs_delta: {below: 1e-3}}}", 1),
        ("expect: {metrics: {entropy: {above: 0}}}", 1),
        ("expect: {verdict: fail}", 1),
        ("expect: {causes: none}", 0),
        ("expect: {causes: [misaligned]}", 1),
        ("expect: {interval: {below: 1e-3}}", 0),
        ("expect: {interval: {below: 2e-4}}", 3),
        ("expect: {steps: {below: 1e-3, count: 3}}", 3),
        ("expect: {steps: {below: 1e-3, count: 1}}", 2),
        ("expect: {noise: nowhere.json}", 2),
        ("expect: {metrics: {k4: {below: 1}}}", 2),
        ("expect: {metrics: {}}", 2),
        ("expects: {}", 2),
        ("expect: {causes: [misalignd]}", 2),
    ],
)
def test_a_log_is_checked_as_a_recipe_is(log: Path, expect: str, code: int) -> None:
    process = check(write_check(log.parent, expect))
    assert process.exit_code == code, (process.error, process.findings)


@pytest.mark.parametrize(
    ("expect", "code"),
    [
        ("{below: 1e-2, count: 3}", 0),
        ("{below: 1e-2, count: 4}", 3),
        ("{below: 1e-5, count: 3}", 1),
        ("{metric: mean_abs_delta, below: 1.0, count: 2}", 0),
    ],
)
def test_every_step_is_held_to_a_bound(tmp_path: Path, expect: str, code: int) -> None:
    of_steps = [replace(each, step=number % 3) for number, each in enumerate(records(30, 60, 0.02))]
    write(tmp_path / "log.jsonl", of_steps)
    process = check(write_check(tmp_path, f"expect: {{steps: {expect}}}"))
    assert process.exit_code == code, (process.error, process.findings)


@pytest.mark.parametrize(("bound", "code"), [(0.5, 0), (1e-6, 1)])
def test_a_log_is_held_to_the_noise_of_an_examination(log: Path, bound: float, code: int) -> None:
    noise = {"level": 0.99, "statistics": [{"name": "mean_abs_delta", "bound": bound}]}
    (log.parent / "noise.json").write_text(json.dumps({"schema": "moeparity.examination/1", "noise": noise}))
    process = check(write_check(log.parent, "expect: {noise: noise.json}"))
    assert process.exit_code == code, (process.error, process.findings)


@pytest.mark.parametrize(("bound", "sides", "code"), [(0.5, 2, 0), (0.1, 2, 1), (0.5, 1, 3)])
def test_flipped_routes_are_held_to_the_noise_of_an_examination(
    tmp_path: Path, bound: float, sides: int, code: int
) -> None:
    """A third of the tokens, or unknown where one side's routes are not in the log."""
    of_sampler = [[[0, 1]], [[2, 3]], [[0, 3]], [[1, 2]]]
    of_trainer = [[[0, 1]], [[2, 1]], [[3, 0]], [[1, 0]]]
    rows = []
    for number in range(30):
        row = {"id": str(number), "input_ids": [1, 2, 3, 4], "mask": [0, 1, 1, 1], "routed_experts": of_sampler}
        row |= {"logprobs": [None, -1.0, -1.1, -1.2], "trainer_logprobs": [None, -1.0, -1.1, -1.2]}
        rows.append(row | ({"trainer_routed_experts": of_trainer} if sides > 1 else {}))
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    noise = {"level": 0.99, "statistics": [{"name": "flipped", "bound": bound}]}
    (tmp_path / "noise.json").write_text(json.dumps({"schema": "moeparity.examination/1", "noise": noise}))
    process = check(write_check(tmp_path, "expect: {noise: noise.json}"))
    assert process.exit_code == code, (process.error, process.findings)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no JSON"),
        ('{"schema": "moeparity.metrics/1"}', "is no examination"),
        ('{"schema": "moeparity.examination/1", "noise": null}', "has no bounds"),
        ('{"schema": "moeparity.examination/1", "noise": {}}', "is damaged"),
        ('{"schema": "moeparity.examination/1", "noise": {"statistics": [{"name": "k3"}]}}', "is damaged"),
        ("[" * 200_000, "is no JSON"),
    ],
)
def test_what_has_no_noise_is_refused(log: Path, text: str, says: str) -> None:
    (log.parent / "noise.json").write_text(text)
    process = check(write_check(log.parent, "expect: {noise: noise.json}"))
    assert (process.exit_code, says in str(process.error)) == (2, True)


def test_a_folder_is_no_examination(log: Path) -> None:
    (log.parent / "folder.json").mkdir()
    process = check(write_check(log.parent, "expect: {noise: folder.json}"))
    assert (process.exit_code, "cannot be read" in str(process.error)) == (2, True)


def test_a_cause_that_is_named_is_found(tmp_path: Path) -> None:
    shifted = [replace(each, trainer=present(each.trainer).roll(1)) for each in records(40, 60, 0.02)]
    write(tmp_path / "log.jsonl", shifted)
    assert check(write_check(tmp_path, "expect: {causes: [misaligned]}")).exit_code == 0
    assert check(write_check(tmp_path, "expect: {causes: none}")).exit_code == 1


def test_every_cause_that_a_diagnosis_may_name_is_known(log: Path) -> None:
    findings = json.loads(measure_files([log], MetricsRequest()).to_json())["diagnosis"]["findings"]
    assert {finding["name"] for finding in findings} - {"heavy tail", "clip fraction"} <= set(CAUSES)
    process = check(write_check(log.parent, "expect: {causes: [misalignd]}"))
    assert "Did you mean 'misaligned'" in str(process.error)


def test_a_check_names_its_files_wrongly(tmp_path: Path) -> None:
    process = check(write_check(tmp_path, ""))
    assert process.exit_code == 2
    assert "there is no file 'lo*.jsonl'" in str(process.error)
    assert str(Where(tmp_path / "check.yaml")) in str(process.error)


def test_a_narrow_terminal_keeps_the_names_of_groups_and_whole_numbers() -> None:
    report = measure(records(30, 60, 0.02), MetricsRequest(by=("position",)))
    table = printed(document(report, "log.jsonl"), 80).partition("By position")[2].partition("Sequences farthest")[0]
    assert "…" not in table
    assert "\n  0  " in table
