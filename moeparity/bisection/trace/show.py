"""A recorded candidate as shown: what it shows, and what each part makes of the divergence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from moeparity.bisection.data import ReportData
from moeparity.bisection.divergence.data import KnownDifference, Root
from moeparity.bisection.divergence.show import first_token, nowhere
from moeparity.bisection.record.data import Record
from moeparity.bisection.trace.data import Segment, Traced
from moeparity.bisection.verdict.data import Metrics
from moeparity.output.blocks import Cell, Group, Phrase, Styled, Table, bullets, columns, group, names, table, thinned
from moeparity.output.words import enumerated, few, of_whole, quantity, two_digits

NAMED = 4
"""At most this many names stand in a sentence."""
_LEAST = 0.005


def trace_reading(
    traced: Traced,
    roots: Sequence[Root],
    subtracted: Sequence[KnownDifference],
    metrics: Metrics,
    steps: str | None,
    *,
    grafts: bool,
) -> Iterator[str]:
    """What was seen, where the divergence starts, which segments make it, and what was not seen.

    steps: what the reference computes together, in the words of `traced.forwards`; None if no schedule can express the
    program's forward passes.
    """
    yield from _root_sentences(traced, roots, subtracted, metrics)
    yield from _known_sentences(subtracted)
    if metrics.unequal_tokens:
        yield from _graft_sentences(traced, grafts=grafts)
    if not traced.together:
        yield _apart(traced, steps)
    yield from _unseen(traced)


def _apart(traced: Traced, steps: str | None) -> str:
    """A sentence if the reference computed other tokens together than the program, with what to do about it."""
    may = "ops that depend on which tokens are computed together, and positions, may differ for that alone"
    if steps is None:
        return (
            f"No schedule gives the program's own batches ({traced.forwards} tokens): the program padded its rows, put "
            f"several sequences into one row, or had them in another order. So {may}. If it padded at the left, set "
            "`tokens: {padding: left}`."
        )
    return (
        f"The program's forwards are {traced.forwards} tokens, the reference's {steps}: {may}. Without `micro_batch` "
        "and `schedule` the reference computes the program's own forwards."
    )


def _known_sentences(subtracted: Sequence[KnownDifference]) -> Iterator[str]:
    """What the good run differs in as much, the largest first."""
    by_size = sorted(subtracted, key=lambda difference: -difference.local)
    parts = [
        f"{difference.node} ({two_digits(difference.local)}, there {two_digits(difference.baseline)})"
        for difference in by_size
    ]
    if parts:
        yield (
            f"{quantity(len(parts), 'node')} {'differs' if len(parts) == 1 else 'differ'} in the good run by as much, "
            f"and so {'is no root' if len(parts) == 1 else 'are no roots'}: {few(parts, NAMED)}."
        )


def _root_sentences(
    traced: Traced, roots: Sequence[Root], subtracted: Sequence[KnownDifference], metrics: Metrics
) -> Iterator[str]:
    if subtracted and not roots:
        yield "Called on the recorded inputs, the reference gives other bits only where the good run differs as much."
        return
    if not roots:
        yield (
            f"At each of the {traced.shown} nodes that the trace shows, the reference gives the recorded bits when it "
            "is called on the recorded inputs."
        )
        return
    names = few([root.node for root in roots], NAMED)
    yield (
        f"Called on the recorded inputs, the reference gives other bits than were recorded at {len(roots)} of "
        f"{quantity(traced.shown, 'node')}: {names}. Each is looked at by itself, so that none hides another."
    )
    for root in [root for root in roots if root.unshown][:NAMED]:
        few_names = few(list(root.unshown), NAMED)
        yield f"{root.node} stands for {few_names} too, which the trace does not show: any of them may be the cause."
    if traced.other_weights:
        yield (
            f"{len(traced.other_weights)} of {quantity(traced.weights, 'weight')} that the program read "
            f"{'is' if len(traced.other_weights) == 1 else 'are'} not the checkpoint's: "
            f"{few(list(traced.other_weights), NAMED)}."
        )
    if not metrics.unequal_tokens:
        yield (
            "No scored token's log-probability shows it: what these nodes make ends before the head, cancels there, or "
            "is of tokens that are not scored."
        )


def _graft_sentences(traced: Traced, *, grafts: bool) -> Iterator[str]:
    yield (
        "A trace has no choices: nothing can be tried on the program, so no choice, share or fix is named. Only "
        "grafts tell what each part of it makes." + ("" if grafts else " They were switched off (`grafts: false`).")
    )
    whole = traced.segments[-1].kl if traced.segments else 0.0
    if not whole > 0:
        return
    yield f"Of the candidate's KL {makers_in_words(traced.segments, whole)}."
    against = [segment for segment in traced.segments if segment.high < 0]
    if against:
        names, verb = few([_segment(segment) for segment in against], NAMED), "lower" + "s" * (len(against) == 1)
        sentence = f"{names} surely {verb} the KL: what the program does there makes up for part of what it did before."
        yield f"{sentence[0].upper() if sentence.startswith('segment') else sentence[0]}{sentence[1:]}"
    if traced.routes:
        ids = traced.routes[0].kl / whole
        yield f"The recorded expert ids alone, forced upon the reference, make {ids:.0%} of that KL."


def makers_in_words(segments: Sequence[Segment], whole: float, most: int = NAMED) -> str:
    """`layers[1] makes 80% and layers[2] makes 29%, layers[3] takes back 9%`, the largest first; a part that rounds to
    nothing is left out.
    """
    by_size = sorted(segments, key=lambda segment: -segment.made)
    large = [segment for segment in by_size if segment.made / whole >= _LEAST][:most]
    parts = [f"{_segment(segment)} makes {segment.made / whole:.0%}" for segment in large]
    lowering = [s for s in reversed(by_size) if s.made / whole <= -_LEAST][:most]
    lowered = [f"{_segment(segment)} takes back {-segment.made / whole:.0%}" for segment in lowering]
    return ", ".join(enumerated(words) for words in (parts, lowered) if words) or "no segment makes as much as 1%"


def _segment(segment: Segment) -> str:
    """The name of a segment, such as `layers[1]`; another name is marked, so that it is not read as a word."""
    return segment.name if segment.name.startswith("layers") else f"segment `{segment.name}`"


def _unseen(traced: Traced) -> Iterator[str]:
    if not traced.logits:
        yield (
            "It shows no logits. All figures of log-probabilities are of what the reference's own head makes of the "
            "recorded values before it."
        )
    if traced.tokens < traced.real_tokens:
        yield (
            f"It shows {traced.tokens} of {quantity(traced.real_tokens, 'token')}. At the others stands what the "
            "reference makes of the recorded ones; they count in nothing."
        )
    if traced.others:
        yield (
            f"{quantity(traced.others, 'further forward')} of the program {'is' if traced.others == 1 else 'are'} left "
            f"out, since {'it is' if traced.others == 1 else 'they are'} of other tokens, or of the same tokens again."
        )
    if not traced.whole:
        yield "The trace was cut: its program did not get to the end of its recording."


def recorded(records: Sequence[Record]) -> str:
    """The summary's line `record`: whether log-probabilities or routes in the token file are reproduced."""
    lines = [
        f"{record.side} {record}" if len(records) > 1 else str(record)
        for record in records
        if record.status != "no record"
    ]
    return "; ".join(lines) or "none beside the trace"


def starts(traced: Traced, roots: Sequence[Root], subtracted: Sequence[KnownDifference]) -> str:
    """The summary's line `starts`: where a recorded candidate leaves the reference."""
    if subtracted and not roots:
        return nowhere(subtracted)
    if not roots:
        return "nowhere: every node that the trace shows has the reference's bits on the recorded inputs"
    further = f", as at {quantity(len(roots) - 1, 'further node')} of smaller local error" if roots[1:] else ""
    with_others = f" (with {few(list(roots[0].unshown), 2)}, not shown)" if roots[0].unshown else ""
    apart = "" if traced.together else "; the reference computed other tokens together, which may be all of it"
    where = f" in {roots[0].tokens} of {traced.tokens} tokens{first_token(roots[0])}"
    at = "" if roots[0].tokens >= traced.tokens else where
    return f"{roots[0].node}{with_others}: not the recorded bits on the recorded inputs{at}{further}{apart}"


def blame(traced: Traced, roots: Sequence[Root], metrics: Metrics) -> str:
    """The summary's line `blame` for a recorded candidate."""
    whole = traced.segments[-1].kl if traced.segments else 0.0
    if whole > 0:
        return f"{makers_in_words(traced.segments, whole, 2)}, by grafts; a trace has no choices"
    if not roots:
        return "nobody: nothing that the trace shows differs"
    if metrics.nonfinite_tokens:
        born = [segment.name for segment in traced.segments if not math.isfinite(segment.kl)][:1]
        starting = "".join(f"; by grafts they start in {name}" for name in born)
        return f"no shares are taken of NaN or infinities{starting}"
    by_itself = "by itself" if len(roots) == 1 else "each by itself"
    shown = "" if metrics.unequal_tokens else ", and no scored token shows it"
    return f"{few([root.node for root in roots], NAMED)}, {by_itself}{shown}; a trace has no choices"


def to_set(traced: Traced, roots: Sequence[Root], nonfinite: str | None, *, passes: bool) -> str:
    """The summary's line `to set` for a recorded candidate. nonfinite: the first node with NaN or infinity at real
    tokens.
    """
    if passes and not roots:
        return "nothing"
    if not roots:
        return "nothing is known to set: no node that the trace shows has other bits of its own"
    names = [root.node for root in roots]
    first = [nonfinite] if nonfinite in names else []
    nodes = few([*first, *(name for name in names if name not in first)], 2)
    return f"look at {nodes} in the program; `moeparity explain` looks for the choice or fault"


def sure(traced: Traced, sequences: int, tokens: int) -> str:
    """The summary's line `sure` for a recorded candidate."""
    return (
        f"recorded values at {traced.shown} of {quantity(traced.nodes, 'node')}; {quantity(sequences, 'sequence')}, "
        f"{tokens:,} tokens"
    )


def show(report: ReportData) -> Iterator[Group]:
    """What the trace shows."""
    traced = report.trace
    if traced is None:
        return
    yield group("Trace", _head(traced), bullets(traced.reading))
    if traced.segments:
        yield group("By grafts", _segments(traced))


def _head(traced: Traced) -> Table:
    shown = f"{traced.tokens} of {quantity(traced.real_tokens, 'token')}"
    rows: list[tuple[Cell, ...]] = [
        ("", "program", f"{traced.program}, {shown}, forwards: {traced.forwards}"),
        ("", "nodes", f"{traced.shown} of {traced.nodes} shown"),
    ]
    return names([*rows, *([("", "unknown", traced.unknown)] if traced.unknown else [])])


def _segments(traced: Traced) -> Table:
    whole = traced.segments[-1].kl
    shown, note = thinned(traced.segments, {i for i, segment in enumerate(traced.segments) if segment.roots})
    rows = []
    for segment in shown:
        interval = f"[{segment.low:.2g}, {segment.high:.2g}]" if math.isfinite(segment.high - segment.low) else "none"
        roots = str(segment.roots) if segment.roots else ""
        rows.append((segment.name, of_whole(segment.made, whole), interval, of_whole(segment.kl, whole), roots))
    routes: list[Phrase] = [
        f"recorded {routes.forced.replace('+', ', ')} forced upon the reference: KL {of_whole(routes.kl, whole)}"
        for routes in traced.routes
    ]
    says = Styled(
        "so far: KL(trial || reference) in nats per token, where the trial is the reference continued from the values "
        "recorded after this segment. made: this KL minus that of the segment before. own roots: nodes with other bits "
        "than the reference gives on the recorded inputs.",
        "dim",
    )
    of = columns("made: KL", "95 % interval", "so far: KL", "own roots", first="segment")
    return table(of, rows, *note, *routes, says)
