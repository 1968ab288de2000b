"""Speculative decoding as steps: several drafted tokens are verified in one step, and rejected ones are thrown away.

A step that verifies k drafts computes k + 1 rows: the last known token, and the drafts behind it. Rejected drafts are
no tokens of their sequence, but their rows go through every op with the others: GEMMs see k + 1 rows, experts get
theirs, and attention has k + 1 queries. So a step with a rejected draft is computed in an added sequence of its own,
which has the known tokens as copies, and of which the sequence copies what was accepted. Later steps read the sequence
alone: as in an engine that works, no key of a rejected draft stays in the cache.

A mistake can be planted: the first rejected drafts of each step stay in the cache, as in an engine that takes back too
few of its computed tokens. Later steps read their keys, and go on at the positions behind them. From the first such
step on every step of the sequence is computed in an added one that has them.

A draft was accepted if it is the sequence's next token: what is sampled in place of a rejected draft is another token.
That holds for greedy decoding and for rejection sampling alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from moeparity.errors import SpecError, Where, counted
from moeparity.plan.schedule.steps import Copy, Phase, Span, Step

Drafts = Sequence[Sequence[int]]
"""The ids drafted in each step of a sequence, from the first step on; none in a step that verifies nothing."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A schedule with verify steps.

    added: ids of the sequences behind those of the tokens, one for each step with a rejected draft. accepted, drafted:
    how many drafts were accepted, and how many there were.
    """

    steps: tuple[Step, ...]
    added: tuple[tuple[int, ...], ...]
    accepted: int
    drafted: int


def verified(
    sequences: Sequence[Sequence[int]],
    prompts: Sequence[int],
    drafts: Sequence[Drafts],
    where: Where,
    *,
    flat: bool,
    kept_drafts: int = 0,
) -> Verified:
    """The steps of sequences with these ids, all of which begin in column 0.

    prompts: how many tokens of each are its prompt. flat: whether the sequences' steps run together, as in a server,
    which prefills first; else one after the other, as in transformers, whose first step has the prompt and drafts.
    kept_drafts: how many rejected drafts of a step stay in the cache; an engine that works keeps none.
    Raises SpecError, with the line of `where` that is a sequence's drafts, for a prompt or drafts that do not fit.
    """
    added: list[tuple[int, ...]] = []
    of_sequences: list[list[Step]] = []
    accepted = 0
    for number, (ids, prompt, of_steps) in enumerate(zip(sequences, prompts, drafts, strict=True)):
        steps, last_added = [], _ADDED
        for step, ids_of_added, count in _steps(
            number, ids, prompt, of_steps, Where(where.path, number + 1), kept_drafts
        ):
            accepted += count
            numbers = {_ADDED: len(sequences) + len(added), _ADDED_BEFORE: last_added}
            steps.append(step if ids_of_added is None else _placed(step, numbers))
            if ids_of_added is not None:
                last_added = numbers[_ADDED]
                added.append(ids_of_added)
        of_sequences.append(steps)
    every = _together(of_sequences, where) if flat else [step for steps in of_sequences for step in steps]
    drafted = sum(len(of_step) for of_steps in drafts for of_step in of_steps)
    return Verified(tuple(every), tuple(added), accepted, drafted)


_ADDED, _ADDED_BEFORE = -1, -2
"""Stand for an added sequence, and for the one that the same sequence added before, until their numbers are known."""


def _steps(
    sequence: int, ids: Sequence[int], prompt: int, drafts: Drafts, where: Where, kept_drafts: int
) -> Iterator[tuple[Step, tuple[int, ...] | None, int]]:
    """The steps of one sequence, each with the ids of the sequence that it adds, and how many drafts were accepted."""
    if not 0 < prompt <= len(ids):
        raise SpecError(f"{where}: the prompt of sequence {sequence} has {prompt} of {counted(len(ids), 'token')}.")
    computed, length = 0, prompt
    cached: tuple[int, ...] = ()
    for number, drafted in enumerate(drafts):
        if length >= len(ids):
            raise SpecError(
                f"{where}: drafts of {counted(len(drafts), 'step')}, and after {number} of them all "
                f"{counted(len(ids), 'token')} of sequence {sequence} are known; expected no more steps."
            )
        count = _accepted(drafted, ids[length : length + len(drafted)])
        phase: Phase = "prefill" if not computed else "verify" if drafted else "decode"
        start, is_stale = len(cached), len(cached) != computed
        rows = (*ids[computed:length], *drafted)
        step = Step(
            spans=(Span(sequence, start, start + len(rows)),),
            phase=phase,
            scored=None if computed else (0,),
            drafted=0 if computed else len(drafted),
        )
        of_added = None
        if count < len(drafted) or is_stale:
            of_added = (*cached, *rows)
            copies = [Copy(_ADDED, 0, start, _ADDED_BEFORE if is_stale else sequence, 0)] if start else []
            copies.append(Copy(sequence, computed, length + count, _ADDED, start - computed))
            span = step.spans[0]._replace(sequence=_ADDED)
            step = replace(step, spans=(span,), copies=tuple(copies), stale=is_stale)
        yield step, of_added, count
        cached = (*cached, *rows[: length - computed + count + kept_drafts])
        computed, length = length + count, length + count + 1
    if computed < len(ids) - 1:
        raise SpecError(
            f"{where}: after {counted(len(drafts), 'step')} token {computed} of sequence {sequence} is not computed; "
            f"expected steps up to token {len(ids) - 2}, the last one but the sampled one. Add `[]` for a step without "
            "a draft."
        )


def _accepted(drafted: Sequence[int], following: Sequence[int]) -> int:
    """How many drafts are the tokens that follow; those behind the end of the sequence are not."""
    pairs = zip(drafted, following, strict=False)
    return next((place for place, (draft, token) in enumerate(pairs) if draft != token), len(following))


def _placed(step: Step, numbers: Mapping[int, int]) -> Step:
    """The step with the numbers of the sequences that were added for it and before it."""

    def number_of(sequence: int) -> int:
        return numbers.get(sequence, sequence)

    return replace(
        step,
        spans=tuple(span._replace(sequence=number_of(span.sequence)) for span in step.spans),
        copies=tuple(c._replace(sequence=number_of(c.sequence), source=number_of(c.source)) for c in step.copies),
    )


def _together(of_sequences: Sequence[Sequence[Step]], where: Where) -> list[Step]:
    """Step i of all sequences as one."""
    steps: list[Step] = []
    for number in range(max(map(len, of_sequences), default=0)):
        parts = [(line, of[number]) for line, of in enumerate(of_sequences, start=1) if number < len(of)]
        early = next((line for line, step in parts if step.drafted), None)
        if early is not None:
            raise SpecError(
                f"{Where(where.path, early)}: drafts beside the prompt; a server prefills alone. Begin with `[]`."
            )
        spans = tuple(span for _, step in parts for span in step.spans)
        phases = {step.phase for _, step in parts}
        phase: Phase = "prefill" if "prefill" in phases else "verify" if "verify" in phases else "decode"
        steps.append(
            Step(
                spans=spans,
                shape="flat",
                phase=phase,
                scored=tuple(range(len(spans))) if phase == "prefill" else None,
                copies=tuple(copy for _, step in parts for copy in step.copies),
                stale=any(step.stale for _, step in parts),
            )
        )
    return steps
