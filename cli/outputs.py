"""The files a command is asked to write: looked at before anything is read, written before anything is printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from moeparity import paths
from moeparity.errors import MoeparityError
from moeparity.output.words import printable
from moeparity.output.writing import refuse_clashes, write_text

if TYPE_CHECKING:
    from rich.console import Console

    from moeparity.output.html.page import PageSection
    from moeparity.output.status import State

_STANDARD_OUTPUT = (Path("-"), Path("/dev/stdout"))


class Outputs:
    """Outputs by their options, of which one text may go to standard output."""

    def __init__(self, by_option: Mapping[str, Path | None]) -> None:
        wanted = {option: path for option, path in by_option.items() if path is not None}
        self._printed = [option for option, path in wanted.items() if path in _STANDARD_OUTPUT]
        self.files = {option: path for option, path in wanted.items() if path not in _STANDARD_OUTPUT}
        if len(self._printed) > 1:
            raise MoeparityError(f"{' and '.join(self._printed)} both go to standard output. Name a file for one.")
        refuse_clashes(self.files)

    def text(self, option: str, write: Callable[[], str]) -> None:
        """Write what `write` returns, where the option was given. Raises MoeparityError."""
        if option in self._printed:
            print(write())
        else:
            self.file(option, lambda path: write_text(path, write()))

    def page(
        self,
        about: tuple[str, object, State],
        show: Callable[[Console], object],
        pictures: Callable[[], PageSection | None] = lambda: None,
    ) -> None:
        """Write what `show` prints as a page to --html, where it was given, with `pictures`; `about` it: the command,
        what it was run on, the verdict. Raises MoeparityError.
        """
        from moeparity.output.html.transcript import Transcript

        def to_html() -> str:
            transcript = Transcript()
            show(cast("Console", transcript))
            command, subject, state = about
            return transcript.page(command, str(subject), state, pictures()).to_html()

        self.text("--html", to_html)

    def file(self, option: str, write: Callable[[Path], object]) -> None:
        """Let `write` write the file, where the option was given. Raises MoeparityError."""
        if option in self.files:
            paths.refuse_asked_for(option, self.files[option])
            write(self.files[option])

    def console(self) -> Console:
        """Where the command prints: standard error if a file's contents go to standard output."""
        from moeparity.cli import render

        out: Console = render.console(self.stream)
        return out

    def print(self, text: str) -> None:
        """Print lines there as they are, however long."""
        print(printable(text), file=self.stream)

    @property
    def stream(self) -> TextIO:
        """Where it prints."""
        return sys.stderr if self._printed else sys.stdout


@contextmanager
def outputs(by_option: Mapping[str, Path | None], unprinted: tuple[str, ...] = ()) -> Iterator[Outputs]:
    """While the context lasts, a file that is to be written is not read. Raises MoeparityError for files that can't be
    written, that are one, or, of the options in `unprinted`, standard output.
    """
    for option in unprinted:
        if by_option.get(option) in _STANDARD_OUTPUT:
            raise MoeparityError(f"{option}: it cannot go to standard output. Name a file.")
    files = Outputs(by_option)
    with paths.reserved(files.files):
        yield files
