"""What commands do to the script itself: functions, `source`, `eval`, `shift`, `exit`; all others are started."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tree_sitter import Node

from moeparity import paths
from moeparity.errors import SpecError, Where, whole_number
from moeparity.profiles.launch.reading.shell.scope import Scope, environment
from moeparity.profiles.launch.reading.shell_words import Command, Word, is_known, plain, unresolved
from moeparity.profiles.launch.source import Opens

_SILENT = ("echo", "printf", "true", ":", "set", "shopt", "trap", "wait", "sleep", "ulimit", "alias", "pushd", "popd")
"""Builtins that neither start a program nor set what is followed."""

_SHELLS_OWN = re.compile(r"\bbin/(activate|env)$|/conda\.sh$|^\$\((conda|mamba|micromamba|ssh-agent)\b")
"""Scripts that set up a shell, `PATH` above all: of virtual environments, of uv, of conda and of agents."""


class Walker(Protocol):
    """What walks the statements of a script, `moeparity.profiles.launch.reading.shell.interpret`."""

    def script(self, text: str) -> None:
        """All statements of a text."""

    def statement(self, node: Node) -> None:
        """One statement."""


class Builtins:
    """What a command does to the script itself; all others are commands that it starts."""

    def __init__(self, scope: Scope, path: Path, walker: Callable[..., Walker]) -> None:
        self.scope, self.path, self.walker = scope, path, walker

    def run(self, words: tuple[Word, ...], prefix: tuple[tuple[str, Word], ...], where: Where) -> None:
        """A command with its words."""
        name = words[0].text
        if name in self.scope.functions:
            self._call(name, words[1:])
        elif name in ("source", "."):
            self._source(words, where)
        elif name in ("exit", "return", "break", "continue"):
            self.scope.stopped = name
        elif name == "unset":
            self._unset(words, where)
        elif name in ("read", "mapfile", "readarray", "let"):
            for word in words[1:]:
                self.scope.assign(word.text.partition("=")[0], (Word(unresolved(f"{name}"), where),))
        elif name == "printf" and len(words) > 2 and words[1].text == "-v":
            self.scope.assign(words[2].text, (Word(unresolved("printf"), where),))
        elif name == "shift":
            count = whole_number(words[1].text) if len(words) > 1 else 1
            self.scope.arguments = self.scope.arguments[1 if count is None else count :]
        elif name == "set":
            self._set(words)
        elif name in ("eval", "bash", "sh") and (name == "eval" or _letter_c(words)):
            self._nested(words[1:] if name == "eval" else words[_letter_c(words) + 1 :][:1], where)
        elif name not in _SILENT:
            variables = (*environment(self.scope), *prefix)
            self.scope.commands.append(Command(words, variables, where, self.scope.condition))

    def _set(self, words: tuple[Word, ...]) -> None:
        """`set -- words` are the script's arguments from here on; `set -a` hands on all that is set."""
        texts = [word.text for word in words]
        if "--" in texts:
            self.scope.arguments, self.scope.called = words[texts.index("--") + 1 :], True
        if "allexport" in texts or any(text.startswith(("-", "+")) and "a" in text[1:] for text in texts[1:2]):
            self.scope.exports_all = texts[1].startswith("-")

    def _unset(self, words: tuple[Word, ...], where: Where) -> None:
        """Variables that are set no more; of a name that is not known that is said."""
        for word in words[1:] if all(word.text != "-f" for word in words) else ():
            if word.is_known and not word.condition:
                self.scope.unset(word.text)
            else:
                self.scope.note(f"`unset {plain(word.text)}` is not followed", where)

    def _call(self, name: str, arguments: tuple[Word, ...]) -> None:
        body, home = self.scope.functions[name]
        before = self.scope.arguments, self.scope.called
        self.scope.arguments, self.scope.called = arguments, True
        self.walker(self.scope, home.path, home.line, home.expander.hidden).statement(body)
        self.scope.arguments, self.scope.called = before
        if self.scope.stopped == "return":
            self.scope.stopped = ""

    def _nested(self, words: tuple[Word, ...], where: Where) -> None:
        text = " ".join(word.text for word in words)
        if not is_known(text) or any(word.condition for word in words):
            opens: Opens = "" if _SHELLS_OWN.search(plain(text)) else "environment"
            self.scope.note(f"`{plain(text)[:60]}` is run as a script and not resolved", where, opens)
            return
        scope = self.scope
        scope.budget.enter(where)
        self.walker(scope, where.path, where.line or 1).script(text)
        scope.budget.leave()

    def _source(self, words: tuple[Word, ...], where: Where) -> None:
        name = words[1].text if len(words) > 1 else ""
        path = self.path.parent / plain(name)
        if not is_known(name) or not paths.is_file(path):
            lacks = "is not there" if is_known(name) else "is not resolved"
            opens: Opens = "" if _SHELLS_OWN.search(plain(name)) else "environment"
            self.scope.note(f"`source {plain(name)}` {lacks}: what it sets is not known", where, opens)
            return
        try:
            text = paths.contents(path, "launch configuration").decode("utf-8")
        except (OSError, UnicodeDecodeError):
            raise SpecError(f"{where}: {plain(name)!r} cannot be read as a script. Check the path.") from None
        self.walker(self.scope, path).script(text)
        if self.scope.stopped == "return":
            self.scope.stopped = ""


def _letter_c(words: Sequence[Word]) -> int:
    """Where `-c` stands among the first words, 0 where it does not."""
    return next((i for i, word in enumerate(words[:4]) if word.text in ("-c", "-lc", "-ic", "-xc", "-ec")), 0)
