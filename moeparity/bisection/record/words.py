"""Whether a record is reproduced, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.bisection.floor.words import AT_THE_FLOOR, NOT_CONTAINED
from moeparity.bisection.record.report import LogprobRecord, RecordedLogprobs, RouteRecord, Status
from moeparity.metrics.verdict import Verdict
from moeparity.output.words import after_estimate, enumerated, percent, quantity

SIMULATIONS = "What follows compares two simulations"


def record_reading(
    status: Status,
    side: str,
    logprobs: LogprobRecord | None,
    routes: RouteRecord | None,
    gate: Verdict | None,
    sides: Sequence[RecordedLogprobs],
) -> list[str]:
    """The verdict in one sentence, then what it rests on; `sides` are what both sides lie from the record."""
    if status == "no record":
        return [f"of an engine that ran these tokens. {SIMULATIONS}."]
    parts = {"log-probabilities": logprobs, "routes": routes}
    names = [name for name, part in parts.items() if part is not None and part.reproduced == (status == "reproduced")]
    verb = "gives" if status == "reproduced" else "does not give"
    sentences = [f"the {side} {verb} the recorded {enumerated(names)}"]
    if logprobs is not None:
        sentences += _logprobs(side, logprobs)
    if routes is not None:
        sentences += _routes(side, routes)
    if gate is not None:
        sentences.append(_gate(gate))
    if status == "not reproduced":
        sentences += _other_side(side, logprobs, sides)
        sentences.append(f"{SIMULATIONS}: the {side} is not shown to compute as the engine that made the record.")
        if gate is None and logprobs is not None:
            sentences.append("`gate: {recorded: k3, below: ...}` can say how near is near enough (docs/tokens.md).")
    return sentences


def _logprobs(side: str, record: LogprobRecord) -> Iterator[str]:
    furthest = record.floor_trial if record.floor else "the same in every draw"
    floor = "no draw" if record.floor_trial is None else furthest
    yield (
        f"mean |delta| {record.mean_abs_delta:.3g} nats, {record.tokens} of {record.scored} scored tokens in "
        f"{quantity(record.sequences, 'sequence')}; the {side}'s own floor {record.floor:.3g} ({floor}), half a unit "
        f"of the record's last digit {record.half_unit:.2g} ({record.last_digit})."
    )
    largest = record.largest
    yield (
        f"Largest |delta| {abs(largest.computed - largest.recorded):.3g}, position {largest.position} of sequence "
        f"{largest.sequence}: recorded {largest.recorded:.6g}, computed {largest.computed:.6g}. Largest of the floor "
        f"{record.floor_largest:.3g}."
    )
    if not record.reproduced:
        yield from _beyond(side, record)
    elif record.floor:
        yield "A wrong rounding may lie within the floor, too: no single choice is shown to be right by this."


def _beyond(side: str, record: LogprobRecord) -> Iterator[str]:
    """By how much a record is not reproduced, and from where on; positions and sequences are counted from 0."""
    if not record.excess.estimate <= 0:
        yield f"Over floor and last digit by {record.excess.estimate:.3g}{after_estimate(record.excess)}."
    if record.outside_tokens:
        places = f"{quantity(record.outside_tokens, 'token')} in {quantity(record.outside_sequences, 'sequence')}"
        yield f"Further than any draw of the floor, by far: {places}."
    if record.before:
        yield (
            f"The {quantity(record.before, 'token')} before position {record.from_position} are reproduced; with that "
            "position they no longer are."
        )
    else:
        yield f"Not reproduced from position {record.from_position} on, the first that has a record."
    yield f"The floor of the {side} does not contain {NOT_CONTAINED}."


def _routes(side: str, record: RouteRecord) -> Iterator[str]:
    total = sum(layer.token_layers for layer in record.layers)
    others = sum(layer.other_sets for layer in record.layers)
    text = f"{others} of {total} recorded routes ({percent(record.other_sets)}) go to other experts in the {side}"
    names = [f"layers[{layer.layer}]" for layer in record.layers if not layer.reproduced]
    if not names:
        yield f"{text}, no more than its floor."
    elif len(names) == len(record.layers):
        yield f"{text}, more than its floor in all {quantity(len(names), 'MoE layer')}."
    else:
        yield f"{text}, more than its floor in {enumerated(names)}."


def _gate(gate: Verdict) -> str:
    value = f"{gate.metric} against the record is {gate.value.estimate:.3g}{after_estimate(gate.value)}"
    return f"{value}, its gate {gate.below:g}: {gate.status}, {gate.reason}."


def _other_side(side: str, record: LogprobRecord | None, sides: Sequence[RecordedLogprobs]) -> Iterator[str]:
    """Where the other side lies at the record, one of them may be taken for the other."""
    for rival in sides:
        if rival.side != side and record is not None and not record.reproduced:
            allowed = AT_THE_FLOOR * record.floor + record.half_unit
            if rival.mean_abs_delta <= allowed:
                yield (
                    f"The {rival.side} lies {rival.mean_abs_delta:.3g} from the record. The record is taken for that "
                    f"of the side that sampled, the {side}: check `sampled_from:`."
                )
