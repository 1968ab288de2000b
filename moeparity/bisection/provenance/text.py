"""What a report was made with, as a table; the screen has the machine in its head and goes without."""

from __future__ import annotations

from rich.console import Group, RenderableType

from moeparity.bisection.provenance.report import FileDigest, Provenance
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import plain_grid, plain_table
from moeparity.output.words import quantity


def _section(report: Report) -> Shown:
    if report.provenance is not None:
        yield "Files and versions", provenance_table(report.provenance)


def provenance_table(made_with: Provenance) -> RenderableType:
    """Files with their digests, then versions and the machine."""
    files = plain_table("bytes", "sha256", names="file", names_first=True)
    for file in (made_with.recipe, made_with.tokens, *made_with.weights, *made_with.trace):
        files.add_row(_name(file), str(file.bytes), file.sha256)
    grid = plain_grid(2)
    for name, version in made_with.versions:
        grid.add_row(name, version)
    grid.add_row("machine", f"{made_with.cpu}, {made_with.capability}, {made_with.system}")
    grid.add_row("device", f"{made_with.device}, {quantity(made_with.threads, 'thread')}")
    return Group(files, grid)


def _name(file: FileDigest) -> str:
    return file.name if file.of == "file" else f"{file.name} (digest of its {file.of} alone)"


SHOWN = {"provenance": _section}
