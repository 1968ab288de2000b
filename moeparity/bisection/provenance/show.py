"""What a report was made from, as shown: digests of files, versions, the machine."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.data import ReportData
from moeparity.bisection.provenance.data import FileDigest
from moeparity.output.blocks import Cell, Group, columns, group, names, table
from moeparity.output.words import quantity


def show(report: ReportData) -> Iterator[Group]:
    """The group of files and versions."""
    made_with = report.provenance
    if made_with is None:
        return
    files = [
        (_name(file), str(file.bytes), file.sha256)
        for file in (made_with.recipe, made_with.tokens, *made_with.weights, *made_with.trace)
    ]
    versions: list[tuple[Cell, ...]] = [(name, version) for name, version in made_with.versions]
    versions.append(("machine", f"{made_with.cpu}, {made_with.capability}, {made_with.system}"))
    versions.append(("device", f"{made_with.device}, {quantity(made_with.threads, 'thread')}"))
    of = columns("bytes", "sha256", first="file", words=("sha256",))
    yield group("Files and versions", table(of, files), names(versions))


def _name(file: FileDigest) -> str:
    return file.name if file.of == "file" else f"{file.name} (digest of its {file.of} alone)"
