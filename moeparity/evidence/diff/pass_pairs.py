"""Forward passes, backward passes and optimizer steps of a trace, and which of A goes with which of B."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from torch import Tensor

from moeparity.evidence.alignment.tokens import Tokens
from moeparity.evidence.diff.shared_tokens import Shared, matched
from moeparity.evidence.diff.side import Side
from moeparity.evidence.maps.forwards import passes, tokens_of
from moeparity.evidence.trace.records import Call

_NO_TOKENS = "passes over other shapes, and whole ids of tokens were not kept to tell which row is of which"
_ORDER = ("forward", "backward", "optimizer")
"""Phases as a step goes through them."""


@dataclass(frozen=True)
class Run:
    """The calls of one pass through the model: `index` counts the passes of its step and phase. `ids`: those of a
    forward pass, with padding, as far as they were recorded whole.
    """

    side: Side
    step: int
    phase: str
    index: int
    calls: tuple[Call, ...]
    tokens: Tokens | None
    ids: Tensor | None = None

    def first_inputs(self) -> tuple[int, ...]:
        """What the outermost module was given first; where none was recorded, what the first op reads."""
        first = min(self.calls, key=lambda call: (call.level != "module", call.id))
        return tuple(number for slot, number in first.inputs.items() if "." not in slot)[:1]

    @property
    def has_modules(self) -> bool:
        """Whether modules were called in it."""
        return any(call.level == "module" for call in self.calls)

    @cached_property
    def children(self) -> Mapping[int | None, list[Call]]:
        """The calls inside each call of a module, by its id, in the order in which they were entered."""
        ids = {call.id for call in self.calls}
        inside: dict[int | None, list[Call]] = {}
        for call in sorted(self.calls, key=lambda call: call.id):
            inside.setdefault(call.inside if call.inside in ids else None, []).append(call)
        return inside


@dataclass(frozen=True, slots=True)
class RunPair:
    """A pass of either side. `shared` says which rows belong to one token; None if rows are compared as they lie.

    `obstacle`: why nothing but weights can be compared, empty if more can.
    """

    a: Run
    b: Run
    shared: Shared | None
    obstacle: str = ""


def runs_of(side: Side, stated: Tokens | None = None) -> tuple[Run, ...]:
    """The passes of a side. `stated` are the tokens of every forward pass, if a layout says them."""
    runs: list[Run] = []
    for (step, _, phase), group in groupby(sorted(side.calls, key=_step_and_phase), _step_and_phase):
        calls = list(group)
        for index, of_pass in enumerate(passes(calls, side.module_map) if phase == "forward" else [calls]):
            inputs = tokens_of(of_pass, side.module_map, side.contents, side.tensor) if phase == "forward" else None
            tokens = stated if phase == "forward" and stated else None if inputs is None else inputs.tokens
            returned = tuple(sorted(of_pass, key=side.returned))
            runs.append(Run(side, step, phase, index, returned, tokens, None if inputs is None else inputs.ids))
    return tuple(runs)


def paired(a: Sequence[Run], b: Sequence[Run]) -> Iterator[RunPair]:
    """Passes that are compared with each other: those that share tokens, or the n-th with the n-th if tokens are not
    known.

    If neither program trains, the tokens of a sequence may lie in any steps, so that one prefill is compared with
    decoding step by step.
    """
    trains = any(run.phase != "forward" for run in (*a, *b))
    keys = dict.fromkeys((run.step if trains else None, run.phase) for run in (*a, *b))
    for step, phase in keys:
        ours, theirs = (
            [run for run in runs if (step is None or run.step == step) and run.phase == phase] for runs in (a, b)
        )
        # A server computes something before its first step, such as its weights: no pass, so no tokens are missing.
        passes = [[run for run in runs if run.tokens is not None or run.has_modules] for runs in (ours, theirs)]
        if phase == "forward" and all(passes) and all(run.tokens is not None for run in (*passes[0], *passes[1])):
            yield from _by_tokens(*passes)
        else:
            yield from _in_order(ours, theirs)


def _in_order(ours: Sequence[Run], theirs: Sequence[Run]) -> Iterator[RunPair]:
    """The n-th with the n-th of each step."""
    places = {(run.step, run.index): run for run in theirs}
    for run in ours:
        partner = places.get((run.step, run.index))
        if partner is not None:
            yield _as_they_lie(run, partner)


def _by_tokens(ours: Sequence[Run], theirs: Sequence[Run]) -> Iterator[RunPair]:
    tokens = [[run.tokens for run in runs if run.tokens is not None] for runs in (ours, theirs)]
    for (i, j), match in matched(*tokens).items():
        yield RunPair(ours[i], theirs[j], match)


def unmatched_tokens(runs: Iterable[Run], shared: Iterable[tuple[Run, Tensor]]) -> int:
    """How many tokens of a side's passes have no counterpart; `shared`: the places of those that have one, by pass."""
    matched_places: dict[int, set[int]] = {}
    for run, places in shared:
        matched_places.setdefault(id(run), set()).update(places.tolist())
    if not matched_places:
        return 0
    of_passes = [(id(run), run.tokens) for run in runs if run.tokens is not None]
    return sum(int(tokens.real().sum()) - len(matched_places.get(number, ())) for number, tokens in of_passes)


def otherwise_masked(ours: Iterable[Run], theirs: Iterable[Run]) -> tuple[int, int]:
    """How many places of forward passes with the same ids are padding in B alone, and in A alone."""
    partners = {(run.step, run.index): run for run in theirs if run.tokens is not None}
    alone = [0, 0]
    for run in ours:
        partner = partners.get((run.step, run.index))
        if run.tokens is None or partner is None or run.ids is None or partner.ids is None:
            continue
        assert partner.tokens is not None
        if run.ids.shape == partner.ids.shape and run.ids.equal(partner.ids):
            read = run.tokens.real(), partner.tokens.real()
            alone[0] += int((read[0] & ~read[1]).sum())
            alone[1] += int((read[1] & ~read[0]).sum())
    return alone[0], alone[1]


def _as_they_lie(a: Run, b: Run) -> RunPair:
    """Rows that lie at one place are of one token only where both passes were given as many."""
    shapes = [[tuple(run.side.value(number).shape) for number in run.first_inputs()] for run in (a, b)]
    same = a.phase != "forward" or shapes[0] == shapes[1]
    return RunPair(a, b, None, "" if same else _NO_TOKENS)


def _step_and_phase(call: Call) -> tuple[int, int, str]:
    """Steps in their order, and the phases of each."""
    return call.step, _ORDER.index(call.phase) if call.phase in _ORDER else len(_ORDER), call.phase
