"""Whether a record is reproduced, in words."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.floor.words import NOT_CONTAINED
from moeparity.bisection.record.report import LogprobRecord, Record, RouteRecord
from moeparity.metrics.verdict import Verdict
from moeparity.output.words import after_estimate, enumerated, few, percent, quantity

SIMULATIONS = "What follows compares two simulations"
_BATCHES = (
    "`schedule: {rule: vllm-v1, sequences: 1}` is each sequence alone, `{file: batches.jsonl}` any list "
    "(docs/schedules.md)"
)


def record_reading(record: Record) -> list[str]:
    """The verdict in one sentence, then what it rests on."""
    side, logprobs, routes = record.side, record.logprobs, record.routes
    if record.status == "no record":
        return [f"of an engine that ran these tokens. {SIMULATIONS}."]
    reproduced = record.status == "reproduced"
    parts = {"log-probabilities": logprobs, "routes": routes}
    names = [name for name, part in parts.items() if part is not None and part.reproduced == reproduced]
    sentences = [f"the {side} {'gives' if reproduced else 'does not give'} the recorded {enumerated(names)}"]
    if logprobs is not None:
        sentences += _logprobs(side, logprobs)
    if routes is not None:
        sentences += _routes(side, routes)
    if record.gate is not None:
        sentences.append(_gate(record.gate))
    if not reproduced:
        sentences += _explained(record)
        sentences.append(f"{SIMULATIONS}: the {side} is not shown to compute as the engine that made the record.")
        if record.gate is None and logprobs is not None:
            sentences.append("`gate: {recorded: k3, below: ...}` can say how near is near enough (docs/tokens.md).")
    return sentences


def _explained(record: Record) -> Iterator[str]:
    """What may be why, as far as the record shows it, and what it lacks."""
    side, rival = record.side, record.rival
    if rival is not None:
        yield (
            f"The {rival.side} lies {rival.mean_abs_delta:.3g} from the record. The record is taken for that of the "
            f"side that sampled, the {side}: check `sampled_from:`."
        )
    if record.pads:
        yield (
            f"The {side} computes {quantity(record.pads, 'pad')} beside the tokens. An engine without them had other "
            f"shapes, so other bits. Its batches can be stated: {_BATCHES}."
        )
    if record.logprobs is not None and not record.logprobs.reproduced:
        of = f"of the record (its rollout) and the {side} (its trainer)"
        if not record.causes:
            yield f"The diagnosis of logs (docs/diagnosis.md), {of}, names no cause."
        for cause in record.causes:
            yield f"The diagnosis of logs (docs/diagnosis.md), {of}, names {cause.name}: {cause.reason} {cause.advice}"
    if record.routes is None:
        yield "No routes were recorded: `routed_experts` in the token file would show in which layer it starts."


def decided_blame(record: Record) -> str:
    """What makes the verdict where the record does, in a line: what it looks like, or that no known cause shows; nobody
    where the record is reproduced, and its gate asks for more.
    """
    if record.status == "reproduced":
        return f"nobody: the record is reproduced, and its gate asks for {_shortfall(record)}"
    start = "the record, not the difference of both sides"
    if record.rival is not None:
        return f"{start}: it is the {record.rival.side}'s, by the distance"
    if record.pads and not record.meanings:
        return f"{start}: the {record.side} computes {quantity(record.pads, 'pad')} that the engine may not have had"
    if record.causes:
        return f"{start}; it looks like {few([cause.name for cause in record.causes], 2)} (--section record)"
    layer = first_layer(record)
    if layer is not None:
        return f"{start}: other experts than recorded from layers[{layer}] on"
    if record.routes is None:
        return f"{start}: no known cause shows, and no routes were recorded that would say in which layer"
    return f"{start}: no known cause shows, and the recorded routes are reproduced"


def decided_start(record: Record, between_sides: str) -> str:
    """Where a record that makes the verdict is left, in a line, and where the sides leave each other."""
    layer, logprobs = first_layer(record), record.logprobs
    if layer is not None:
        place = f"layers[{layer}], the first with other experts than recorded"
    elif logprobs is not None and logprobs.from_position is not None:
        before = f", the {quantity(logprobs.before, 'token')} before it reproduced" if logprobs.before else ""
        place = f"position {logprobs.from_position} of the record{before}; log-probabilities show no layer"
    else:
        place = f"nowhere in the record, which is reproduced; its gate asks for {_shortfall(record)}"
    return f"{place}; between both sides {between_sides}"


def decided_step(record: Record) -> str:
    """What to do next where the record makes the verdict, in a line."""
    if record.status == "reproduced":
        if record.gate is not None and record.gate.status == "inconclusive":
            return f"nothing on either side: a record of {_shortfall(record)} decides"
        return "a wider gate on the record, or a profile that is nearer: `moeparity sweep RECIPE --over profile=A,B`"
    if record.rival is not None:
        return f"`sampled_from: {record.rival.side}`, if that one's engine made the record"
    if record.pads and not record.meanings:
        return f"state the engine's batches, if it had no pads: {_BATCHES}"
    if record.causes:
        return record.causes[0].advice.partition(". ")[0].removesuffix(".")
    routes = "" if record.routes is not None else "; record `routed_experts` too"
    weights = "hold the engine's weights to these (`moeparity weights`)"
    return f"{weights}; try other profiles: `moeparity sweep RECIPE --over profile=A,B`{routes}"


def _shortfall(record: Record) -> str:
    """What the gate of a record that is reproduced asks for and did not get."""
    gate = record.gate
    if gate is None or gate.status != "inconclusive":
        return f"less than the {record.side} differs from itself"
    return "more sequences" if gate.needed_sequences is None else f"about {gate.needed_sequences} sequences"


def first_layer(record: Record) -> int | None:
    """The first layer whose recorded routes are not reproduced."""
    layers = () if record.routes is None else record.routes.layers
    return next((layer.layer for layer in layers if not layer.reproduced), None)


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
