"""The sections of the report, by folder: what each has is a module of a known name, imported when it is asked for.

A section is a folder `bisection/<name>/`, named by its parts in the list `report.Report`. What it may hold:

`report.py` (no torch)   its data, frozen
`trials.py`              what runs beside both sides for it: `Adding`
`observe.py`             what looks at the first pass for it: `Observing`
`search.py`              what it runs after the passes: `Searching`
`measure.py`             its parts of the report, from what was observed and found: `Measuring`
`words.py` (no torch)    what its numbers mean, in sentences
`text.py` (no torch)     its parts on the terminal: `Showing`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from moeparity.bisection.report import PARTS, Report

if TYPE_CHECKING:
    from rich.console import RenderableType

    from moeparity.bisection.observed import Observed
    from moeparity.bisection.prepare import Plan
    from moeparity.bisection.trials import Trials
    from moeparity.engine.lockstep import NodeView
    from moeparity.progress import Callback


class Adding(Protocol):
    """`trials.py` of a section."""

    def trials(self, plan: Plan, trials: Trials) -> Trials:
        """Further trials of the first pass; `trials` are those of the toggles."""
        ...


class SectionObserver(Protocol):
    """What looks at the first pass for a section."""

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        ...

    @property
    def result(self) -> Any:
        """What is kept of the pass."""
        ...


class Observing(Protocol):
    """`observe.py` of a section.

    STATE: the dataclasses that what is kept is made of, so that a finished pass can be written and read.
    """

    STATE: Sequence[type]

    def observer(self, plan: Plan, trials: Trials) -> SectionObserver | None:
        """What looks at the first pass, with its trials; None where there is nothing to see."""
        ...


class Searching(Protocol):
    """`search.py` of a section."""

    def search(self, plan: Plan, observed: Observed, progress: Callback | None) -> Any:
        """What is found by passes of its own; None where nothing is looked for."""
        ...


class Measuring(Protocol):
    """`measure.py` of a section."""

    def parts(self, plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
        """Its parts by field; `report` holds the parts of the sections before it in the list."""
        ...


Shown = Iterator[tuple[str, "RenderableType"]]
"""Titles and bodies; an empty title for what stands without one."""


class Showing(Protocol):
    """`text.py` of a section. SHOWN: by field, what the terminal shows of it."""

    SHOWN: Mapping[str, Callable[[Report], Shown]]


@overload
def modules(kind: Literal["trials"]) -> Mapping[str, Adding]: ...
@overload
def modules(kind: Literal["observe"]) -> Mapping[str, Observing]: ...
@overload
def modules(kind: Literal["search"]) -> Mapping[str, Searching]: ...
@overload
def modules(kind: Literal["measure"]) -> Mapping[str, Measuring]: ...
@overload
def modules(kind: Literal["text"]) -> Mapping[str, Showing]: ...
@cache
def modules(kind: str) -> Mapping[str, Any]:
    """The modules of one kind, by section, in the order of the list."""
    sections = dict.fromkeys(section.name for section in PARTS.values())
    paths = {section: f"moeparity.bisection.{section}.{kind}" for section in sections}
    return {section: import_module(path) for section, path in paths.items() if find_spec(path) is not None}
