"""The sections of the report, by folder: what each has is a module of a known name, imported when it is asked for.

A section is a folder `bisection/<name>/`, named by its parts in the list `report.Report`. What it may hold:

- `report.py` (no torch): its data, frozen dataclasses.
- `trials.py`: `trials(plan, trials) -> Trials`, what runs beside both sides and the toggles in the first pass.
- `observe.py`: `observer(plan, trials) -> SectionObserver | None`, what looks at the first pass; `STATE`, the classes
  that what is kept of it is made of, so that a finished pass can be written and read. Where it keeps something of each
  token, `bytes_per_token(plan) -> int`, at most.
- `search.py`: `search(plan, observed, progress, kept) -> Any | None`, what it finds in passes of its own, each of
  which is kept until the run is done.
- `measure.py`: `parts(plan, observed, report) -> Mapping[str, Any]`, its parts of the report by field; `report` holds
  those of the sections before it in the list.
- `words.py` (no torch): what its numbers mean, in sentences.
- `text.py` (no torch): `SHOWN: Mapping[str, Callable[[Report], Shown]]`, its parts on the terminal, by field.
- `page.py` (no torch): `FIGURES: Mapping[str, Callable[[Report], Figures]]`, its pictures on the page, by field; the
  words beside them are those of `text.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from rich.console import RenderableType

from moeparity.bisection.report import PARTS

if TYPE_CHECKING:
    from moeparity.output.html.page import Block

Shown = Iterator[tuple[str, RenderableType]]
"""Titles and bodies; an empty title for what stands without one."""


Figures = Iterator["Block"]
"""Pictures with what the page's scripts draw in them."""


@cache
def modules(kind: Literal["trials", "observe", "search", "measure", "text", "page"]) -> Mapping[str, Any]:
    """The modules of one kind, by section, in the order of the list."""
    sections = dict.fromkeys(section.name for section in PARTS.values())
    paths = {section: f"moeparity.bisection.{section}.{kind}" for section in sections}
    return {section: import_module(path) for section, path in paths.items() if find_spec(path) is not None}
