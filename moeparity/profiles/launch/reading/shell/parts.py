"""Parts of statements in the parser's tree: branches, cases, words that it does not put where bash has them."""

from __future__ import annotations

from tree_sitter import Node

from moeparity.profiles.launch.reading.shell.conditions import OPERANDS
from moeparity.profiles.launch.reading.shell.syntax import text_of


def arm(node: Node) -> tuple[Node, list[Node]]:
    """The condition and the body of `if` or `elif`."""
    start = next(i for i, child in enumerate(node.children) if child.type == "then")
    conditions = [child for child in node.children[1:start] if child.is_named and child.type != "comment"]
    body = [
        child
        for child in node.children[start + 1 :]
        if child.is_named and child.type not in ("elif_clause", "else_clause")
    ]
    return conditions[-1], body


def goes_on(node: Node, before: Node, after: Node) -> bool:
    """Whether nothing but the end of a line that a backslash takes away stands between two parts: they are one word."""
    text = node.text or b""
    return text[before.end_byte - node.start_byte : after.start_byte - node.start_byte] == b"\\\n"


def behind(node: Node) -> list[Node]:
    """Arguments that stand behind a redirection: the parser takes them for further files."""
    arguments: list[Node] = []
    for redirect in node.children:
        files = [child for child in redirect.named_children if child.type in OPERANDS]
        if redirect.type == "file_redirect":
            arguments += files[1:]
        elif redirect.type == "heredoc_redirect":
            arguments += files
    return arguments


def case_item(item: Node) -> tuple[list[str], list[Node]]:
    """The patterns and the body of one case."""
    end = next((i for i, child in enumerate(item.children) if child.type == ")"), len(item.children))
    patterns = [text_of(child).strip("\"'") for child in item.children[:end] if child.is_named]
    return patterns, [child for child in item.children[end + 1 :] if child.is_named]
