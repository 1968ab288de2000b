"""What assignments and declarations of a script do to the variables of a scope."""

from __future__ import annotations

from dataclasses import replace

from tree_sitter import Node

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
    """`export`, `declare`, `local` and `readonly`: the assignments among their words, and which of them go to commands.
    Raises SpecError.
    """
    flags = {text_of(child) for child in node.named_children}
    exports, withdraws = text_of(node.children[0]) == "export" or "-x" in flags, bool(flags & {"-n", "+x"})
    for child in node.named_children:
        if child.type == "variable_assignment":
            assigned(child, scope, expander)
        target = child.child_by_field_name("name") if child.type == "variable_assignment" else child
        if target is None or target.type != "variable_name":
            continue
        if withdraws:
            scope.withdraw(text_of(target))
        elif exports:
            scope.export(text_of(target), expander.where(child))
