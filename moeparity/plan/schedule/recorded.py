"""A recorded list of batches: one JSON object per step, on line N that of step N.

| key | holds |
|---|---|
| `spans` | a list of [sequence, first, last + 1], in columns of the token grid |
| `shape` | `flat` (the default), `dense` or `packed` |
| `phase` | `forward`, `prefill`, `chunk`, `decode` or `verify`; by default what the spans look like |
| `padding` | rows computed behind the others and thrown away |
| `scored` | places in `spans` whose last token reaches the head; every token of the step by default |
| `verified` | places in `spans` all of whose tokens do, beside those of `scored` |
| `drafted` | how many tokens before the last one of each span in `scored` reach the head too |
| `isolated` | false where a token of a pack sees those of other sequences |
| `copies` | a list of [sequence, first, last + 1, source, shift]: tokens that were found in a cache |
| `stale` | true where copied tokens may stand behind others than their own sequence has: rejected drafts in a cache |
| `requests`, `preempted` | a server's names of the requests of `spans`, and of those that it stopped; for people |
| `weights` | the version of the weights that the step ran on; the last one is the recipe's checkpoint |
| `error` | why a server's plugin could not follow it from here on: the file is refused |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from moeparity import paths
from moeparity.errors import SpecError, Where, listed, shown
from moeparity.plan.schedule.steps import PHASES, SHAPES, Copy, Phase, Positions, Schedule, Span, Step
from moeparity.plan.schedule.token_grid import MOST_STEPS, refuse_more
from moeparity.plan.spec import reader
from moeparity.plan.spec.json_lines import json_object

LARGEST: Final = 2**31
"""All numbers in a recorded batch must be below this."""
OF_THE_PROGRAM: Final = "in the program's own forwards"
"""The name of a schedule that was taken from a trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A schedule that was read from the file `where`; its step N is on line N."""

    schedule: Schedule
    where: Where


def read_batches(name: str, positions: Positions, where: Where) -> Recorded:
    """The batches of a file, whose path starts at the folder of `where`. Raises SpecError with the line at fault."""
    path = reader.find_file(name, where, "schedule.file")
    started: set[int] = set()
    steps: list[Step] = []
    versions: dict[str, Where] = {}
    updates: list[int] = []
    for at, fields in step_lines(path):
        updates.append(_updates_so_far(at, fields, versions))
        steps.append(_step(fields, started))
        started.update(part.sequence for part in steps[-1].parts)
    steps = [replace(step, lag=updates[-1] - so_far) for step, so_far in zip(steps, updates, strict=True)]
    schedule = Schedule(steps=tuple(steps), positions=positions, name=f"recorded in {name}")
    return Recorded(schedule=schedule, where=Where(path))


def step_lines(path: Path) -> Iterator[tuple[Where, dict[str, Any]]]:
    """The lines of a file of batches, each with what it holds, of any version of the weights. Raises SpecError."""
    try:
        text = paths.contents(path, "recorded batches").decode("utf-8")
    except OSError as error:
        raise SpecError(f"{Where(path)}: cannot be read: {error.strerror}. Expected a file of JSON lines.") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{Where(path)}: not JSON lines: byte {error.start} is not UTF-8.") from None
    lines = text.removesuffix("\n").split("\n")
    refuse_more(len(lines), paths.limit(MOST_STEPS), Where(path))
    for number, line in enumerate(lines, start=1):
        yield Where(path, number), _checked(Where(path, number), line)


def _checked(where: Where, line: str) -> dict[str, Any]:
    example = '{"spans": [[0, 0, 5]]}'
    fields = json_object(where, line, keys=_KEYS, thing="step", example=example, error=SpecError)
    for key, (is_right, expected) in _KEYS.items():
        if key in fields and not is_right(fields[key]):
            raise SpecError(f"{where}: {key} is {shown(fields[key])}; expected {expected}.")
    if "error" in fields:
        raise SpecError(
            f"{where}: what ran from here on is not known: {fields['error']}. Expected a schedule without an error: "
            "leave out this line, all behind it, and the sequences that these steps belong to."
        )
    if "spans" not in fields:
        raise SpecError(f"{where}: key 'spans' is missing. Add it: the tokens of this step.")
    return fields


def _step(fields: dict[str, Any], started: set[int]) -> Step:
    spans = tuple(Span(*span) for span in fields["spans"])
    return Step(
        spans=spans,
        shape=fields.get("shape", "flat"),
        phase=fields.get("phase") or phase_of(spans, started),
        isolated=fields.get("isolated", True),
        padding=fields.get("padding", 0),
        scored=tuple(fields["scored"]) if "scored" in fields else None,
        verified=tuple(fields.get("verified", ())),
        drafted=fields.get("drafted", 0),
        copies=tuple(Copy(*copy) for copy in fields.get("copies", ())),
        stale=fields.get("stale", False),
    )


def _updates_so_far(where: Where, fields: dict[str, Any], versions: dict[str, Where]) -> int:
    """How many updates of the weights there were up to a step; `versions` are those of the steps before, each with its
    first line. A step that names none runs on the weights of the step before. Raises SpecError for weights that come
    back.
    """
    version = fields.get("weights")
    if version is not None and version in versions and version != [*versions][-1]:
        first, (latest, since) = versions[version], [*versions.items()][-1]
        raise SpecError(
            f"{where}: this step ran on weights {shown(version)}, as line {first.line} did, and those before it from "
            f"line {since.line} on ran on {shown(latest)}; expected versions that do not come back."
        )
    if version is not None:
        versions.setdefault(version, where)
    return max(len(versions) - 1, 0)


def phase_of(spans: tuple[Span, ...], started: set[int]) -> Phase:
    """The phase of a step that does not name one; `started` are the sequences that earlier steps have begun."""
    if all(span.tokens == 1 and span.sequence in started for span in spans):
        return "decode"
    return "chunk" if any(span.sequence in started for span in spans) else "prefill"


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _are_places(value: object) -> bool:
    return isinstance(value, list) and _are_numbers(value) and value == sorted(set(value))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_spans(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(_are_numbers(span) and len(span) == 3 for span in value)


def _are_copies(value: object) -> bool:
    if not isinstance(value, list):
        return False
    return all(
        isinstance(copy, list) and len(copy) == 5 and _are_numbers(copy[:4]) and type(copy[4]) is int for copy in value
    )


_KEYS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "spans": (_are_spans, "a list of [sequence, first, last + 1], whole numbers, at least one"),
    "shape": (SHAPES.__contains__, f"one of {listed(SHAPES)}"),
    "phase": (PHASES.__contains__, f"one of {listed(PHASES)}"),
    "padding": (_is_number, "a whole number of rows"),
    "scored": (_are_places, "a list of places in `spans`, from 0, ascending"),
    "verified": (_are_places, "a list of places in `spans`, from 0, ascending"),
    "drafted": (_is_number, "a whole number of tokens"),
    "isolated": (lambda value: isinstance(value, bool), "true or false"),
    "copies": (_are_copies, "a list of [sequence, first, last + 1, source, shift], whole numbers"),
    "stale": (lambda value: isinstance(value, bool), "true or false"),
    "requests": (_are_texts, "a list of names"),
    "preempted": (_are_texts, "a list of names"),
    "weights": (_is_text, "a version, as text"),
    "error": (_is_text, "a sentence"),
}
"""The keys of a step, each with its check and what an error message says is expected."""
