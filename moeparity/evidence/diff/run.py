"""The steps of `moeparity diff`: open both traces, put ranks together, align calls, compare values, find where
differences begin, judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moeparity.errors import counted
from moeparity.evidence.diff.align import Aligned, align
from moeparity.evidence.diff.compare import Comparer
from moeparity.evidence.diff.coverage import Tally, coverage, place
from moeparity.evidence.diff.flow import (
    DIFFERING,
    EQUAL,
    Before,
    Knowledge,
    Origin,
    ValuePair,
    moment,
    origins,
    value_pairs,
)
from moeparity.evidence.diff.layout import Layout, read_layout, sides
from moeparity.evidence.diff.orders import legal_orders
from moeparity.evidence.diff.pass_pairs import RunPair, otherwise_masked, paired, runs_of, unmatched_tokens
from moeparity.evidence.diff.report import DiffReport, LayerGrowth, LegalOrders, TraceOutline
from moeparity.evidence.diff.side import WHOLE, Side
from moeparity.evidence.diff.starts import MOST, births, scalars, start
from moeparity.evidence.diff.verdict import Facts, judge, sentences
from moeparity.evidence.diff.walk import MOST as WALKED
from moeparity.evidence.diff.walk import Compared, Walked, first_beyond
from moeparity.evidence.trace.reader import Trace, open_trace
from moeparity.evidence.trace.records import Call

_LAYER = re.compile(r"(?:.*\.)?(?:layers?|h|blocks?)\.\d+")
_RERUN = 6
"""Starts whose orders are drawn: the first ones."""
_NOT_FIRST = LegalOrders(verdict="not told", reason="not the first")
_HANDED_OVER = frozenset({
    "use_cache", "past_key_value", "past_key_values", "cache_position", "cache_params", "logits_to_keep", "return_dict",
    "output_attentions", "output_hidden_states", "output_router_logits",
})  # fmt: skip
"""Arguments of transformers that say what is handed over, a cache or more results, and change no number."""
_SCALARS = 12
"""Arguments that differ of which a report tells."""


@dataclass(slots=True)
class _Gathered:
    """What is gathered pair by pair: of ranks, and of passes in them."""

    tallies: list[Tally] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    origins: list[tuple[RunPair, Origin]] = field(default_factory=list)
    pairs: list[tuple[RunPair, ValuePair]] = field(default_factory=list)
    scalars: dict[str, None] = field(default_factory=dict)
    raised: dict[str, None] = field(default_factory=dict)
    unmatched: list[int] = field(default_factory=lambda: [0, 0])
    masked: list[int] = field(default_factory=lambda: [0, 0])


def diff(a: Path, b: Path, layout: Path | None = None) -> DiffReport:
    """Two traces, compared. Raises TraceError and SpecError for what can't be used."""
    traces = open_trace(a), open_trace(b)
    declared = Layout() if layout is None else read_layout(layout)
    compared = sides(traces, declared)
    gathered = _Gathered()
    for run_a, run_b in compared.pairs:
        _compare(run_a, run_b, declared, gathered)
    return _report(traces, compared.findings, [side for pair in compared.pairs for side in pair], gathered)


def _compare(a: Side, b: Side, layout: Layout, gathered: _Gathered) -> None:
    runs = runs_of(a, layout.tokens("A")), runs_of(b, layout.tokens("B"))
    tally, known_values, before = Tally(a, b), Knowledge(), Before()
    gathered.tallies.append(tally)
    pair_ids: tuple[set[int], set[int]] = (set(), set())
    pairs = list(paired(*runs))
    for pair in pairs:
        pair_ids[0].add(id(pair.a))
        pair_ids[1].add(id(pair.b))
        if pair.shared is not None and not pair.shared.alike:
            # What a token of one pass is to another pass says nothing of a third, but for what it was made of.
            known_values = before.known_before(pair)
        comparer, aligned = Comparer(pair), align(pair.a, pair.b)
        values = list(value_pairs(comparer, aligned))
        for value in values:
            known_values.add(value)
        tally.add(aligned, values)
        gathered.pairs += [(pair, value) for value in values]
        begun = origins(comparer, values, known_values)
        before.add(pair, known_values, begun)
        gathered.origins += [(pair, origin) for origin in begun]
        gathered.compared.append(Compared(pair, values, known_values, begun))
        gathered.scalars.update(dict.fromkeys(_other_scalars(pair, aligned)))
        gathered.raised.update(dict.fromkeys(_raised(aligned)))
    gathered.masked = [n + more for n, more in zip(gathered.masked, otherwise_masked(*runs), strict=True)]
    for which, side_runs in enumerate(runs):
        shared = [((p.a, p.b)[which], (p.shared.a, p.shared.b)[which]) for p in pairs if p.shared is not None]
        gathered.unmatched[which] += unmatched_tokens(side_runs, shared)
        tally.alone(which, (run for run in side_runs if id(run) not in pair_ids[which]))


def _other_scalars(pair: RunPair, aligned: Aligned) -> Iterator[str]:
    """Arguments that differ. Where tokens are known, what says what is handed over is left out, and so are the numbers
    by which ops count positions behind a cache: what was made of them is compared token by token.
    """
    for ours, theirs in aligned.pairs:
        if pair.shared is not None and not pair.shared.alike and ours.level == "op" and _counts(pair.a.side, ours):
            continue
        for text in scalars(ours, theirs):
            if pair.shared is None or text.partition(":")[0] not in _HANDED_OVER:
                yield f"{place(ours)}: {text}"


def _counts(side: Side, call: Call) -> bool:
    """Whether an op gives whole numbers alone, of whole numbers alone."""
    return all(side.value(number).dtype in WHOLE for number in (*call.inputs.values(), *call.outputs.values()))


def _raised(aligned: Aligned) -> Iterator[str]:
    """Calls that did not return, of which the partner did."""
    for pair in aligned.pairs:
        failed = ["raised" in call.flags for call in pair]
        if failed[0] != failed[1]:
            yield f"{place(pair[0])}, which raised in {'A' if failed[0] else 'B'}"


def _report(
    traces: tuple[Trace, Trace], ranks: Sequence[str], sides: Sequence[Side], gathered: _Gathered
) -> DiffReport:
    drawn = {id(origin): legal_orders(Comparer(pair), origin) for pair, origin in gathered.origins[:_RERUN]}
    starts = tuple(start(pair, origin, drawn.get(id(origin), _NOT_FIRST)) for pair, origin in gathered.origins[:MOST])
    walked = first_beyond(gathered.compared, drawn)
    outputs = [entry for entry in gathered.pairs if entry[1].role == "output"]
    born = [birth for tally in gathered.tallies for birth in births(tally.a, tally.b)]
    facts = Facts(
        sides=tuple(sides), coverage=coverage(gathered.tallies), starts=starts, pairs=tuple(gathered.pairs),
        births=tuple(born), ranks=tuple(ranks), scalars=tuple(gathered.scalars),
        raised=tuple(gathered.raised), unmatched=(gathered.unmatched[0], gathered.unmatched[1]),
        masked=(gathered.masked[0], gathered.masked[1]),
    )  # fmt: skip
    status, reason = judge(facts)
    return DiffReport(
        a=_outline(traces[0]), b=_outline(traces[1]), status=status, reason=reason, coverage=facts.coverage,
        starts=starts, beyond=walked.beyond, padding_start=_first_padding(gathered), ends=_ends(outputs),
        other_scalars=tuple(gathered.scalars)[:_SCALARS], births=facts.births, growth=tuple(_growth(outputs)),
        ranks=facts.ranks, words=(*sentences(facts), *_unwalked(walked)),
    )  # fmt: skip


def _unwalked(walked: Walked) -> Iterator[str]:
    """How far values behind the first difference were held to their own orders."""
    if walked.unvisited:
        yield (
            f"{WALKED} values that differ were held to the orders of their own calls, and none is beyond them; "
            f"{counted(walked.unvisited, 'value')} more of that pass, and what comes later, were not."
        )


def _outline(trace: Trace) -> TraceOutline:
    contents = [rank.contents for rank in trace.ranks]
    return TraceOutline(
        path=str(trace.folder), made_by=trace.ranks[0].head.made_by, ranks=len(trace.ranks),
        calls=sum(len(part.calls) for part in contents), values=sum(len(part.values) for part in contents),
        whole=all(part.whole for part in contents),
        notes=tuple(dict.fromkeys((*trace.ranks[0].head.unseen, *(note for part in contents for note in part.notes)))),
    )  # fmt: skip


def _first_padding(gathered: _Gathered) -> str:
    """The first place at which padding, and nothing else, differs."""
    pairs = [entry for entry in gathered.pairs if entry[1].comparison.status == "padding"]
    if not pairs:
        return ""
    _, first = min(pairs, key=lambda entry: moment(entry[0].a.side, entry[1]))
    return place(first.calls[0])


def _ends(outputs: Sequence[tuple[RunPair, ValuePair]]) -> str:
    """Where a difference is gone again: the last value that differs, where all that programs gave at last is equal."""
    top = [pair for run, pair in outputs if pair.calls[0].inside not in run.a.side.by_id]
    modules = [pair for pair in top if pair.calls[0].level == "module"]
    differing = [entry for entry in outputs if entry[1].comparison.status in DIFFERING]
    final = modules or top[-1:]
    if not differing or not final or any(pair.comparison.status not in EQUAL for pair in final):
        return ""
    _, last = max(differing, key=lambda entry: moment(entry[0].a.side, entry[1]))
    return place(last.calls[0])


def _growth(outputs: Sequence[tuple[RunPair, ValuePair]]) -> Iterator[LayerGrowth]:
    """The first output of each layer, over all passes."""
    layers: dict[str, list[ValuePair]] = {}
    for _, pair in outputs:
        call = pair.calls[0]
        if call.level == "module" and _LAYER.fullmatch(call.path) and pair.slot in {"0", "output", ""}:
            layers.setdefault(call.path, []).append(pair)
    for path, pairs in layers.items():
        compared_pairs = [pair.comparison for pair in pairs if pair.comparison.status != "unknown"]
        if not compared_pairs or all(comparison.status in EQUAL for comparison in compared_pairs):
            continue
        errors = [comparison.furthest for comparison in compared_pairs if comparison.furthest is not None]
        bounds = [comparison.bound for comparison in compared_pairs if comparison.bound is not None]
        furthest = max(errors, default=None)
        yield LayerGrowth(
            layer=path, rows=sum(comparison.rows for comparison in compared_pairs),
            differing=sum(entry.differing or entry.rows * (entry.status == "differ") for entry in compared_pairs),
            furthest=furthest, units=None if furthest is None or not bounds else furthest / max(bounds),
        )  # fmt: skip
