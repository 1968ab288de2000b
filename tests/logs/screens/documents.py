"""Reports of logs by hand: the verdict, a diagnosis of every tier, metrics, groups, series; and runs of one batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from moeparity.logs.diagnosis.finding import Diagnosis, Evidence, Finding
from moeparity.logs.repeats import RepeatedRuns
from moeparity.logs.report import (
    LogFile,
    LogGroup,
    LogGrouping,
    LogMetric,
    LogPlots,
    LogReport,
    Outlier,
    SequenceMean,
)
from moeparity.logs.series.data import Carrier, Point, Series, SpikeAt, Summary, Trend
from moeparity.logs.series.repeated_batch import Repeats, Unsteady
from moeparity.logs.show import document, document_of_runs
from moeparity.metrics.verdict import Interval, Verdict
from tests.screens import Screens

VALUE = Interval(estimate=1.11e-3, low=1e-3, high=1.22e-3, level=0.95, method="bootstrap-t")
K3 = LogMetric(
    name="k3",
    set="common",
    value=VALUE,
    unit="nats",
    reduce="token",
    formula="rho - 1 - delta",
    estimates="KL(sampler || trainer); never below 0",
    clamp="none",
    source="a source",
    healthy="below 1e-3",
    alarm="above 0.01",
    alarmed=False,
)
RATIO = replace(
    K3, name="mean_ratio", value=replace(VALUE, estimate=0.98765, low=-math.inf, high=0.99), clamp="at 10", alarmed=True
)
LEAST = replace(K3, name="f2", value=replace(VALUE, high=math.inf))
NONE = replace(K3, name="chi2", value=replace(VALUE, low=-math.inf, high=math.inf))
MISSING = replace(K3, name="entropy", missing="the log holds no entropies")
OWN_SET = replace(K3, name="mismatch_kl", set="verl")
GATED = Verdict(
    status="fail",
    reason="the 95% interval lies above the gate",
    metric="k3",
    reduce="token",
    below=1e-4,
    value=VALUE,
)
PLAIN = LogReport(
    files=(LogFile(path="log.jsonl", format="verl"),),
    sequences=1,
    tokens=1,
    left_out=(),
    infinite=0,
    overflowing=0,
    verdict=None,
    primary=("k3",),
    metrics=(K3,),
)
TEMPERATURE = Finding(
    tier="semantics",
    name="temperature",
    verdict="named",
    reason="The sampler's log-probabilities are to a power.",
    evidence=(
        Evidence(name="slope", value=0.7, low=0.65, high=0.75, level=0.99),
        Evidence(name="E[rho]", value=1.00197, low=-math.inf, high=math.inf, unit="nats"),
        Evidence(name="tokens", value=111.0),
    ),
    advice="Set it.",
    alternatives=("top-p", "top-k"),
    tells_apart="whole distributions",
)
DIAGNOSIS = Diagnosis(
    sequences=33,
    tokens=3333,
    stale=44,
    unsaid=55,
    declared=("temperature 0.7",),
    findings=(
        Finding(tier="staleness", name="weight version", verdict="ruled out", reason="All are of one version."),
        TEMPERATURE,
        replace(TEMPERATURE, name="truncation", verdict="undecided", evidence=TEMPERATURE.evidence[:1]),
        replace(TEMPERATURE, name="penalty", verdict="not tested"),
        Finding(tier="inference path", name="growth with position", verdict="described", reason="It grows."),
        Finding(tier="objective", name="E[rho]", verdict="ruled out", reason="It is 1."),
    ),
    next=("Set the temperature.", "Then look again."),
)
VALUES = {"mean_abs_delta": 0.0111, "max_abs_delta": 1.25, "mean_ratio": 1.01, "f2": 0.98}
GROUPS = tuple(LogGroup(name=str(i), sequences=11, tokens=111, k3=VALUE, values=VALUES) for i in range(22))
STEPS = tuple(
    Point(step=10 * i, value=1e-3 * i, tokens=111, sequences=11, carriers=(Carrier(id="a", share=0.75),) * (i == 3))
    for i in range(1, 5)
)
RISING = Summary(
    series=Series(metric="k3", unit="nats", points=STEPS, alarm=2.5e-3),
    tau=7.0,
    smoothed=(1e-3, 1.5e-3, 2e-3, 2.5e-3),
    trend=Trend(slope=0.01, p=1e-20, points=4, log=True),
    spikes=(SpikeAt(point=STEPS[2], distance=7.7), SpikeAt(point=STEPS[3], distance=6.6)),
)
LEVEL = replace(
    RISING,
    series=replace(RISING.series, metric="mean_ratio", unit="1", alarm=None),
    trend=Trend(slope=-1e-5, p=0.5, points=4, log=False),
    spikes=RISING.spikes[:1],
)
FALLING = replace(LEVEL, trend=Trend(slope=-1e-3, p=0.001, points=4, log=False), spikes=())
SHORT = replace(LEVEL, trend=Trend(slope=math.nan, p=math.nan, points=3, log=False), spikes=())
NOT_FINITE = replace(
    RISING, series=replace(RISING.series, points=(replace(STEPS[0], value=math.nan),)), smoothed=(0.0,)
)
FULL = replace(
    PLAIN,
    files=tuple(LogFile(path=f"log{i}.jsonl", format="verl", note="no such file was at hand") for i in range(8)),
    sequences=33,
    tokens=3333,
    left_out=("7 tokens without a sampler's log-probability", "1 sequence without tokens"),
    infinite=1,
    overflowing=2,
    verdict=GATED,
    primary=("k3", "mean_ratio", "f2", "chi2", "entropy"),
    metrics=(K3, RATIO, LEAST, NONE, MISSING, OWN_SET),
    groupings=(
        LogGrouping(by="weight_version", groups=GROUPS[:2], unknown=1),
        LogGrouping(by="position", groups=GROUPS, unknown=0),
        LogGrouping(by="source", groups=(), unknown=3333),
    ),
    outliers=(Outlier(id="a", where="log0.jsonl:7", tokens=11, mean_abs_delta=0.222, k3=0.0333),),
    series=(RISING, LEVEL, FALLING, SHORT, NOT_FINITE),
    diagnosis=DIAGNOSIS,
    plots=LogPlots(
        metric="k3",
        unit="nats",
        sequences=(SequenceMean(id="a", tokens=11, value=0.0333),),
        positions=LogGrouping(by="position", groups=GROUPS[:1], unknown=0),
    ),
)
UNSTEADY = Unsteady(id="a", values=(1e-4, 0.0333), spikes=1)
REPEATS = Repeats(
    metric="k3",
    names=("run1.jsonl", "run2.jsonl"),
    values=(1e-4, 2.2e-3),
    least=1e-4,
    median=1.15e-3,
    greatest=2.2e-3,
    spiking=(1,),
    alarms=1,
    unsteady=(UNSTEADY,),
)
STEADY = replace(REPEATS, metric="mean_ratio", spiking=(), alarms=None, unsteady=())
METRICS: Screens = {
    "one token, no gate": document(PLAIN, "log.jsonl"),
    "all that may be there": document(FULL, "logs", ["verl"]),
    "a clean diagnosis": document(
        replace(
            PLAIN,
            diagnosis=replace(
                DIAGNOSIS, stale=0, unsaid=0, declared=(), findings=DIAGNOSIS.findings[:1], next=("Stop.",)
            ),
        ),
        "log.jsonl",
    ),
}
DOCUMENTS: Mapping[str, Screens] = {
    "metrics": METRICS,
    "repeats": {
        "a metric that spikes, and one that does not": document_of_runs(RepeatedRuns(metrics=(REPEATS, STEADY)), "runs")
    },
}
