"""Tables and paragraphs of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table(heading: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """The lines of a table; what would end a cell is written as itself."""
    yield f"| {' | '.join(heading)} |"
    yield "|" + "---|" * len(heading)
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"


def paragraphs(text: str | None) -> str:
    """A docstring's text without its indentation."""
    return "\n".join(line.strip() for line in (text or "").splitlines()).strip()


def _cell(text: str) -> str:
    """One line; outside of code `<` begins no tag, and inside nothing is to be escaped but what ends the cell."""
    pieces = " ".join(text.split()).replace("|", r"\|").split("`")
    return "`".join(piece if at % 2 else piece.replace("<", "&lt;") for at, piece in enumerate(pieces))
