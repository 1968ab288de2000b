"""Whether the side that stands for the engine reproduces what the engine recorded of the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.floor.measure import floor_sides
from moeparity.bisection.floor.show import AT_THE_FLOOR
from moeparity.bisection.record.compare import Compared, excess
from moeparity.bisection.record.data import (
    LayerRecord,
    LikelyCause,
    LogprobRecord,
    OtherRecord,
    Record,
    Recorded,
    RecordedLogprobs,
    RecordedRoutes,
    RecordedToken,
    Recording,
    RouteRecord,
    Status,
)
from moeparity.bisection.record.last_digit import half_units
from moeparity.bisection.record.observe import RECORDED, RECORDED_BY_OTHER, Records, recorder
from moeparity.bisection.record.show import record_reading
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trial, TrialKey, TrialKind, Trials
from moeparity.engine.walker import WalkerName
from moeparity.errors import Where
from moeparity.logs.diagnosis import Observer
from moeparity.logs.diagnosis.finding import Finding
from moeparity.metrics.chunk import Chunk
from moeparity.metrics.interval import sequence_mean, token_mean
from moeparity.metrics.quantities import k3
from moeparity.metrics.verdict import Gate, Verdict, judge
from moeparity.plan.sides import CANDIDATE, REFERENCE

_POWERS = {"temperature": 1.0, "raw log-probs (temperature)": -1.0}
"""By name of a finding: the exponent p. Setting the side's temperature to (the finding's T) ** p gives the record."""
_FOR_THE_CAUSE_NAMED = "E[rho]"
_OF_SAMPLED = frozenset({"truncation", "raw log-probs (truncation)", _FOR_THE_CAUSE_NAMED})
"""Findings that rest on the tokens having been sampled by the record's engine."""


def causes(records: Records, path: Path, *, sampled: bool) -> tuple[LikelyCause, ...]:
    """The causes that the diagnosis of logs names if the record is taken as a log's rollout and the side as its
    trainer.

    `path` is the token file. sampled: the record's engine sampled the tokens. () if the log-probabilities of the side
    are not finite.
    """
    if not bool(records.delta(records.recorder).isfinite().all()):
        return ()
    observer = Observer()
    observer.add(_chunk(records, path))
    certain = [
        finding
        for finding in observer.diagnosis().findings
        if finding.verdict == "named" and (sampled or finding.name not in _OF_SAMPLED)
    ]
    others = [finding for finding in certain if finding.name != _FOR_THE_CAUSE_NAMED]
    return tuple(
        LikelyCause(
            name=finding.name,
            meaning=finding.tier == "semantics",
            reason=finding.reason,
            advice=_advice(finding, records.recorder),
        )
        for finding in others or certain
    )


def _chunk(records: Records, path: Path) -> Chunk:
    """The tokens that have a record, as tokens of a log."""
    assert records.logprobs is not None
    mask = records.mask.cpu()
    sequence, column = mask.nonzero(as_tuple=True)
    return Chunk(
        rollout=records.logprobs.cpu()[mask],
        trainer=records.of(records.recorder),
        sequence=sequence,
        position=column,
        tokens=records.input_ids.cpu()[mask],
        ids=tuple(str(row) for row in range(len(mask))),
        where=(Where(path),) * len(mask),
    )


def _advice(finding: Finding, side: str) -> str:
    """What to try next, as a key of a recipe if there is one for it."""
    power = _POWERS.get(finding.name)
    if power is None or not finding.evidence:
        return finding.advice
    value = finding.evidence[0].value ** power
    return f'`set: {{"log_probs:temperature": {value:.2g}}}` on the {side} (docs/log-probs.md). {finding.advice}'


def trials(study: Study, trials: Trials) -> Trials:
    """The side that sampled in other micro-batches and with drawn orders, whatever `floor:` says; none if its engine
    recorded nothing.
    """
    tokens = study.tokens
    return {} if tokens.logprobs is None and tokens.routed_experts is None else _draws(study, "record")


def other_trials(study: Study, trials: Trials) -> Trials:
    """The same of the other side, if its engine left a record."""
    return {} if study.tokens.trainer_logprobs is None else _draws(study, "other record")


def _draws(study: Study, kind: TrialKind) -> Trials:
    name = recorder(study, kind)
    # A trace is no side that could be run anew.
    if study.recorded is not None and name == CANDIDATE:
        return {}
    sides = floor_sides(study.sides[name], study.grid, Where(study.path))
    return {TrialKey(kind, of): Trial(side=draw, base=name) for of, draw in sides.items()}


def measure(of: Context) -> Recording:
    """The verdict on the record, and how both sides compare with it."""
    records = of.observed.of_watch(RECORDED)
    sides = None if records is None else recorded(records)
    return Recording(record=_record(of.study, "record", records, sides), recorded=sides)


def measure_other(of: Context) -> OtherRecord | None:
    """The verdict on the record of the engine that did not sample, and how far both records lie apart."""
    records = of.observed.of_watch(RECORDED_BY_OTHER)
    if records is None:
        return None
    tokens = of.study.tokens
    assert tokens.trainer_logprobs is not None
    with_both = tokens.recorded & tokens.recorded_by_trainer
    delta = torch.empty(0, dtype=torch.float64)
    if tokens.logprobs is not None:
        delta = tokens.trainer_logprobs[with_both] - tokens.logprobs[with_both]
    return OtherRecord(
        record=_record(of.study, "other record", records, recorded(records)),
        tokens=len(delta),
        mean_abs_delta=float(delta.abs().mean()),
        k3=float(k3(delta).mean()),
    )


def recorded(records: Records) -> Recorded:
    """The recorded data against both sides."""
    deltas = {side: records.delta(side) for side in (REFERENCE, CANDIDATE)}
    routes = {side: _other_sets(records, side) for side in (REFERENCE, CANDIDATE)}
    return Recorded(
        logprobs=tuple(
            RecordedLogprobs(
                side=side,
                tokens=len(delta),
                mean_abs_delta=float(delta.abs().mean()),
                max_abs_delta=float(delta.abs().max()),
                k3=float(k3(delta).mean()),
            )
            for side, delta in deltas.items()
            if len(delta)
        ),
        routes=tuple(
            RecordedRoutes(side=side, token_layers=total, same_sets=total - int(others.sum()))
            for side, others in routes.items()
            if (total := sum(int(records.routed[layer].sum()) for layer in _layers(records, side)))
        ),
    )


def _record(study: Study, kind: TrialKind, records: Records | None, sides: Recorded | None) -> Record:
    side = recorder(study, kind)
    logprobs = routes = gate = None
    if records is not None and bool(records.mask.any()):
        logprobs = _logprobs(study, records)
        gate = _gate(study.record_gate if kind == "record" else None, records)
    if records is not None and any(bool(records.routed[layer].any()) for layer in _layers(records, side)):
        routes = _routes(records)
    verdicts = [part.reproduced for part in (logprobs, routes) if part is not None]
    status: Status = "no record" if not verdicts else "reproduced" if all(verdicts) else "not reproduced"
    record = Record(status=status, side=side, logprobs=logprobs, routes=routes, gate=gate)
    if records is not None and sides is not None and logprobs is not None and not logprobs.reproduced:
        likely = causes(records, Path(study.recipe.tokens.file), sampled=kind == "record")
        record = replace(record, causes=likely, rival=_rival(side, logprobs, sides), pads=_pads(study, side))
    return replace(record, reading=tuple(record_reading(record)))


def _pads(study: Study, name: str) -> int:
    """How many pads the record's side computes besides the tokens; none in a server's steps, packs and recorded
    schedules.
    """
    side = study.sides[name]
    dense = not side.schedule.is_flat and side.schedule.pack is None and side.schedule.recorded is None
    return study.tokens.pads if dense else 0


def _rival(side: str, record: LogprobRecord, sides: Recorded) -> RecordedLogprobs | None:
    """The other side, if it lies at the record that `side` does not reproduce; else None."""
    allowed = AT_THE_FLOOR * record.floor + record.half_unit
    rivals = (logprobs for logprobs in sides.logprobs if logprobs.side != side)
    return next((logprobs for logprobs in rivals if logprobs.mean_abs_delta <= allowed), None)


def _logprobs(study: Study, records: Records) -> LogprobRecord:
    tokens, (compared, last_digit) = records.logprobs, _compared(study, records)
    assert tokens is not None
    outside, row = compared.outside, int(compared.delta.nan_to_num(nan=torch.inf).argmax())
    over, _ = compared.excess()
    start = compared.first_position()
    return LogprobRecord(
        tokens=len(compared.delta),
        scored=int(study.tokens.loss_mask.sum()),
        sequences=len(torch.unique(compared.sequence)),
        last_digit=last_digit,
        half_unit=float(compared.half_unit.mean()),
        mean_abs_delta=float(compared.delta.mean()),
        floor=float(compared.floor.mean()),
        floor_largest=compared.loudest,
        floor_trial=compared.furthest,
        excess=over,
        outside_tokens=int(outside.sum()),
        outside_sequences=len(torch.unique(compared.sequence[outside])),
        largest=RecordedToken(
            sequence=int(compared.sequence[row]),
            position=int(compared.position[row]),
            recorded=float(tokens[records.mask][row]),
            computed=float(records.of(records.recorder)[row]),
        ),
        from_position=start,
        before=len(compared.delta) if start is None else int((compared.position < start).sum()),
        reproduced=start is None,
    )


def _compared(study: Study, records: Records) -> tuple[Compared, str]:
    """The side that stands for the engine against the record, token by token, and how the record is rounded."""
    assert records.logprobs is not None
    mask, of_recorder = records.mask.cpu(), records.of(records.recorder)
    # Left-hand pads do not count as positions of a sequence.
    positions = study.tokens.attention_mask.cumsum(-1) - 1
    half_unit, last_digit = half_units(records.logprobs.cpu()[mask])
    draws = {_name(key): (records.of(key) - of_recorder).abs() for key in records.draws}
    floors = {name: draw for name, draw in draws.items() if bool(draw.isfinite().all())}
    compared = Compared(
        sequence=mask.nonzero(as_tuple=True)[0],
        position=positions.cpu()[mask],
        delta=records.delta(records.recorder).abs(),
        half_unit=half_unit,
        floors=floors,
        loudest=max((float(floor.max()) for floor in floors.values()), default=0.0),
    )
    return compared, last_digit


def _name(key: WalkerName) -> str:
    """The name of a draw in a report."""
    assert isinstance(key, TrialKey)
    return key.of if key.kind in {"record", "other record"} else f"order of arrival, draw {key.draw}"


def _gate(gate: Gate | None, records: Records) -> Verdict | None:
    """The verdict on k3(side against record); None if the recipe does not bound it."""
    if gate is None:
        return None
    delta, sequence = records.delta(records.recorder), records.mask.cpu().nonzero(as_tuple=True)[0]
    sums, counts = (
        torch.zeros(len(records.mask), dtype=torch.float64).index_add_(0, sequence, values)
        for values in (k3(delta), torch.ones_like(delta))
    )
    interval = (token_mean if gate.reduce == "token" else sequence_mean)(sums, counts)
    return judge(interval, gate, bit_equal=False, nonfinite=int((~delta.isfinite()).sum()))


def _routes(records: Records) -> RouteRecord:
    """Recorded routes: how many token-layers have another set than recorded, against those of the draws."""
    layers = _layers(records, records.recorder)
    counts = sum((records.routed[layer] for layer in layers), torch.zeros(len(records.mask))).double()
    of_recorder = _other_sets(records, records.recorder)
    floor = max(
        (_other_sets(records, draw) for draw in records.draws), key=torch.sum, default=torch.zeros_like(of_recorder)
    )
    over, within = excess(of_recorder, floor, torch.zeros_like(of_recorder), counts)
    return RouteRecord(layers=tuple(_layer_records(records, layers)), excess=over, reproduced=within)


def _layer_records(records: Records, layers: list[int]) -> Iterator[LayerRecord]:
    for layer in layers:
        of_recorder = records.other_sets[records.recorder, layer]
        draws = (records.other_sets[draw, layer] for draw in records.draws)
        floor = max(draws, key=torch.sum, default=torch.zeros_like(of_recorder))
        sums = (of_recorder.double(), floor.double(), torch.zeros(len(of_recorder), dtype=torch.float64))
        _, within = excess(*sums, records.routed[layer].double())
        yield LayerRecord(
            layer=layer,
            token_layers=int(records.routed[layer].sum()),
            other_sets=int(of_recorder.sum()),
            floor=int(floor.sum()),
            reproduced=within,
        )


def _layers(records: Records, walker: WalkerName) -> list[int]:
    """The layers with records in which this walker was seen to route."""
    return [layer for layer in records.routed if (walker, layer) in records.other_sets]


def _other_sets(records: Records, walker: WalkerName) -> Tensor:
    """How many token-layers of each sequence have another set, over all layers: fp64 [B]."""
    counts = [records.other_sets[walker, layer] for layer in _layers(records, walker)]
    return sum(counts, torch.zeros(len(records.mask))).double()


MEASURE = Measure(gives=Recording, measure=measure, watch=RECORDED, trials=trials)
OTHER_MEASURE = Measure(gives=OtherRecord, measure=measure_other, watch=RECORDED_BY_OTHER, trials=other_trials)
