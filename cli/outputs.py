"""The files that a command writes: checked before anything is read, and written before anything is printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from moeparity import paths
from moeparity.errors import MoeparityError
from moeparity.output.words import printable
from moeparity.output.writing import refuse_clashes, write_text

if TYPE_CHECKING:
    from rich.console import Console

    from moeparity.output.blocks import Block, Document
    from moeparity.progress import Callback

_STANDARD_OUTPUT = (Path("-"), Path("/dev/stdout"))


class Reported(Protocol):
    """A result that writes itself as JSON."""

    def to_json(self) -> str:
        """The result as strict JSON."""


class Outputs:
    """Output files by their options; one text may go to standard output."""

    def __init__(self, by_option: Mapping[str, Path | None]) -> None:
        wanted = {option: path for option, path in by_option.items() if path is not None}
        self._printed = [option for option, path in wanted.items() if path in _STANDARD_OUTPUT]
        self.files = {option: path for option, path in wanted.items() if path not in _STANDARD_OUTPUT}
        if len(self._printed) > 1:
            raise MoeparityError(f"{' and '.join(self._printed)} both go to standard output. Name a file for one.")
        refuse_clashes(self.files)

    def text(self, option: str, write: Callable[[], str]) -> None:
        """Write the result of `write`, if the option was given. Raises MoeparityError."""
        if option in self._printed:
            print(write())
        else:
            self.file(option, lambda path: write_text(path, write()))

    def document(self, document: Document) -> None:
        """Write the page to --html, if given, and print the report. Raises MoeparityError."""
        from moeparity.output.html.page import html

        self.text("--html", lambda: html(document))
        self.show(document.blocks)

    def show(self, blocks: Iterable[Block]) -> None:
        """Print blocks."""
        from moeparity.output.terminal import print_blocks

        print_blocks(blocks, self.console())

    def report(self, result: Reported, document: Document, short: Document | None = None) -> None:
        """Write the result to --json, its page to --html and its short report (the document by default) to --markdown,
        each if given, and print the report. Raises MoeparityError.
        """
        from moeparity.output.markdown import markdown

        self.text("--json", result.to_json)
        self.text("--markdown", lambda: markdown(short or document))
        self.document(document)

    def progress(self) -> AbstractContextManager[Callback | None]:
        """The progress line of a long step, as `progress_line` gives it."""
        from moeparity.cli.progress import progress_line

        line: AbstractContextManager[Callback | None] = progress_line()
        return line

    def file(self, option: str, write: Callable[[Path], object]) -> None:
        """Let `write` write the file, if the option was given. Raises MoeparityError."""
        if option in self.files:
            paths.refuse_asked_for(option, self.files[option])
            write(self.files[option])

    def console(self) -> Console:
        """The console on which the command prints: standard error if a file's contents go to standard output."""
        from moeparity.cli import render

        out: Console = render.console(self.stream)
        return out

    def print(self, text: str) -> None:
        """Print lines unchanged, however long."""
        print(printable(text), file=self.stream)

    @property
    def stream(self) -> TextIO:
        """The stream on which the command prints."""
        return sys.stderr if self._printed else sys.stdout


@contextmanager
def outputs(by_option: Mapping[str, Path | None], unprinted: tuple[str, ...] = ()) -> Iterator[Outputs]:
    """A context in which a file that will be written can't be read. Raises MoeparityError for files that can't be
    written, for two that are the same, and for standard output if the option is in `unprinted`.
    """
    for option in unprinted:
        if by_option.get(option) in _STANDARD_OUTPUT:
            raise MoeparityError(f"{option}: it cannot go to standard output. Name a file.")
    files = Outputs(by_option)
    with paths.reserved(files.files):
        yield files


def refuse_reports(command: str, wanted: Mapping[str, Path | None]) -> None:
    """Raise MoeparityError if --dry-run, which makes no report, is to write one."""
    for option in (option for option, path in wanted.items() if path is not None):
        raise MoeparityError(f"{command}: --dry-run makes no report for {option} to write. Give one of them.")
