"""What a recorded candidate shows, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from moeparity.bisection.divergence.report import Root
from moeparity.bisection.record.report import Record
from moeparity.bisection.trace.report import Segment, Traced
from moeparity.bisection.verdict.report import Metrics
from moeparity.output.words import enumerated, few, quantity

NAMED = 4
"""So many names stand in a sentence."""
_LEAST = 0.005


def trace_reading(
    traced: Traced, roots: Sequence[Root], metrics: Metrics, steps: str | None, *, grafts: bool
) -> Iterator[str]:
    """What was seen, where it starts, who makes it and what was not seen. `steps`: what the reference computes
    together, said as `traced.forwards` says it; None where no schedule could compute the program's forwards.
    """
    yield from _root_sentences(traced, roots, metrics)
    if metrics.unequal_tokens:
        yield from _graft_sentences(traced, grafts=grafts)
    if not traced.together:
        yield _apart(traced, steps)
    yield from _unseen(traced)


def _apart(traced: Traced, steps: str | None) -> str:
    """That the reference computed other tokens together, and what to do about it."""
    may = "ops that go by which tokens are computed together, and positions, may differ for that alone"
    if steps is None:
        return (
            f"No schedule computes the program's forwards, {traced.forwards} tokens: it padded its rows itself, put "
            f"several sequences into one, or had them in another order. So {may}. Where it padded at the left, "
            "`tokens: {padding: left}` is its grid."
        )
    return (
        f"The program's forwards are {traced.forwards} tokens, the reference's {steps}: {may}. Without `micro_batch` "
        "and `schedule` the reference computes the program's own forwards."
    )


def _root_sentences(traced: Traced, roots: Sequence[Root], metrics: Metrics) -> Iterator[str]:
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
        yield f"{root.node} stands for {few_names} too, which the trace does not show: any of them may make it."
    if traced.other_weights:
        yield (
            f"{len(traced.other_weights)} of {quantity(traced.weights, 'weight')} that the program read are not the "
            f"checkpoint's: {few(list(traced.other_weights), NAMED)}."
        )
    if not metrics.unequal_tokens:
        yield (
            "No scored token's log-probability shows it: what these nodes make ends before the head, cancels there, or "
            "is of tokens that are not scored."
        )


def _graft_sentences(traced: Traced, *, grafts: bool) -> Iterator[str]:
    yield (
        "A trace has no choices: nothing can be tried on the program, so no choice, share or fix is named. What each "
        "part of it makes is told by grafts alone." + ("" if grafts else " They were switched off (`grafts: false`).")
    )
    whole = traced.segments[-1].kl if traced.segments else 0.0
    if not whole > 0:
        return
    yield f"Of the candidate's KL {makers_in_words(traced.segments, whole)}."
    against = [segment for segment in traced.segments if segment.high < 0]
    if against:
        names = few([segment.name for segment in against], NAMED)
        yield f"{names} surely lowers it: what the program does there takes back what it did before."
    if traced.routes:
        ids = traced.routes[0].kl / whole
        yield f"The recorded expert ids alone, forced upon the reference, make {ids:.0%} of that KL."


def makers_in_words(segments: Sequence[Segment], whole: float, most: int = NAMED) -> str:
    """`layers[1] makes 80 %, layers[2] 19 %`, the largest first; what rounds to nothing is left out."""
    by_size = sorted(segments, key=lambda segment: -segment.made)
    large = [segment for segment in by_size if segment.made / whole >= _LEAST][:most]
    parts = [f"{segment.name} makes {segment.made / whole:.0%}" for segment in large]
    return enumerated(parts) if parts else "no segment makes a part that surely is above nothing"


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
            f"{quantity(traced.others, 'further forward')} of the program are of other tokens, or of the same ones "
            "again, and are left out."
        )
    if not traced.whole:
        yield "The trace was cut: its program did not get to the end of its recording."


def recorded(record: Record) -> str:
    """The line of the summary that says whether log-probabilities or routes in the token file are reproduced."""
    return "none beside the trace" if record.status == "no record" else str(record)


def starts(traced: Traced, roots: Sequence[Root]) -> str:
    """The line of the summary that says where a recorded candidate leaves the reference."""
    if not roots:
        return "nowhere: every node that the trace shows has the reference's bits on the recorded inputs"
    further = f", as at {quantity(len(roots) - 1, 'further node')}" if roots[1:] else ""
    with_others = f" (with {few(list(roots[0].unshown), 2)}, not shown)" if roots[0].unshown else ""
    apart = "" if traced.together else "; the reference computed other tokens together, which may be all of it"
    return f"{roots[0].node}{with_others}: not the recorded bits on the recorded inputs{further}{apart}"


def blame(traced: Traced, roots: Sequence[Root], metrics: Metrics) -> str:
    """Who makes the divergence of a recorded candidate, in a line."""
    whole = traced.segments[-1].kl if traced.segments else 0.0
    if whole > 0:
        return f"{makers_in_words(traced.segments, whole, 2)}, by grafts; a trace has no choices"
    if not roots:
        return "nobody: nothing that the trace shows differs"
    if metrics.nonfinite_tokens:
        born = [segment.name for segment in traced.segments if not math.isfinite(segment.kl)][:1]
        return f"no shares of what is not finite{''.join(f'; by grafts it comes in {name}' for name in born)}"
    by_itself = "by itself" if len(roots) == 1 else "each by itself"
    shown = "" if metrics.unequal_tokens else ", and no scored token shows it"
    return f"{quantity(len(roots), 'node')}, {by_itself}{shown}; a trace has no choices"


def to_set(traced: Traced, roots: Sequence[Root], nonfinite: str | None, *, passes: bool) -> str:
    """What to do about it, in a line. `nonfinite`: the node at which real tokens first are not finite."""
    if passes and not roots:
        return "nothing"
    if not roots:
        return "nothing is known to set: no node that the trace shows has other bits of its own"
    names = [root.node for root in roots]
    first = [nonfinite] if nonfinite in names else []
    nodes = few([*first, *(name for name in names if name not in first)], 2)
    return f"look at {nodes} in the program; `moeparity explain` looks for the choice or fault"


def sure(traced: Traced, sequences: int, tokens: int) -> str:
    """What all of it rests on, in a line."""
    return (
        f"recorded values at {traced.shown} of {quantity(traced.nodes, 'node')}; {quantity(sequences, 'sequence')}, "
        f"{tokens:,} tokens"
    )
