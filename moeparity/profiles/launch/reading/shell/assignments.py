"""What assignments and declarations of a script do to the variables of a scope."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tree_sitter import Node

from moeparity.errors import Where
from moeparity.profiles.launch.reading.shell.expand import Expander
from moeparity.profiles.launch.reading.shell.scope import Scope
from moeparity.profiles.launch.reading.shell.syntax import one_line, text_of
from moeparity.profiles.launch.reading.shell_words import Word, unresolved


def assigned(node: Node, scope: Scope, expander: Expander) -> None:
    """`NAME=value`, `NAME+=value` and arrays; an element of an array leaves the whole unknown. Raises SpecError."""
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name is None or name.type == "subscript":
        written = text_of(name).partition("[")[0] if name is not None else ""
        scope.assign(written, (Word(unresolved(one_line(node)), expander.where(node)),))
        return
    where = expander.where(value or node)
    adds = any(child.type == "+=" for child in node.children)
    before = scope.variables.get(text_of(name))
    if value is not None and value.type == "array":
        parts = [child for child in value.children if child.is_named and child.type != "comment"]
        words = tuple(word for child in parts for word in expander.words(child))
        words = (before.words if adds and before is not None else ()) + words
        scope.budget.step(where, sum(len(word.text) + 8 for word in words))
        scope.assign(text_of(name), words, array=True)
        return
    text = expander.text(value) if value is not None else ""
    if adds and before is not None and before.array:
        words = (replace(before.words[0], text=before.text + text), *before.words[1:]) if before.words else ()
        scope.assign(text_of(name), words or (Word(text, where),), array=True)
        return
    text = (before.text if adds and before is not None else "") + text
    scope.budget.step(where, len(text))
    scope.assign(text_of(name), (Word(text, where),))


def declared(node: Node, scope: Scope, expander: Expander) -> None:
    """`export`, `declare`, `local` and `readonly`: the assignments among their words, and which of these are passed to
    commands. Raises SpecError.
    """
    parts = [child for child in node.named_children if child.type != "comment"]
    flags = [text_of(child) for child in parts if text_of(child).startswith(("-", "+"))]
    if any("f" in flag for flag in flags):
        return
    exports = text_of(node.children[0]) == "export" or any(flag[0] == "-" and "x" in flag for flag in flags)
    withdraws = any(flag == "-n" or (flag[0] == "+" and "x" in flag) for flag in flags)
    for child in parts:
        where = expander.where(child)
        if child.type == "variable_assignment":
            assigned(child, scope, expander)
            target = child.child_by_field_name("name")
            names = [text_of(target)] if target is not None and target.type == "variable_name" else []
        elif text_of(child) in flags:
            continue
        else:
            names = [_assigned_by(word, scope) for word in expander.words(child)]
        for name in names:
            if withdraws:
                scope.withdraw(name)
            elif exports and not name.isidentifier():
                says = f"`{one_line(node)}` sets variables that are not known"
                scope.note(says, expander.where(node), "environment")
            elif exports:
                scope.export(name, where)


def _assigned_by(word: Word, scope: Scope) -> str:
    """The name in a word that an expansion made, whose value is assigned where it has one: `NAME`, or `NAME=value`."""
    name, equals, value = word.text.partition("=")
    if equals and name.isidentifier():
        scope.assign(name, (replace(word, text=value),))
    return name


def submitted(text: str, scope: Scope, path: Path) -> None:
    """The variables that a job is given where it is submitted: `#SBATCH --export=ALL,NAME=value`."""
    for number, line in enumerate(text.splitlines(), 1):
        exported = re.match(r"#SBATCH\s+--export[= ](\S+)", line)
        for name, value in re.findall(r"(\w+)=([^,]*)", exported[1]) if exported else ():
            scope.assign(name, (Word(value, Where(path, number)),))
            scope.export(name, Where(path, number))
