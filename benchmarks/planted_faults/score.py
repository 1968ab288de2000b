"""An answer held to the truth of a case: question by question right, missed, undecided or wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.planted_faults.answer import Answer
from benchmarks.planted_faults.case_files import toggle_of
from benchmarks.planted_faults.cases import Case, Function
from benchmarks.planted_faults.truth import Trial, Truth

Outcome = Literal["right", "missed", "undecided", "wrong"]

QUESTIONS = {
    "first root": "where the two forwards first differ",
    "innocent roots": "no root where the forwards do not differ on equal inputs",
    "all roots": "every root of a whole micro-batch is there",
    "sequences": "how many sequences the first root touches",
    "tokens": "how many tokens it touches",
    "values": "whether the first root differs in dtype only",
    "divergence": "the KL that is shared out is that of a run alone",
    "name": "the choices that give a function's bits; none where no word does",
    "role": "who is to blame where what is planted makes nearly all of it; a clean function has no effect",
    "trials": "the KL of a toggle alone and restored is that of the recipe written out and run alone",
    "no effect": "what is said to have none changes no bit, alone or restored",
    "not finite": "the first node with NaN or an infinity",
    "padding": "that only padded tokens are touched",
    "offset": "the two faults that cancel",
    "not deterministic": "the function that gives other bits when called again",
}
"""What is asked, in the order of the page."""

NEARLY = 0.02
"""Up to this part of the whole divergence the others make next to nothing of it."""

DIGITS = 1e-6
"""Up to this part two KLs are the same: they are summed in other orders."""

SILENT = "is not named"
"""How the reason of a miss ends where nothing at all is said."""

Holds = Callable[[Function, tuple[str, ...]], bool]
"""Whether some choices give a function's bits, by a run of their own."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The outcome of one question about one case, and why where it is not right.

    worded: it is about a name, and there is one.
    """

    question: str
    outcome: Outcome
    why: str = ""
    worded: bool = False


Trials = Callable[[str], Trial]
"""What a toggle does alone and restored, by runs of their own."""


def score(case: Case, truth: Truth, answer: Answer, holds: Holds, trials: Trials) -> tuple[Mark, ...]:
    """All marks of a case."""
    marks = [
        *_roots(truth, answer),
        *_divergence(case, truth, answer),
        *_names(case, truth, answer, holds),
        *_roles(case, truth, answer),
    ]
    marks += _trials(case, answer, trials)
    return (*marks, *_sections(case, truth, answer))


def _roots(truth: Truth, answer: Answer) -> Iterator[Mark]:
    first = next(iter(answer.roots), None)
    outcome: Outcome = "right" if first == truth.first else "missed" if first is None else "wrong"
    yield _mark("first root", outcome, f"said {first}, is {truth.first}")
    invented = [node for node in answer.roots if node not in truth.roots]
    yield _mark("innocent roots", "wrong" if invented else "right", f"{', '.join(invented)} had unequal inputs or none")
    lost = [node for node in truth.roots if node in truth.certain and node not in answer.roots]
    yield _mark("all roots", "missed" if lost else "right", f"not named: {', '.join(lost)}")
    if truth.first is not None and first == truth.first:
        claimed_size, is_ = answer.roots[first], len(truth.roots[first])
        yield _mark(
            "sequences", "right" if claimed_size == is_ else "wrong", f"said {claimed_size}, are {is_} at {first}"
        )
        if not truth.same_values:
            yield _compared("tokens", answer.tokens, truth.tokens)
        alike = "equal" if truth.same_values else "other"
        yield _mark("values", "right" if answer.same_values == truth.same_values else "wrong", f"are {alike} values")


def _divergence(case: Case, truth: Truth, answer: Answer) -> Iterator[Mark]:
    if answer.whole is None or case.unsteady or not math.isfinite(truth.whole):
        return
    equal = math.isclose(answer.whole, truth.whole, rel_tol=DIGITS, abs_tol=1e-15)
    yield _mark("divergence", "right" if equal else "wrong", f"said {answer.whole:.9g}, is {truth.whole:.9g}")


def _names(case: Case, truth: Truth, answer: Answer, holds: Holds) -> Iterator[Mark]:
    for function in case.functions:
        claims = answer.names.get(function.node, ())
        holds_of = {claim: holds(function, claim.choices) for claim in claims}
        false = [claim.choices for claim in claims if claim.whole and not holds_of[claim]]
        worded, words = bool(function.answers), _claims_in_words([function.answers])
        if false:
            yield Mark("name", "wrong", f"{function.node}: {_claims_in_words(false)} claimed, is {words}", worded)
        elif worded and not any(holds_of.values()):
            absent = "" if function.node in answer.names else ", not asked there"
            yield Mark("name", "missed", f"{function.node}: {words}{absent}", worded)
        elif function.faulty:
            yield Mark("name", "right", worded=worded)


def _claims_in_words(claims: list[tuple[str, ...]]) -> str:
    return " or ".join(" with ".join(claim) or "no known choice" for claim in claims)


def _roles(case: Case, truth: Truth, answer: Answer) -> Iterator[Mark]:
    if not answer.roles or case.unsteady or case.offset or not math.isfinite(truth.whole):
        return
    faulty = [function for function in case.functions if function.faulty]
    guilty = {toggle_of(function, case) for function in faulty} | set(case.semantic)
    idle = {toggle_of(function, case) for function in case.functions} - guilty
    for name in sorted(idle & set(answer.roles)):
        role = answer.roles[name]
        yield _mark("role", "right" if role == "had no effect" else "wrong", f"{name}, a clean function, is {role}")
    if not truth.whole > 0:
        return
    another = {toggle_of(function, case) for function in faulty if function.is_another} | set(case.semantic)
    blamed = max(truth.benign, abs(truth.whole - truth.guilty)) <= NEARLY * truth.whole
    for name in sorted(guilty & set(answer.roles)):
        yield from _guilty(name, answer.roles[name], alone=blamed and len(guilty) == 1, elsewhere=name in another)
    for name in sorted(set(case.benign) & set(answer.roles)):
        wrong = blamed and answer.roles[name] == "culprit"
        yield _mark("role", "wrong" if wrong else "right", f"{name}, a legal rounding, is a culprit")


def _trials(case: Case, answer: Answer, trials: Trials) -> Iterator[Mark]:
    if case.unsteady:
        return
    toggles = {*case.benign, *case.semantic, *(toggle_of(function, case) for function in case.functions)}
    for name in sorted(toggles & set(answer.trials)):
        truth = trials(name)
        pairs = zip(("alone", "restored"), answer.trials[name], (truth.alone, truth.restored), strict=True)
        unlike = [
            f"{name} {kind}: said {claimed_kl:.6g}, is {is_:.6g}"
            for kind, claimed_kl, is_ in pairs
            if _unlike(claimed_kl, is_)
        ]
        yield _mark("trials", "wrong" if unlike else "right", "; ".join(unlike))
        if answer.roles.get(name) == "had no effect":
            yield _mark("no effect", "right" if truth.idle else "wrong", f"{name} changes bits")


def _unlike(claimed_kl: float | None, is_: float) -> bool:
    """Whether a KL is said that is another; of one that is not finite only that counts."""
    if claimed_kl is None:
        return False
    if not math.isfinite(is_):
        return math.isfinite(claimed_kl)
    return not math.isclose(claimed_kl, is_, rel_tol=DIGITS, abs_tol=1e-15)


def _guilty(name: str, role: str, *, alone: bool, elsewhere: bool) -> Iterator[Mark]:
    """alone: it makes nearly all of the divergence. other: it is no legal rounding, but another function."""
    if alone:
        wrong = role in {"had no effect", "saturated", "masked", "helps", "offsets"}
        outcome: Outcome = "wrong" if wrong else "right" if role == "culprit" else "undecided"
        yield _mark("role", outcome, f"{name}, which makes nearly all of it, is {role}")
    elif elsewhere:
        yield _mark("role", "wrong" if role == "saturated" else "right", f"{name}, another function, is {role}")


def _sections(case: Case, truth: Truth, answer: Answer) -> Iterator[Mark]:
    if truth.not_finite is not None:
        node, tokens = truth.not_finite
        claim = answer.not_finite
        if claim is None:
            yield Mark("not finite", "missed", f"{node} {SILENT}")
        else:
            is_there = claim[0] == node and claim[1:] in tokens
            yield _mark("not finite", "right" if is_there else "wrong", f"said {claim}, is {node} at {sorted(tokens)}")
        if not math.isfinite(truth.whole) and answer.roles:
            yield Mark("not finite", "wrong", "shares are taken of it")
    elif answer.not_finite is not None:
        yield Mark("not finite", "wrong", f"{answer.not_finite[0]} is named, and every value is finite")
    if truth.padded:
        yield _compared("padding", answer.padded, expected=True)
    elif answer.padded:
        yield Mark("padding", "wrong", "real tokens are touched")
    if case.offset is not None:
        yield _offset(case, answer, frozenset(case.offset))
    elif answer.offset is not None:
        yield Mark("offset", "wrong", f"{', '.join(sorted(answer.offset))} do not cancel")
    if case.unsteady:
        yield _compared("not deterministic", answer.unsteady or None, frozenset({case.unsteady}))
    elif answer.unsteady:
        yield Mark("not deterministic", "wrong", f"{', '.join(sorted(answer.unsteady))} always gives the same bits")


def _offset(case: Case, answer: Answer, pair: frozenset[str]) -> Mark:
    """Of a pair that is not named as one, no half may be said to help or to be to blame on its own."""
    halves = {toggle_of(function, case) for function in case.functions if function.node in pair}
    judged = [
        f"{name} {role}" for name, role in answer.roles.items() if name in halves and role in {"helps", "culprit"}
    ]
    if answer.offset is None and judged:
        return Mark("offset", "wrong", f"not named, and said instead: {', '.join(judged)}")
    return _compared("offset", answer.offset, pair)


def _compared(question: str, claim: object, expected: object) -> Mark:
    if claim is None:
        return Mark(question, "missed", f"{_plain(expected)} {SILENT}")
    return _mark(question, "right" if claim == expected else "wrong", f"said {_plain(claim)}, is {_plain(expected)}")


def _plain(claim: object) -> str:
    return ", ".join(sorted(map(str, claim))) if isinstance(claim, frozenset) else str(claim)


def _mark(question: str, outcome: Outcome, why: str) -> Mark:
    return Mark(question, outcome, "" if outcome == "right" else why)
