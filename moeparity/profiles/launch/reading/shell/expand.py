"""Words of a script as bash makes them: quotes, parameters, arithmetic, splitting. What it would run stays open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tree_sitter import Node

from moeparity.errors import SpecError, Where
from moeparity.profiles.launch.reading.shell import parameters
from moeparity.profiles.launch.reading.shell.arithmetic import whole_number
from moeparity.profiles.launch.reading.shell.scope import Scope
from moeparity.profiles.launch.reading.shell.substitutions import filtered, folder_entered, printed
from moeparity.profiles.launch.reading.shell.syntax import one_line, parsed, text_of
from moeparity.profiles.launch.reading.shell_words import Fields, Word, is_known, unresolved

EXPANSIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "process_substitution")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b"}
_BRACES = re.compile(r"\{[^{}]*(,|\.\.)[^{}]*\}")


class Expander:
    """Turns nodes into words, with what a scope holds. `line` is the line of the file on which the script starts.

    `hidden` are expressions that the parser was not shown, by the byte at which they start.
    """

    def __init__(self, scope: Scope, path: Path, line: int = 1, hidden: Mapping[int, str] | None = None) -> None:
        self.scope, self.path, self.line = scope, path, line
        self.hidden = hidden or {}

    def where(self, node: Node) -> Where:
        """The line a node starts on."""
        return Where(self.path, self.line + node.start_point[0])

    def words(self, node: Node) -> tuple[Word, ...]:
        """The words that one argument becomes: none, one or several."""
        fields = Fields(self.where(node))
        self._into(node, fields, quoted=False)
        return fields.words()

    def text(self, node: Node) -> str:
        """What an assignment or a quoted place makes of it: one text, not split."""
        fields = Fields(self.where(node))
        self._into(node, fields, quoted=True)
        return " ".join(word.text for word in fields.words())

    def _into(self, node: Node, fields: Fields, *, quoted: bool) -> None:
        where = self.where(node)
        self.scope.budget.step(where)
        self.scope.budget.enter(where)
        before = sum(len(word.text) for word in fields.done[-1:])
        self._part(node, fields, quoted=quoted)
        self.scope.budget.step(where, max(0, sum(len(word.text) for word in fields.done[-1:]) - before))
        if fields.current is not None:
            self.scope.budget.step(where, len(fields.current.text))
        self.scope.budget.leave()

    def _part(self, node: Node, fields: Fields, *, quoted: bool) -> None:
        kind, text = node.type, text_of(node)
        if kind == "string":
            if not re.fullmatch(r'"\$(@|\{@\}|\{\w+\[@\][^{}]*\})"', text):
                # All others are a word even where they hold nothing.
                fields.add("")
            self.inside(node, fields, 1)
        elif kind == "raw_string":
            fields.add(text[1:-1])
        elif kind == "ansi_c_string":
            fields.add(re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[0]), text[2:-1], flags=re.DOTALL))
        elif kind == "translated_string":
            self._into(node.children[-1], fields, quoted=True)
        elif kind == "command_name":
            self._into(node.children[0], fields, quoted=quoted)
        elif kind == "concatenation":
            self._joined(node, fields, quoted=quoted)
        elif kind in EXPANSIONS:
            self._expansion(node, fields, quoted=quoted)
        elif kind == "brace_expression" or (not quoted and _BRACES.fullmatch(text)):
            fields.add(unresolved(text))
        else:
            fields.add(_unescaped(text))

    def _joined(self, node: Node, fields: Fields, *, quoted: bool) -> None:
        if not quoted and _BRACES.search(_unquoted(node)):
            fields.add(unresolved(text_of(node)))
            return
        end = node.start_byte
        for child in node.children:
            fields.add(_gap(node, end, child.start_byte)) if child.start_byte > end else None
            self._into(child, fields, quoted=quoted)
            end = child.end_byte

    def inside(self, node: Node, fields: Fields, quotes: int) -> None:
        """What stands between quotes, or in a here-document: text and expansions."""
        end, last = node.start_byte + quotes, node.end_byte - quotes
        for child in _expansions(node):
            # The parser takes blanks before an expansion for a part of it.
            self._quoted(_gap(node, end, child.start_byte) + _blanks(child), fields)
            self._into(child, fields, quoted=True)
            end = child.end_byte
        self._quoted(_gap(node, end, last), fields)

    def _quoted(self, text: str, fields: Fields) -> None:
        if text:
            fields.add(_in_quotes(text))

    def _expansion(self, node: Node, fields: Fields, *, quoted: bool) -> None:
        text = self.written(node)
        if node.type == "arithmetic_expansion" or (text.startswith("$((") and text.endswith("))")):
            number = whole_number(text[3:-2], self._number)
            fields.add(unresolved(text) if number is None else str(number))
        elif node.type == "command_substitution":
            self._substitution(node, fields, quoted=quoted)
        elif node.type == "process_substitution":
            fields.add(unresolved(text))
        else:
            parameters.expand(self, node, fields, quoted=quoted)

    def written(self, node: Node) -> str:
        """An expansion as it stands in the file."""
        return self.hidden.get(node.start_byte + len(_blanks(node)), text_of(node).lstrip())

    def in_quotes(self, text: str, node: Node) -> str:
        """What bash makes of a text between the double quotes around a node."""
        try:
            root, hidden = parsed(f'"{text}"', self.path, self.where(node).line or 1)
        except SpecError:
            return unresolved(text)
        return Expander(self.scope, self.path, self.where(node).line or 1, hidden).text(root.children[0].children[0])

    def _number(self, name: str) -> str | None:
        return self.scope.number_text(name)

    def _substitution(self, node: Node, fields: Fields, *, quoted: bool) -> None:
        """What a command would print: known for paths, for `cat` of a here-document, and for `echo` through filters."""
        body = [child for child in node.named_children if child.type != "comment"]
        document = body[0] if len(body) == 1 and body[0].type == "redirected_statement" else None
        if document is not None and text_of(document).startswith("cat"):
            text = self.document(document)
        else:
            text = self._printed(body[0]) if len(body) == 1 else None
        text = unresolved(one_line(node)) if text is None else text.rstrip("\n")
        if quoted:
            fields.add(text)
        else:
            fields.split(text)

    def document(self, node: Node) -> str | None:
        """The text of a here-document below a statement, expanded where bash expands it; None where there is none."""
        redirect = next((child for child in node.children if child.type == "heredoc_redirect"), None)
        parts = {child.type: child for child in redirect.children} if redirect is not None else {}
        if "heredoc_body" not in parts:
            return None
        body, start = parts["heredoc_body"], text_of(parts["heredoc_start"])
        if start.startswith(("'", '"', "\\")):
            return text_of(body)
        fields = Fields(self.where(body))
        self.inside(body, fields, 0)
        return "".join(word.text for word in fields.words())

    def _printed(self, node: Node) -> str | None:
        """What a statement prints, where the letters of its words tell; else None."""
        if node.type == "redirected_statement":
            return self._printed(node.children[0])
        if node.type == "list" and len(node.children) == 3 and text_of(node.children[2]) in ("pwd", "pwd -P"):
            entering = node.children[0]
            return folder_entered(self._command(entering.children[0] if entering.type != "command" else entering))
        first, *behind = node.named_children if node.type == "pipeline" else [node]
        text = printed(self._command(first))
        for command in behind:
            text = None if text is None else filtered(text, self._command(command))
        return text

    def _command(self, node: Node) -> tuple[str, ...]:
        """The words of a plain command; none where it is something else, or one of them is not known."""
        if node.type != "command":
            return ()
        words = tuple(word.text for child in node.named_children for word in self.words(child))
        return words if all(is_known(word) for word in words) else ()


def _expansions(node: Node) -> Iterator[Node]:
    for child in node.children:
        if child.type in EXPANSIONS:
            yield child
        elif child.type not in ("string_content", "heredoc_content"):
            yield from _expansions(child)


def _blanks(node: Node) -> str:
    text = text_of(node)
    return text[: len(text) - len(text.lstrip())]


def _gap(node: Node, start: int, end: int) -> str:
    text = node.text or b""
    return text[max(0, start - node.start_byte) : max(0, end - node.start_byte)].decode("utf-8", "replace")


def _in_quotes(text: str) -> str:
    """Double quotes keep every backslash but those before `$`, a backquote, `"`, a backslash or a line's end."""
    return re.sub(r"\\([$`\"\\\n])", lambda escape: "" if escape[1] == "\n" else escape[1], text)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda escape: "" if escape[1] == "\n" else escape[1], text, flags=re.DOTALL)


def _unquoted(node: Node) -> str:
    """The letters of a word that are not quoted, and a letter for every quoted part."""
    return "".join(
        "q" if child.type in ("string", "raw_string", *EXPANSIONS) else re.sub(r"\\.", "q", text_of(child))
        for child in node.children
    )
