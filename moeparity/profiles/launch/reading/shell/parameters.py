"""`$X`, `${X:-word}` and kin. What is set nowhere in the file is outside: its default is taken, else nothing is."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Protocol

from tree_sitter import Node

from moeparity.errors import Where, whole_number
from moeparity.profiles.launch.reading.shell.scope import Scope, Variable, common
from moeparity.profiles.launch.reading.shell.syntax import text_of
from moeparity.profiles.launch.reading.shell_words import Fields, Word, is_known, unresolved

_DEFAULTS = (":-", "-", ":=", "=", ":?", "?")
_LONGEST = 5_000
"""Letters of a text that patterns are tried on."""


class _Expander(Protocol):
    """What makes words of nodes, `moeparity.profiles.launch.reading.shell.expand`."""

    scope: Scope
    path: Path

    def where(self, node: Node) -> Where: ...

    def words(self, node: Node) -> tuple[Word, ...]: ...

    def text(self, node: Node) -> str: ...

    def written(self, node: Node) -> str: ...

    def in_quotes(self, text: str, node: Node) -> str: ...


def expand(expander: _Expander, node: Node, fields: Fields, *, quoted: bool) -> None:
    """Put what a parameter stands for into the words that are being made."""
    names = [child for child in node.children if child.type in ("variable_name", "special_variable_name", "subscript")]
    written = expander.written(node)
    if written in ("$#", "${#}"):
        fields.add(str(len(expander.scope.arguments)))
        return
    if not names or written.startswith("${!"):
        fields.add(unresolved(written))
        return
    name, index = _name(names[0])
    after = [child for child in node.children if child.start_byte >= names[0].end_byte and text_of(child) != "}"]
    if name in "@*" or index in ("@", "*"):
        _elements(expander, name if index else "", after, node, fields, quoted=quoted, star="*" in (name, index))
        return
    text, alternatives = _value(expander, name, index, after, node)
    single = alternatives is None or all(len(word.text.split()) == 1 for word in alternatives)
    if not quoted and alternatives is not None and not single and fields.current is None:
        fields.array(common([(word.condition, _split(word)) for word in alternatives]))
        fields.close()
    elif quoted:
        fields.add(text)
    else:
        fields.split(text)


def _split(word: Word) -> tuple[Word, ...]:
    fields = Fields(word.where)
    fields.split(word.text)
    return fields.words()


def _name(node: Node) -> tuple[str, str]:
    if node.type != "subscript":
        return text_of(node).lstrip(), ""
    name, _, rest = text_of(node).lstrip().partition("[")
    return name, rest.removesuffix("]").strip("\"'")


def _elements(
    expander: _Expander, name: str, after: list[Node], node: Node, fields: Fields, *, quoted: bool, star: bool
) -> None:
    """`"${A[@]}"`, `$@`, and slices of them; quoted, `${A[*]}` is one word."""
    scope = expander.scope
    variable = scope.variables.get(name) if name else Variable(words=scope.arguments, array=True)
    if variable is None:
        says = f"`{text_of(node).lstrip()}`: nothing in this file sets {name}; taken as empty"
        scope.note(says, expander.where(node), "options")
        return
    if not name and not scope.called:
        scope.note("`$@`: the script's own arguments, taken as none", expander.where(node), "options")
    words = variable.words
    written = expander.written(node)
    if written.startswith("${#"):
        fields.add(unresolved(written) if any(word.condition for word in words) else str(len(words)))
        return
    if after:
        numbers = [text_of(child) for child in after if child.type not in (":", " ")]
        bounds = [number for text in numbers if (number := whole_number(text)) is not None]
        plain_slice = text_of(after[0]) == ":" and len(bounds) == len(numbers)
        if not plain_slice or any(word.condition for word in words):
            if text_of(after[0]) in (":-", "-", ":+", "+", "+"):
                _maybe(expander, words, after, fields, quoted=quoted)
            else:
                fields.add(unresolved(written))
            return
        start = bounds[0]
        words = words[start : start + bounds[1]] if len(bounds) > 1 else words[start:]
    if quoted and star:
        joined = " ".join(word.text for word in words)
        fields.add(unresolved(written) if any(word.condition for word in words) else joined)
        return
    if quoted:
        fields.array(words)
        return
    for word in words:
        fields.close()
        split = Fields(word.where)
        split.split(word.text)
        fields.array(part.under(word.condition) for part in split.words())


def _maybe(expander: _Expander, words: tuple[Word, ...], after: list[Node], fields: Fields, *, quoted: bool) -> None:
    """`${A[@]:-word}` and `${A[@]+"${A[@]}"}`: the guard that scripts put around arrays that may be empty."""
    instead = text_of(after[0]) in (":-", "-")
    if bool(words) == instead:
        fields.array(words)
        return
    for child in after[1:]:
        fields.array(expander.words(child)) if child.is_named else None


def _value(
    expander: _Expander, name: str, index: str, after: list[Node], node: Node
) -> tuple[str, tuple[Word, ...] | None]:
    """The text of one parameter, and the texts that it may have where that is not decided."""
    variable = _variable(expander, name, index, node)
    operator = text_of(after[0]) if after else ""
    written = expander.written(node)
    if written.startswith("${#"):
        text = variable.text if variable is not None else unresolved(written)
        return (str(len(text)) if is_known(text) else unresolved(written)), None
    if operator in _DEFAULTS or operator in (":+", "+"):
        return _default(expander, name, variable, operator, after, node)
    if variable is None:
        return unresolved(written), None
    if not after:
        several = len(variable.words) > 1 or any(word.condition for word in variable.words)
        return variable.text, variable.words if several and not variable.array else None
    return _changed(variable.text, operator, after, written), None


def _variable(expander: _Expander, name: str, index: str, node: Node) -> Variable | None:
    scope = expander.scope
    if name == "0" or (name == "BASH_SOURCE" and index in ("", "0")):
        # A file that is sourced keeps the script's own name in $0.
        path = scope.budget.path if name == "0" else expander.path
        return Variable(words=(Word(str(path.absolute()), expander.where(node)),))
    if name.isdecimal():
        number = int(name) - 1 if len(name) < 4 else len(scope.arguments)
        return Variable(words=(scope.arguments[number],)) if number < len(scope.arguments) else None
    variable = scope.variables.get(name)
    if variable is None or not index:
        return variable
    place = whole_number(index)
    if not variable.array or place is None or any(word.condition for word in variable.words):
        return None
    return Variable(words=(variable.words[place],)) if place < len(variable.words) else None


def _as_written(name: str) -> str:
    """A variable's name as people read it; of an argument of the script, `1`, as a script writes it: `$1`, `${10}`."""
    if name.isidentifier():
        return name
    return f"${name}" if len(name) == 1 else f"${{{name}}}"


def _default(
    expander: _Expander, name: str, variable: Variable | None, operator: str, after: list[Node], node: Node
) -> tuple[str, tuple[Word, ...] | None]:
    text = variable.text if variable is not None else None
    if text is not None and not is_known(text):
        several = variable is not None and len(variable.words) > 1 and operator not in (":+", "+")
        return (
            (text, variable.words) if several and variable is not None else (unresolved(expander.written(node)), None)
        )
    is_set = text is not None and (bool(text) or ":" not in operator)
    if text is None and "?" not in operator:
        expander.scope.assumed.setdefault(_as_written(name), expander.where(node))
    if "+" in operator:
        return (_word(expander, after, node) if is_set else ""), None
    if is_set:
        return text or "", None
    if "?" in operator:
        return unresolved(expander.written(node)), None
    default = _word(expander, after, node)
    if "=" in operator:
        expander.scope.assign(name, (Word(default, expander.where(node)),))
    return default, None


def _word(expander: _Expander, after: list[Node], node: Node) -> str:
    written = expander.written(node)
    if written != text_of(node).lstrip():
        return expander.in_quotes(re.sub(r"^\$\{\w+:?[-=+]|\}$", "", written), node)
    return "".join(expander.text(child) for child in after[1:])


def _changed(text: str, operator: str, after: list[Node], written: str) -> str:
    """`${X#p}`, `${X%p}`, `${X/p/r}`, `${X:o:n}`, `${X^^}`: where text and pattern are plain."""
    arguments = [text_of(child) for child in after[1:] if child.is_named]
    if not is_known(text) or len(text) > _LONGEST or any("$" in argument or "`" in argument for argument in arguments):
        return unresolved(written)
    if operator in ("^^", ",,") and not arguments:
        return text.upper() if operator == "^^" else text.lower()
    if operator in ("#", "##", "%", "%%") and len(arguments) == 1:
        return _cut(text, operator, arguments[0])
    if operator in ("/", "//") and arguments and re.fullmatch(r"[\w.:, =@-]+", arguments[0]):
        return text.replace(arguments[0], [*arguments, ""][1], 1 if operator == "/" else -1)
    bounds = [number for argument in arguments if (number := whole_number(argument)) is not None]
    if operator == ":" and bounds and len(bounds) == len(arguments):
        return text[bounds[0] : bounds[0] + bounds[1]] if len(bounds) > 1 else text[bounds[0] :]
    return unresolved(written)


def _cut(text: str, operator: str, pattern: str) -> str:
    match = re.compile(fnmatch.translate(pattern.strip("\"'"))).match
    lengths = range(len(text) + 1) if len(operator) == 1 else range(len(text), -1, -1)
    for length in lengths:
        if operator[0] == "#" and match(text[:length]):
            return text[length:]
        if operator[0] == "%" and match(text[len(text) - length :]):
            return text[: len(text) - length]
    return text
