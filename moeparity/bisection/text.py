"""A Report for the terminal: what a reader wants to know first, what is short, and what was asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from moeparity.bisection.report import ON_REQUEST, PARTS, SCREEN, Report
from moeparity.bisection.sections import Shown, modules
from moeparity.errors import MoeparityError, did_you_mean, listed
from moeparity.output.tables import Words, plain_grid


def print_report(report: Report, console: Console, sections: Collection[str] = ()) -> None:
    """Print a report: the first of its sections, which comes again at the end, all that are short, and of the long ones
    those in `sections`; of each other one a line.
    """
    for title, body in _screen(report, sections):
        if title:
            console.print(Text(f"\n{title}", style="bold"))
        console.print(Padding(body, (0, 0, 0, 2 if title else 0), expand=False))


def asked_for(names: Sequence[str], *, all_of_them: bool) -> Collection[str]:
    """The sections that a user asks for. Raises MoeparityError for a name that no section has."""
    for name in names:
        if name not in ON_REQUEST:
            raise MoeparityError(
                f"--section {name}: there is no such section; expected one of {listed(ON_REQUEST)}."
                f"{did_you_mean(name, ON_REQUEST)}"
            )
    return ON_REQUEST if all_of_them else tuple(names)


def _screen(report: Report, sections: Collection[str]) -> Shown:
    first, *others = SCREEN
    yield from _shown(first, report)
    for name in others:
        if not PARTS[name].asked or PARTS[name].asked in sections:
            yield from _shown(name, report)
    present = {PARTS[name].asked: PARTS[name].holds for name in reversed(others) if any(_shown(name, report))}
    yield from _absent(sections, present)
    unshown = {name: present[name] for name in ON_REQUEST if name in present and name not in sections}
    if unshown:
        yield "On request (-v for all of them)", _listed(unshown.items())
    yield "", Text("\n", end="")
    yield from _shown(first, report)


def _absent(sections: Collection[str], present: Collection[str]) -> Iterator[tuple[str, RenderableType]]:
    """What was asked for by name and is not in this report; of all that there are, nobody misses one."""
    if set(sections) == set(ON_REQUEST):
        return
    for name in dict.fromkeys(sections):
        if name not in present:
            yield (
                "",
                Words(f"\n--section {name}: nothing; the recipe does not ask for it, or there is nothing to tell."),
            )


def _listed(sections: Iterable[tuple[str, str]]) -> RenderableType:
    """How to see each of the sections that are left out, and what it holds."""
    table = plain_grid(2)
    for name, holds in sections:
        table.add_row(f"--section {name}", holds)
    return table


def _shown(name: str, report: Report) -> Shown:
    parts: Shown = modules("text")[PARTS[name].name].SHOWN[name](report)
    return parts
