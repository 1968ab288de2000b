"""What a script has set so far, and what of it an undecided condition leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tree_sitter import Node

from moeparity.errors import Where
from moeparity.profiles.launch.reading.shell.syntax import Budget
from moeparity.profiles.launch.reading.shell_words import Command, Word, is_known, plain, unresolved
from moeparity.profiles.launch.source import Note, Opens

_MOST_ALTERNATIVES = 16
"""Values that a variable is followed with; more are one that is not resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable: the words of an array; of any other the one text, or several, each with its condition."""

    words: tuple[Word, ...]
    array: bool = False
    exported: bool = False

    @property
    def text(self) -> str:
        """Its text: of an array the first element's; of several that may be, one that is not resolved."""
        if self.array and not any(word.condition for word in self.words):
            return self.words[0].text if self.words else ""
        if self.array:
            return unresolved("the first of an array that a branch decides")
        if len(self.words) == 1 and not self.words[0].condition:
            return self.words[0].text
        return unresolved(" or ".join(f"'{plain(word.text)}' if {word.condition}" for word in self.words))


@dataclass(slots=True, kw_only=True)
class Scope:
    """Variables, functions and arguments at one point of a script. `commands` and `notes` are those of the whole file.

    `called`: the arguments are those of a function or of `set --`, and not those with which the script itself is
    started.
    """

    budget: Budget
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, tuple[Node, Any]] = field(default_factory=dict)
    arguments: tuple[Word, ...] = ()
    called: bool = False
    commands: list[Command] = field(default_factory=list)
    notes: dict[str, Note] = field(default_factory=dict)
    assumed: dict[str, Where] = field(default_factory=dict)
    condition: str = ""
    stopped: str = ""
    exports_all: bool = False
    exported: dict[str, Where] = field(default_factory=dict)

    def fork(self, condition: str = "") -> Scope:
        """The same, of which what is set from now on is not seen here."""
        joined = f"{self.condition} and {condition}" if self.condition and condition else self.condition or condition
        return replace(
            self, variables=dict(self.variables), functions=dict(self.functions), condition=joined, stopped=""
        )

    def note(self, says: str, where: Where, opens: Opens = "") -> None:
        """Say once that something was not followed, and what it may set."""
        self.notes.setdefault(says, Note(says=says, where=where, opens=opens))

    def assign(self, name: str, words: tuple[Word, ...], *, array: bool = False) -> None:
        """Give a variable its value; it stays exported."""
        before = self.variables.get(name)
        exported = self.exports_all or name in self.exported or (before is not None and before.exported)
        if name == "IFS":
            self.note("IFS is set: words are split here as if it were not", words[0].where)
        self.variables[name] = Variable(words=words, array=array, exported=exported)

    def export(self, name: str, where: Where) -> None:
        """Hand a variable on to the commands that are started."""
        before = self.variables.get(name)
        if before is not None:
            self.variables[name] = replace(before, exported=True)
        else:
            self.exported = {**self.exported, name: where}
            self.note(f"`export {name}` hands on a value from outside, which is not known", where)

    def withdraw(self, name: str) -> None:
        """Hand a variable on no more."""
        self.exported = {key: where for key, where in self.exported.items() if key != name}
        if name in self.variables:
            self.variables[name] = replace(self.variables[name], exported=False)

    def unset(self, name: str) -> None:
        """Forget a variable."""
        self.withdraw(name)
        self.variables.pop(name, None)

    def number_text(self, name: str) -> str | None:
        """The text of a variable in arithmetic: None where it is not resolved."""
        variable = self.variables.get(name)
        return variable.text if variable is not None and is_known(variable.text) else None

    def join(self, arms: Sequence[tuple[str, Scope]], where: Where) -> None:
        """Go on from branches of which one was taken, nobody knows which; one that ends the script was not."""
        open_arms = [(condition, scope) for condition, scope in arms if not scope.stopped]
        for condition, scope in arms:
            if scope.stopped in ("break", "continue", "return"):
                self.note(f"`{scope.stopped}` is taken as not met: {condition}", where)
        if not open_arms:
            self.stopped = arms[0][1].stopped if arms else ""
            return
        names = dict.fromkeys(name for _, scope in open_arms for name in scope.variables)
        for name in names:
            self.variables[name] = _merged([(c, scope.variables.get(name)) for c, scope in open_arms])
        for _, scope in open_arms:
            self.functions |= scope.functions


def _merged(arms: Sequence[tuple[str, Variable | None]]) -> Variable:
    """A variable after branches that left it different values."""
    values = [variable for _, variable in arms if variable is not None]
    first = values[0]
    if len(values) == len(arms) and all(_alike(variable, first) for variable in values):
        return first
    array = any(variable.array for variable in values)
    lists = [(condition, variable.words if variable is not None else ()) for condition, variable in arms]
    exported = any(variable.exported for variable in values)
    words = common(lists) if array else _texts(lists, first.words[0].where if first.words else None)
    return Variable(words=words, array=array, exported=exported)


def _alike(variable: Variable, second: Variable) -> bool:
    same = len(variable.words) == len(second.words) and variable.array == second.array
    return same and all(_same(*pair) for pair in zip(variable.words, second.words, strict=True))


def common(arms: Sequence[tuple[str, tuple[Word, ...]]]) -> tuple[Word, ...]:
    """What all begin and end with; between that, every branch's words under its condition."""
    lists = [list(words) for _, words in arms]
    start: list[Word] = []
    end: list[Word] = []
    while all(lists) and all(_same(words[0], lists[0][0]) for words in lists):
        start.append(lists[0][0])
        lists = [words[1:] for words in lists]
    while all(lists) and all(_same(words[-1], lists[0][-1]) for words in lists):
        end.insert(0, lists[0][-1])
        lists = [words[:-1] for words in lists]
    middle = [word.under(condition) for (condition, _), words in zip(arms, lists, strict=True) for word in words]
    return (*start, *middle, *end)


def _same(first: Word, second: Word) -> bool:
    return (first.text, first.condition) == (second.text, second.condition)


def _texts(arms: Iterable[tuple[str, tuple[Word, ...]]], where: Where | None) -> tuple[Word, ...]:
    """Every text that it may have, once."""
    texts: dict[str, Word] = {}
    for condition, words in arms:
        for word in words or ((Word("", where),) if where is not None else ()):
            under = word.under(condition)
            before = texts.get(word.text)
            texts[word.text] = under if before is None else replace(before, condition=_either(before, under))
    if len(texts) > _MOST_ALTERNATIVES:
        first = next(iter(texts.values()))
        return (Word(unresolved(f"one of {len(texts)} values"), first.where),)
    return tuple(texts.values()) if len(texts) > 1 else tuple(replace(word, condition="") for word in texts.values())


def _either(first: Word, second: Word) -> str:
    return first.condition if first.condition == second.condition else f"{first.condition} or {second.condition}"


def environment(scope: Scope) -> tuple[tuple[str, Word], ...]:
    """What a command is given: all that is exported, also what has its value from outside."""
    outside = [
        (name, Word(unresolved(f"${name}"), where))
        for name, where in scope.exported.items()
        if name not in scope.variables
    ]
    return (
        *outside,
        *(
            (name, Word(variable.text, variable.words[0].where))
            for name, variable in scope.variables.items()
            if variable.exported and variable.words
        ),
    )
