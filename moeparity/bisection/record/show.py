"""Whether a record is reproduced, and how each side compares with it, as shown."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.data import ReportData
from moeparity.bisection.floor.show import NOT_TRIED
from moeparity.bisection.record.data import FAR, LogprobRecord, OtherRecord, Record, Recorded, RouteRecord
from moeparity.metrics.verdict import Verdict
from moeparity.output.blocks import Block, Group, Styled, bullets, columns, group, lines, table
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
    """Sentences on possible causes of a record that is not reproduced, and on what recording more would show."""
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
        diagnosis = f"The diagnosis of logs (docs/diagnosis.md), with the record as rollout and the {side} as trainer,"
        if not record.causes:
            yield f"{diagnosis} names no cause."
        for cause in record.causes:
            yield f"{diagnosis} names {cause.name}: {cause.reason} {cause.advice}"
    if record.routes is None:
        yield "No routes were recorded: `routed_experts` in the token file would show in which layer it starts."


def decided_blame(record: Record) -> str:
    """The line `blame` if a record decides the verdict: what may be why it is not reproduced, or that no known cause
    shows.

    If the record is reproduced and only its gate is not passed, nobody is to blame.
    """
    if record.status == "reproduced":
        return f"nobody: the record is reproduced, but {_unmet(record)}"
    start = "the record, not the difference of both sides"
    if record.rival is not None:
        return f"{start}: the {record.rival.side} lies nearer to the record"
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
    """The line `starts` if a record decides the verdict: from where on the record is not reproduced, and where the
    sides part.
    """
    layer, logprobs = first_layer(record), record.logprobs
    if layer is not None:
        place = f"layers[{layer}], the first with other experts than recorded"
    elif logprobs is not None and logprobs.from_position is not None:
        before = f", the {quantity(logprobs.before, 'token')} before it reproduced" if logprobs.before else ""
        place = f"position {logprobs.from_position} of the record{before}; log-probabilities show no layer"
    else:
        place = f"nowhere in the record, which is reproduced; {_unmet(record)}"
    return f"{place}; between both sides {between_sides}"


def decided_step(record: Record) -> str:
    """The line `to set` if a record decides the verdict: what to do next."""
    if record.status == "reproduced":
        if record.gate is not None and record.gate.status == "inconclusive":
            return f"nothing on either side: a record of {_sequences(record.gate)} decides"
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


def _unmet(record: Record) -> str:
    """Why the gate on a record that is reproduced is not passed."""
    gate = record.gate
    if gate is None or gate.status != "inconclusive":
        return f"its gate lies below the {record.side}'s own floor"
    return f"its gate needs {_sequences(gate)}"


def _sequences(gate: Verdict) -> str:
    return "more sequences" if gate.needed_sequences is None else f"about {gate.needed_sequences} sequences"


def first_layer(record: Record) -> int | None:
    """The first layer whose recorded routes are not reproduced; None if there is none."""
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
        verb = "has" if record.outside_tokens == 1 else "have"
        yield f"{places} {verb} a |delta| above {FAR:g} x the largest of the floor."
    if record.before:
        yield (
            f"The {quantity(record.before, 'token')} before position {record.from_position} are reproduced; with that "
            "position they no longer are."
        )
    else:
        yield f"Not reproduced from position {record.from_position} on, the first that has a record."
    yield NOT_TRIED


def _routes(side: str, record: RouteRecord) -> Iterator[str]:
    total = sum(layer.token_layers for layer in record.layers)
    others = sum(layer.other_sets for layer in record.layers)
    floor = sum(layer.floor for layer in record.layers)
    text = (
        f"{others} of {quantity(total, 'recorded route')} ({percent(record.other_sets)}) "
        f"{'goes' if others == 1 else 'go'} to other experts in the {side}"
    )
    names = [f"layers[{layer.layer}]" for layer in record.layers if not layer.reproduced]
    if not names:
        yield f"{text}; its floor has {floor}: within it in every layer."
    elif len(names) == len(record.layers):
        yield f"{text}; its floor has {floor}: beyond it in all {quantity(len(names), 'MoE layer')}."
    else:
        yield f"{text}; its floor has {floor}: beyond it in {enumerated(names)}."


def _gate(gate: Verdict) -> str:
    value = f"{gate.metric} against the record is {gate.value.estimate:.3g}{after_estimate(gate.value)}"
    return f"{value}, its gate {gate.below:g}: {gate.status}, {gate.reason}."


_STYLE = {"reproduced": "bold green", "not reproduced": "bold red"}


def show(report: ReportData) -> Iterator[Group]:
    """The group about whether the record is reproduced, and what that rests on."""
    record = report.record
    # If there is none, the summary has said so.
    if record.status != "no record":
        opening = (Styled(record.status.upper(), _STYLE.get(record.status, "bold")), f"  {record.reading[0]}")
        yield group("Record", lines(opening), bullets(record.reading[1:]))


def show_other(report: ReportData) -> Iterator[Group]:
    """The group about the record of the engine that did not sample, and about how far both engines lie apart."""
    other_record = report.other_record
    if other_record is None:
        return
    record = other_record.record
    opening = (Styled(record.status.upper(), _STYLE.get(record.status, "bold")), f"  {record.reading[0]}")
    sentences = (*record.reading[1:], *_apart(other_record))
    yield group(f"Record of the {record.side}'s engine", lines(opening), bullets(sentences))


def _apart(other_record: OtherRecord) -> Iterator[str]:
    if other_record.tokens:
        distance = f"mean |delta| {other_record.mean_abs_delta:.3g} nats, k3 {other_record.k3:.3g}"
        tokens = quantity(other_record.tokens, "token")
        yield f"The engines themselves, this record minus the other one: {distance}, over {tokens}."


def show_recorded(report: ReportData) -> Iterator[Group]:
    """The group of log-probabilities and routes of each side against the record."""
    if report.recorded is not None:
        yield group("Against the recorded data", *recorded_blocks(report.recorded))


def recorded_blocks(recorded: Recorded) -> Iterator[Block]:
    """Recorded log-probabilities and routes, one line for each side."""
    if recorded.logprobs:
        of = columns("mean |delta|", "max |delta|", "k3", "tokens", first="log-probabilities")
        rows = [
            (of_side.side, *(f"{number:.3g}" for number in (of_side.mean_abs_delta, of_side.max_abs_delta, of_side.k3)),
             str(of_side.tokens))
            for of_side in recorded.logprobs
        ]  # fmt: skip
        note = "delta = log P of the side - the recorded one, in nats, on scored tokens."
        yield table(of, rows, Styled(note, "dim"))
    if recorded.routes:
        routes = [
            (of_side.side, percent(of_side.same_sets / of_side.token_layers), str(of_side.token_layers))
            for of_side in recorded.routes
        ]
        yield table(columns("same expert set", "token-layers", first="routes"), routes)
    if not recorded.logprobs and not recorded.routes:
        yield lines("no scored token has a recorded log-probability, no token a recorded route")
