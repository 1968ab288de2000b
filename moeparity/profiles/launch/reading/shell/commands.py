"""The words of a command, and what is assigned for it alone."""

from __future__ import annotations

from dataclasses import replace

from tree_sitter import Node

from moeparity.profiles.launch.reading.shell.expand import Expander
from moeparity.profiles.launch.reading.shell.parts import goes_on
from moeparity.profiles.launch.reading.shell.syntax import text_of
from moeparity.profiles.launch.reading.shell_words import Word


def words_of(node: Node, expander: Expander) -> tuple[Word, ...]:
    """The words of a command, its redirections and what is assigned before it left out. Raises SpecError."""
    parts = [child for child in node.children if child.is_named and child.type != "variable_assignment"]
    parts = [child for child in parts if not child.type.endswith("redirect") and child.type != "comment"]
    words: list[Word] = []
    for before, child in zip([None, *parts], parts, strict=False):
        further = expander.words(child)
        if before is not None and words and further and goes_on(node, before, child):
            words[-1] = replace(words[-1], text=words[-1].text + further[0].text)
            further = further[1:]
        words += further
    return tuple(words)


def assigned_before(node: Node, expander: Expander) -> tuple[tuple[str, Word], ...]:
    """By name, what `NAME=value COMMAND` gives this command alone. Raises SpecError."""
    assigned = []
    for child in node.children:
        value = child.child_by_field_name("value") if child.type == "variable_assignment" else None
        name = child.child_by_field_name("name") if value is not None else None
        if value is not None and name is not None:
            assigned.append((text_of(name), Word(expander.text(value), expander.where(child))))
    return tuple(assigned)
