"""The blocks of which reports are made, as data; a terminal, a page, Markdown and a notebook render the same blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

State = Literal["pass", "fail", "inconclusive", "error", "done"]
"""The verdict; `error` if there is no answer; `done` if nothing was asked that could fail."""
MOST_ROWS = 24
"""A table over layers has at most this many rows."""
PEAKS = 4
"""How many layers a long table shows in any case: those with the largest jumps, or the most flips."""
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class Styled:
    """Words with a look: `bold`, `dim`, a colour, or several of these."""

    text: str
    style: str = ""


Words = str | Styled
Phrase = Words | tuple[Words, ...]
"""Words that follow each other on one line."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a cell; `share` is its length as a fraction of the cell's width."""

    share: float


Cell = Phrase | Bar


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a report."""


@dataclass(frozen=True, slots=True)
class Status(Block):
    """The first and last block of a report: the verdict in words, and further lines, each with a name.

    but: what to know beside a verdict that passes.
    """

    state: State
    text: str
    but: tuple[str, ...] = ()
    lines: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Lines(Block):
    """Sentences, one below the other.

    kind: `plain`; `bullets`, each after a dash; `numbered`.
    """

    lines: tuple[Phrase, ...]
    kind: Literal["plain", "bullets", "numbered"] = "plain"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    kind: a `number` and a `word` are never broken; a `name` is wrapped if there is too little room. optional: a narrow
    terminal leaves the column out.
    """

    title: str
    kind: Literal["number", "word", "name"] = "number"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table; `below` are lines under it that take its whole width."""

    cells: tuple[Cell, ...]
    below: tuple[str, ...] = ()
    style: str = ""


@dataclass(frozen=True, slots=True)
class Table(Block):
    """Rows under columns. If no column has a title, the rows are names with what they stand for.

    notes: lines below the table. stacked: rows have lines below them, so the first column is the first to be narrowed.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[Phrase, ...] = ()
    stacked: bool = False

    @property
    def has_header(self) -> bool:
        """Whether any column has a title."""
        return any(column.title for column in self.columns)


@dataclass(frozen=True, slots=True)
class Figure(Block):
    """A picture as data; it is shown where pictures can be."""

    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Block):
    """Blocks under a title.

    asked_for: the name by which a terminal prints a long group on request; else it prints the line `holds`.
    question: the page's question that it answers; a group without one is a section of its own.
    """

    title: str
    blocks: tuple[Block, ...]
    asked_for: str = ""
    holds: str = ""
    question: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A section of a page: its anchor, its name in the contents, the question, and what is said if there is no
    answer.
    """

    key: str
    short: str
    title: str
    absent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A report: the command that made it, on what it was run, its blocks (the first is its `Status`), and the questions
    of its page in order.
    """

    command: str
    subject: str
    blocks: tuple[Block, ...]
    questions: tuple[Question, ...] = ()

    @property
    def status(self) -> Status:
        """The block that opens and closes the report."""
        status = self.blocks[0]
        assert isinstance(status, Status)
        return status


def lines(*phrases: Phrase) -> Lines:
    """Sentences, one below the other."""
    return Lines(phrases)


def bullets(sentences: Iterable[Phrase]) -> Lines:
    """Sentences, each after a dash."""
    return Lines(tuple(sentences), "bullets")


def notes(*sentences: str) -> Lines:
    """Sentences that explain the block above them."""
    return Lines(tuple(Styled(sentence, "dim") for sentence in sentences))


def warnings(sentences: Iterable[str]) -> Iterator[Lines]:
    """Sentences that warn, one below the other; no block without any."""
    phrases = tuple(Styled(f"warning: {sentence}", "yellow") for sentence in sentences)
    if phrases:
        yield Lines(phrases)


def group(title: str, *blocks: Block | None, asked_for: str = "", holds: str = "", question: str = "") -> Group:
    """Blocks under a title; None is left out."""
    present = tuple(block for block in blocks if block is not None)
    return Group(title=title, blocks=present, asked_for=asked_for, holds=holds, question=question)


def names(rows: Iterable[tuple[Cell, ...]]) -> Table:
    """Names with what they stand for, in columns without titles."""
    all_rows = tuple(Row(tuple(row)) for row in rows)
    width = max((len(row.cells) for row in all_rows), default=0)
    return Table((Column("", "name"),) * width, all_rows)


def columns(
    *titles: str, first: str = "", last: str = "", words: Collection[str] = (), optional: Sequence[str] = ()
) -> tuple[Column, ...]:
    """Columns with these titles, which hold numbers, or single words if `words` has their title. `first` and `last` are
    the titles of columns of names before and behind them.
    """
    inner = [Column(title, "word" if title in words else "number", title in optional) for title in titles]
    return (*([Column(first, "name")] * bool(first)), *inner, *([Column(last, "name")] * bool(last)))


def table(of: Sequence[Column], rows: Iterable[Row | Sequence[Cell]], *below: Phrase) -> Table:
    """A table of these columns, with lines below it."""
    return Table(tuple(of), tuple(row if isinstance(row, Row) else Row(tuple(row)) for row in rows), below)


def stacked(of: Sequence[Column], rows: Iterable[Row], *below: Phrase) -> Table:
    """A table whose rows have lines of their own below them."""
    return replace(table(of, rows, *below), stacked=True)


def thinned(rows: Sequence[_Row], peaks: Collection[int]) -> tuple[list[_Row], list[Phrase]]:
    """A selection of many rows, with the first, the last and the `peaks`, and a note that says so."""
    if len(rows) <= MOST_ROWS:
        return list(rows), []
    count = MOST_ROWS - len(peaks)
    step = (len(rows) - 1) / (count - 1)
    indices = sorted({round(i * step) for i in range(count)} | set(peaks))
    return [rows[i] for i in indices], [
        Styled(f"{len(indices)} of {len(rows)} rows; all of them are in --json.", "dim")
    ]


def surplus(rows: int) -> list[Phrase]:
    """The note below a table of the first rows that says how many further `rows` only the JSON has; none if there are
    none.
    """
    return [Styled(f"{rows} more in --json.", "dim")] if rows > 0 else []


def plain(phrase: Phrase) -> str:
    """The words alone."""
    if isinstance(phrase, tuple):
        return "".join(plain(part) for part in phrase)
    return phrase if isinstance(phrase, str) else phrase.text
