"""Reports by hand for the sections on noise, and on what an engine recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from moeparity.bisection.arrival.data import Arrival
from moeparity.bisection.arrival.show import arrival_reading
from moeparity.bisection.envelope.data import Envelope, EnvelopedNode, EnvelopeVerdict, OrderBand
from moeparity.bisection.envelope.show import envelope_reading
from moeparity.bisection.floor.data import Floor, FloorTrial
from moeparity.bisection.floor.show import floor_reading
from moeparity.bisection.oracle.data import Distance, Oracle, OracleNode, Standing
from moeparity.bisection.oracle.show import accuracy_reading
from moeparity.bisection.real_ranks.data import RealRanks, SideOnRanks, Site
from moeparity.bisection.real_ranks.show import real_ranks_reading
from moeparity.bisection.record.data import (
    LogprobRecord,
    OtherRecord,
    Record,
    Recorded,
    RecordedLogprobs,
    RecordedRoutes,
    RouteRecord,
)
from moeparity.bisection.record.show import record_reading
from moeparity.bisection.report import Report
from moeparity.bisection.rewards.data import Rewards
from moeparity.bisection.schedule.data import Schedule, Steps
from moeparity.bisection.schedule.show import schedule_reading, steps_reading
from moeparity.bisection.spikes.data import (
    CAUSES,
    NOT_TOLD,
    NOT_TRIED,
    ONE_FLIP,
    UNLIKELY,
    Cause,
    Shared,
    Spikes,
    SpikingDraw,
    SpikingToken,
)
from moeparity.bisection.spikes.show import reading
from moeparity.metrics.verdict import Interval
from tests.bisection.floor.test_show import interval, trial
from tests.bisection.record.records import GROWTH, LAYERS, NEAR, OFF, POWER, RIVAL, ROUTES, of
from tests.bisection.reports import REPORT
from tests.bisection.test_screen import VERDICT

BAND = OrderBand(elements=1000, differing=100, outside=0, furthest=0.0, draws_outside=3, varying=400)


def banded(
    name: str, verdict: EnvelopeVerdict, *, root: bool = False, outside: int = 0, reason: str = ""
) -> EnvelopedNode:
    band = None if reason else replace(BAND, outside=outside, furthest=2.5 * bool(outside))
    return EnvelopedNode(
        node=name,
        op=name.rpartition(".")[2],
        root=root,
        verdict=verdict,
        tokens=11,
        reference=band,
        candidate=None,
        not_drawn=reason or None,
    )


def enveloped(*nodes: EnvelopedNode) -> Report:
    return replace(REPORT, envelope=Envelope(draws=7, nodes=nodes, reading=tuple(envelope_reading(nodes, 7))))


ENVELOPES = {
    "every verdict, the first is outside": enveloped(
        banded("layers[0].moe.gate", "outside", root=True, outside=25),
        banded("layers[1].moe.gate", "outside", outside=5),
        banded("layers[0].moe.combine", "inside"),
        banded("layers[0].moe.experts", "one_sided"),
        banded("layers[0].moe.router", "not_drawn", reason="it adds nothing up"),
    ),
    "all inside": enveloped(banded("layers[0].moe.gate", "inside")),
    "none drawn": enveloped(banded("layers[0].moe.router", "not_drawn", reason="it adds nothing up")),
    "the first is inside one way": enveloped(banded("norm", "one_sided", root=True)),
    "no node differs": enveloped(),
}
DRAWS = [1.11e-3, 2.22e-3]
ARRIVALS = {
    "both sides": replace(
        REPORT,
        arrival=Arrival(draws=(), disputed=True, reading=tuple(arrival_reading(DRAWS, DRAWS, "k3"))),
    )
}

SPIKING = SpikingToken(
    sequence=7,
    token=22,
    token_id=100,
    log_p=-4.55,
    label="answer",
    draws=3,
    highest=1.25,
    median=1.125,
    causes={ONE_FLIP: 2, UNLIKELY: 1},
    flips=3,
    layer=3,
    margin=65536.0,
    margin_rank=0.02,
)
COUNTS = {ONE_FLIP: 2, UNLIKELY: 2, NOT_TRIED: 1, NOT_TOLD: 1}


def spiked(*tokens: SpikingToken, counts: Mapping[str, int], rate: Interval) -> Report:
    of_draws = (1.0093, 1.176, 1), (1.0713, 9.5, 3)
    spikes = Spikes(
        above=1.1,
        alarm=1.05,
        scored=288,
        draws=tuple(
            SpikingDraw(draw=draw, mean=mean, highest_sequence=mean + 0.1, highest=highest, spikes=number, carried=0.4)
            for draw, (mean, highest, number) in enumerate(of_draws)
        ),
        median=1.0403,
        draws_above=0.5,
        rate=rate,
        tokens=3 if tokens else 0,
        always=1 if tokens else 0,
        spikes=sum(counts.values()),
        causes=tuple(Cause(name=name, spikes=counts.get(name, 0), tokens=counts.get(name, 0)) for name in CAUSES),
        shared=(
            Shared(name="P(token) below 0.1", of_spikes=0.6, of_all=0.17),
            Shared(name="own route differs in some layer", of_spikes=math.nan, of_all=0.09),
        ),
        listed=tokens,
        reading=(),
    )
    return replace(REPORT, spikes=replace(spikes, reading=tuple(reading(spikes))))


FEW = Interval(estimate=0.00868, low=-math.inf, high=0.01, level=0.95, method="bootstrap-t")
SPIKES = {
    "several causes": spiked(
        SPIKING,
        replace(SPIKING, token=24, label="", draws=1, causes={NOT_TRIED: 1}, layer=None, margin=math.nan),
        counts=COUNTS,
        rate=replace(FEW, low=0.005),
    ),
    "few draws, one cause": spiked(replace(SPIKING, label=""), counts={UNLIKELY: 4}, rate=FEW),
    "no token spikes": spiked(counts={}, rate=replace(FEW, estimate=0.0, low=0.0, high=0.0, method="exact")),
}


def floored(*trials: FloorTrial, value: float = 1e-3, gate: float = 1e-2) -> Report:
    reading = tuple(floor_reading(trials, metric="k3", value=value, gate=gate))
    return replace(REPORT, floor=Floor(trials=trials, largest=0.0, bit_identical=False, ratio=None, reading=reading))


SAME = trial("micro-batch 1", 0.0, bit_identical=True, flips=0.0)
SMALL = trial("orders drawn with seed 0", 1.44e-4, bit_identical=False, flips=0.013)
LARGE = trial("orders drawn with seed 1", 2e-3, bit_identical=False, flips=None)
FLOORS = {
    "well above the floor": floored(SAME, SMALL),
    "at the floor, the gate below it": floored(SAME, SMALL, value=2e-4, gate=1e-4),
    "within the floor": floored(SMALL, LARGE),
    "bit-identical": floored(SAME, replace(SAME, name="micro-batch 4")),
    "bits differ, the metric does not": floored(replace(SMALL, value=interval(0.0))),
    "nothing to try": floored(),
}
PREFILL = Steps(phase="prefill", steps=1, least_rows=90, most_rows=90, least_head_rows=4, most_head_rows=4)
DECODE = Steps(phase="decode", steps=1200, least_rows=1, most_rows=8, least_head_rows=1, most_head_rows=8)
ONE, TWO = {"lm_head": 1}, {"linear": 8, "gate": 1}


def scheduled(
    reference: Mapping[str, int], candidate: Mapping[str, int], *mixing: str, differs: bool = True, steps: bool = False
) -> Report:
    reading = schedule_reading(reference, candidate, differs=differs, mixing=mixing)
    reading += [steps_reading("candidate", (PREFILL, DECODE))] if steps else []
    fields = {"reference": reference, "candidate": candidate, "reference_steps": (), "candidate_steps": ()}
    return replace(REPORT, schedule=Schedule(**fields, reading=tuple(reading)))  # type: ignore[arg-type]


SCHEDULES = {
    "two ops on both sides, steps": scheduled(TWO, TWO, steps=True),
    "one op in the reference alone": scheduled(ONE, {}),
    "on each side another op": scheduled(ONE, TWO),
    "none on either side": scheduled({}, {}, differs=False),
    "none on either side, other schedules": scheduled({}, {}),
    "packs that are not kept apart": scheduled({}, ONE, "reference"),
    "packs that are not kept apart, an op of the other side": scheduled(TWO, {}, "candidate"),
    "packs that are not kept apart, no op": scheduled({}, {}, "candidate"),
}


def site(node: str, differing: int, **fields: tuple[str, ...]) -> Site:
    return Site(
        node=node,
        order="sequential",
        call="all_reduce",
        ranks=2,
        dtype="bf16",
        messages=11,
        least_elements=64,
        most_elements=2048 if differing else 64,
        differing=differing,
        **fields,
    )


def on_ranks(side: str, *sites: Site, unequal: tuple[str, ...] = (), ranks: int = 2) -> SideOnRanks:
    return SideOnRanks(side=side, ranks=ranks, nodes=77, unequal=unequal, sites=sites)


LIKE_RANKS = RealRanks(
    backend="gloo", processes=1, sides=(on_ranks("reference", site("layers[*].moe.reduce", 0), ranks=1),)
)
UNLIKE_RANKS = RealRanks(
    backend="gloo",
    processes=4,
    sides=(
        on_ranks(
            "reference",
            site("layers[*].moe.reduce", 5),
            site("layers[*].attention.o_reduce", 1),
            site("layers[*].mlp.reduce", 1, orders=("ring", "tree", "pairs", "halves", "naive")),
            site("lm_head", 11, probed=("ring", "tree")),
            unequal=("layers[0].moe.reduce", "lm_head"),
        ),
        on_ranks("candidate", site("layers[*].moe.reduce", 0), unequal=("layers[0].moe.gate",)),
    ),
)
UNSEEN_RANKS = replace(UNLIKE_RANKS, sides=(on_ranks("candidate", site("layers[*].moe.reduce", 1)),))
RANKS = {
    name: replace(REPORT, real_ranks=replace(job, reading=real_ranks_reading(job)))
    for name, job in {
        "as simulated": LIKE_RANKS,
        "other sums, and other values without them": UNLIKE_RANKS,
        "other sums that no value shows": UNSEEN_RANKS,
    }.items()
}


NONE = Distance(relative_l2=0.0, max_abs=0.0)


def near_to_truth(standing: Standing, status: str = "fail", ratio: float = 0.62) -> Report:
    sizes = (Distance(relative_l2=size, max_abs=size) for size in (6.14e-3, 6.14e-3 * ratio))
    reference, candidate = sizes
    layer = OracleNode(
        node="layers[0].moe.residual", op="add", layer=0, reference=reference, candidate=candidate, ratio=ratio
    )
    return replace(
        REPORT,
        oracle=Oracle(
            kl_reference=interval(3e-4),
            kl_candidate=interval(1e-4),
            kl_change=interval(-2e-4),
            standing=standing,
            reading=accuracy_reading(
                standing, status, ratio=ratio, reference=3e-4, candidate=1e-4, change=(-3e-4, -1e-4)
            ),
            layers=(
                replace(layer, node="embed", reference=NONE, ratio=math.inf),
                layer,
                replace(layer, node="lm_head"),
            ),
            nodes=(layer,),
        ),
    )


ORACLES = {
    "nearer, fail": near_to_truth("nearer"),
    "nearer, inconclusive": near_to_truth("nearer", "inconclusive"),
    "nearer, pass, though the logits say otherwise": near_to_truth("nearer", "pass", 1.1),
    "farther": near_to_truth("farther", ratio=1.7),
    "farther, though the logits say otherwise": near_to_truth("farther", ratio=0.9),
    "undecided": near_to_truth("undecided"),
    "level": near_to_truth("level", "pass", 1.0),
}


def recording(logprobs: LogprobRecord | None, routes: RouteRecord | None = None, **fields: object) -> Report:
    record: Record = of(logprobs, routes, **fields)
    return replace(REPORT, record=replace(record, reading=tuple(record_reading(record))))


ELSEWHERE = replace(ROUTES, layers=tuple(replace(layer, reproduced=False) for layer in LAYERS))
ALIKE = replace(ROUTES, reproduced=True, layers=LAYERS[1:2])
LONE_TOKEN = replace(OFF, outside_tokens=1, outside_sequences=1, before=0, sequences=1, floor=0.0)
RECORDS = {
    "no record": REPORT,
    "not reproduced, the other side has it, pads, a cause": recording(OFF, rival=RIVAL, pads=1, causes=(POWER, GROWTH)),
    "not reproduced, nothing is known": recording(OFF),
    "neither log-probabilities nor routes": recording(OFF, ELSEWHERE),
    "routes alone, in some layers": recording(NEAR, ROUTES),
    "from the first position on, no draw": recording(replace(LONE_TOKEN, floor_trial=None)),
    "from the first position on, every draw the same": recording(LONE_TOKEN, pads=2),
    "reproduced": recording(NEAR),
    "reproduced, no floor": recording(replace(NEAR, floor=0.0)),
    "log-probabilities and routes reproduced, gate failed": recording(NEAR, ALIKE, gate=VERDICT),
}


def by_trainer(recorded: Report, tokens: int) -> Report:
    """What the other engine recorded of the tokens, as the reference's."""
    record = replace(recorded.record, side="reference")
    record = replace(record, reading=tuple(record_reading(record)))
    return replace(REPORT, other_record=OtherRecord(record=record, tokens=tokens, mean_abs_delta=0.0125, k3=3e-4))


OTHER_RECORDS = {
    "reproduced, and both engines recorded": by_trainer(recording(NEAR), 210),
    "not reproduced, one token of both": by_trainer(recording(OFF), 1),
    "reproduced, and the sampler recorded nothing": by_trainer(recording(NEAR), 0),
}
SIDES = [
    RecordedLogprobs(side=s, tokens=200, mean_abs_delta=0.0123, max_abs_delta=1.25, k3=4.4e-5)
    for s in ("reference", "candidate")
]
BESIDE = {
    "log-probabilities and routes": replace(
        REPORT,
        recorded=Recorded(
            logprobs=tuple(SIDES), routes=(RecordedRoutes(side="reference", token_layers=400, same_sets=333),)
        ),
    ),
    "a record of nothing that counts": replace(REPORT, recorded=Recorded(logprobs=(), routes=())),
    "no record": REPORT,
}
APART = Rewards(
    pairs=200,
    reference=Interval(estimate=0.1986, low=0.1498, high=0.2814, level=0.95, method="bootstrap-t"),
    candidate=Interval(estimate=0.1989, low=0.1492, high=0.2815, level=0.95, method="bootstrap-t"),
    change=Interval(estimate=3.1e-4, low=-1.4e-3, high=2.6e-3, level=0.95, method="bootstrap-t"),
    reference_accuracy=0.92,
    candidate_accuracy=0.915,
    turned=2,
    largest=0.12,
    tied=1,
)
EQUAL = replace(
    APART,
    candidate=APART.reference,
    change=Interval(estimate=0.0, low=0.0, high=0.0, level=0.95, method="exact"),
    candidate_accuracy=0.92,
    turned=0,
    largest=0.0,
    tied=0,
)
LOSSES = {
    "losses apart": replace(REPORT, rewards=APART),
    "equal losses": replace(REPORT, rewards=EQUAL),
    "a language model": REPORT,
}
REPORTS: Mapping[str, Mapping[str, Report]] = {
    "rewards.show": LOSSES,
    "envelope.show": ENVELOPES,
    "arrival.show": ARRIVALS,
    "spikes.show": SPIKES,
    "floor.show": FLOORS,
    "schedule.show": SCHEDULES,
    "real_ranks.show": RANKS,
    "oracle.show": ORACLES,
    "record.show": RECORDS,
    "record.show_other": OTHER_RECORDS,
    "record.show_recorded": BESIDE,
}
