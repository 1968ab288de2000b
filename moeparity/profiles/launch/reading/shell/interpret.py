"""Walks through a script statement by statement: what it sets, and which commands it starts with which words.

If a branch cannot be decided, every side is walked, and what differs keeps its condition. Nothing is run.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tree_sitter import Node

from moeparity.errors import Where
from moeparity.profiles.launch.reading.shell.arithmetic import whole_number
from moeparity.profiles.launch.reading.shell.assignments import assigned, declared, submitted
from moeparity.profiles.launch.reading.shell.builtins import Builtins
from moeparity.profiles.launch.reading.shell.commands import assigned_before, words_of
from moeparity.profiles.launch.reading.shell.conditions import Token, outcome, tested
from moeparity.profiles.launch.reading.shell.expand import Expander
from moeparity.profiles.launch.reading.shell.parts import arm, behind, case_item
from moeparity.profiles.launch.reading.shell.scope import Scope
from moeparity.profiles.launch.reading.shell.syntax import Budget, one_line, parsed, text_of
from moeparity.profiles.launch.reading.shell_words import Command, Word, conjunction, is_known, plain, unresolved
from moeparity.profiles.launch.source import Note

_ROUNDS = 200
"""Rounds of a loop that are walked one by one."""
_PREPARES = (
    *("cd", "source", ".", "export", "mkdir", "conda", "pip", "pip3", "uv", "apt", "apt-get", "module", "ulimit"),
    *("ray", "echo", "rm", "cp", "mv", "pkill", "sleep", "hf", "huggingface-cli", "git", "chmod", "touch", "wait"),
)
"""Commands that a script relies on: what follows them by `&&` is taken to happen."""


def interpreted(text: str, path: Path, line: int = 1) -> Scope:
    """What a script sets and starts. Raises SpecError where it is no bash, or too much to follow."""
    scope = Scope(budget=Budget(path))
    submitted(text, scope, path)
    Interpreter(scope, path, line).script(text)
    if scope.assumed:
        first = next(iter(scope.assumed.values()))
        names = ", ".join(scope.assumed)
        scope.notes[""] = Note(says=f"taken as set nowhere outside, so that their defaults hold: {names}", where=first)
    return scope


class Interpreter:
    """Walks the statements of one script, in a scope that it may share with another."""

    def __init__(self, scope: Scope, path: Path, line: int = 1, hidden: Mapping[int, str] | None = None) -> None:
        self.scope, self.path, self.line = scope, path, line
        self.expander = Expander(scope, path, line, hidden)

    def script(self, text: str) -> None:
        """All statements of a text."""
        root, hidden = parsed(text, self.path, self.line)
        self.expander = Expander(self.scope, self.path, self.line, hidden)
        self.all_of(root.children)

    def _in(self, scope: Scope) -> Interpreter:
        return Interpreter(scope, self.path, self.line, self.expander.hidden)

    def all_of(self, nodes: Sequence[Node]) -> None:
        """Statements, up to one that ends the script."""
        for node in nodes:
            if self.scope.stopped:
                return
            if node.is_named and node.type != "comment":
                self.statement(node)

    def statement(self, node: Node) -> None:
        """One statement; of a kind that is not known it is said that it is not followed."""
        where = self.expander.where(node)
        self.scope.budget.step(where)
        self.scope.budget.enter(where)
        handle: Callable[[Node], None] = getattr(self, f"_{node.type}", self._unknown)
        handle(node)
        self.scope.budget.leave()

    def _unknown(self, node: Node) -> None:
        if node.type not in ("test_command", "heredoc_body", "word"):
            self.scope.note(f"`{one_line(node)}` is not followed", self.expander.where(node))

    def _variable_assignment(self, node: Node) -> None:
        assigned(node, self.scope, self.expander)

    def _variable_assignments(self, node: Node) -> None:
        self.all_of(node.named_children)

    def _declaration_command(self, node: Node) -> None:
        declared(node, self.scope, self.expander)

    def _unset_command(self, node: Node) -> None:
        words = (word for child in node.named_children for word in self.expander.words(child))
        where = self.expander.where(node)
        Builtins(self.scope, self.path, Interpreter).run((Word("unset", where), *words), (), where)

    def _function_definition(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.scope.functions[text_of(name)] = body, self

    def _compound_statement(self, node: Node) -> None:
        if not text_of(node).startswith("(("):
            self.all_of(node.children)

    def _do_group(self, node: Node) -> None:
        self.all_of(node.children)

    def _else_clause(self, node: Node) -> None:
        self.all_of(node.children)

    def _subshell(self, node: Node) -> None:
        self._in(self.scope.fork()).all_of(node.children)

    def _pipeline(self, node: Node) -> None:
        for child in node.named_children:
            self._in(self.scope.fork()).statement(child)

    def _negated_command(self, node: Node) -> None:
        self.all_of(node.named_children)

    def _redirected_statement(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        if body is None:
            return
        document = self.expander.document(node) if "<<" in text_of(node) else None
        started = len(self.scope.commands)
        if body.type == "command":
            self._command(body, tuple(word for child in behind(node) for word in self.expander.words(child)))
        else:
            self.statement(body)
        for child in node.children:
            for further in child.named_children if child.type == "heredoc_redirect" else ():
                if further.type in ("pipeline", "list", "command"):
                    self.statement(further)
        if document is not None and body.type == "command":
            self._fed(document, node, self.scope.commands[started:])

    def _fed(self, document: str, node: Node, commands: Sequence[Command]) -> None:
        """A here-document is a script where a shell, or a queue of jobs, reads it."""
        heads = [command.words[0].text for command in commands if command.words]
        if any(head.rpartition("/")[2] in ("bash", "sh", "sbatch", "ssh") for head in heads):
            redirect = next(child for child in node.children if child.type == "heredoc_redirect")
            body = next(child for child in redirect.children if child.type == "heredoc_body")
            text = plain(document) if is_known(document) else text_of(body)
            nested = Interpreter(self.scope.fork(), self.path, self.line + body.start_point[0])
            nested.script(text)
        elif any(head.rpartition("/")[2].startswith("python") for head in heads):
            self.scope.note("a Python program in a here-document is not read", self.expander.where(node))

    def _list(self, node: Node) -> None:
        """`A && B` and `A || B`."""
        first, second = node.named_children[0], node.named_children[-1]
        wanted = any(child.type == "&&" for child in node.children)
        result = self.condition(first)
        if result is None and wanted and self._prepares(first):
            result = True
        if result is wanted:
            self._take([second])
        elif result is None:
            self._branches(
                [(self._condition_words(first, met=wanted), lambda branch: branch.statement(second))],
                self.expander.where(node),
                exhaustive=False,
            )

    def _prepares(self, node: Node) -> bool:
        words = text_of(node).split()
        return (bool(words) and words[0] in _PREPARES) or node.type in ("variable_assignment", "declaration_command")

    def condition(self, node: Node) -> bool | None:
        """Walks what stands as a condition and says how it ends; None where that is not known."""
        if node.type == "test_command":
            return tested(node, self.expander)
        if node.type == "compound_statement" and text_of(node).startswith("(("):
            number = whole_number(text_of(node)[2:-2], self.scope.number_text)
            return None if number is None else bool(number)
        if node.type == "negated_command":
            result = self.condition(node.named_children[-1])
            return None if result is None else not result
        if node.type == "command":
            words = words_of(node, self.expander)
            name = words[0].text if words else ""
            if name in ("true", ":", "false"):
                return name != "false"
            if name == "test":
                return outcome([Token(word.text, operand=True) for word in words[1:]])
        if node.type == "list":
            return self._conjunction(node)
        self.statement(node)
        return None

    def _conjunction(self, node: Node) -> bool | None:
        first = self.condition(node.named_children[0])
        wanted = any(child.type == "&&" for child in node.children)
        if first is None and wanted and self._prepares(node.named_children[0]):
            first = True
        if first is not None and first is not wanted:
            return first
        if first is None:
            fork = self._in(self.scope.fork(self._condition_words(node.named_children[0], met=wanted)))
            second = fork.condition(node.named_children[-1])
            self.scope.join(
                [(fork.scope.condition, fork.scope), (self._condition_words(node, met=False), self.scope.fork())],
                self.expander.where(node),
            )
            return second if second is (not wanted) else None
        return self.condition(node.named_children[-1])

    def _condition_words(self, node: Node, *, met: bool) -> str:
        text = f"line {self.expander.where(node).line}: {one_line(node)}"
        return text if met else f"not ({text})"

    def _if_statement(self, node: Node) -> None:
        arms: list[tuple[Node | None, list[Node]]] = [arm(node)]
        arms += [arm(child) for child in node.children if child.type == "elif_clause"]
        arms += [(None, [child]) for child in node.children if child.type == "else_clause"]
        self._arms(arms, self.expander.where(node))

    def _arms(self, arms: Sequence[tuple[Node | None, list[Node]]], where: Where) -> None:
        open_arms: list[tuple[str, Callable[[Interpreter], None]]] = []
        before = ""
        for condition, body in arms:
            result = True if condition is None else self.condition(condition)
            if self.scope.stopped:
                return
            if result is False:
                continue
            if result is True and not open_arms:
                self._take(body)
                return
            condition_text = "" if condition is None or result is True else self._condition_words(condition, met=True)
            open_arms.append((conjunction(before, condition_text), partial(_walk, nodes=body)))
            if result is True:
                self._branches(open_arms, where, exhaustive=True)
                return
            assert condition is not None
            before = conjunction(before, self._condition_words(condition, met=False))
        if open_arms:
            self._branches(open_arms, where, exhaustive=False, otherwise=before)

    def _take(self, body: Sequence[Node]) -> None:
        """A branch that is taken; one that only ends the script is for who starts it without what it asks for."""
        started, fork = len(self.scope.commands), self.scope.fork()
        self._in(fork).all_of(body)
        if fork.stopped == "exit" and len(self.scope.commands) == started:
            where = self.expander.where(body[0])
            self.scope.note("ends the script where something is not set that it asks for: taken as set", where)
            return
        self.scope.variables, self.scope.functions = fork.variables, fork.functions
        self.scope.arguments, self.scope.called, self.scope.stopped = fork.arguments, fork.called, fork.stopped
        self.scope.exports_all = fork.exports_all

    def _branches(
        self,
        arms: Sequence[tuple[str, Callable[[Interpreter], None]]],
        where: Where,
        *,
        exhaustive: bool,
        otherwise: str = "",
    ) -> None:
        """Walk every branch by itself, then go on from all of them."""
        ends = []
        for condition, walk in arms:
            fork = self.scope.fork(condition)
            walk(self._in(fork))
            ends.append((condition, fork))
        if not exhaustive:
            ends.append((otherwise or f"not ({arms[0][0]})", self.scope.fork()))
        self.scope.join(ends, where)

    def _case_statement(self, node: Node) -> None:
        subject = node.child_by_field_name("value")
        text = self.expander.text(subject) if subject is not None else ""
        arms: list[tuple[str, Callable[[Interpreter], None]]] = []
        catches_all = False
        for item in node.children:
            if item.type != "case_item":
                continue
            patterns, body = case_item(item)
            if is_known(text) and any("$" in pattern for pattern in patterns):
                text = unresolved(text)
            if is_known(text) and any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns):
                self._take(body)
                return
            if not is_known(text):
                catches_all = catches_all or "*" in patterns
                condition_text = f"line {self.expander.where(item).line}: {plain(text)} is {' or '.join(patterns)}"
                arms.append((condition_text, partial(_walk, nodes=body)))
        if arms:
            self._branches(arms, self.expander.where(node), exhaustive=catches_all)

    def _for_statement(self, node: Node) -> None:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if name is None or body is None:
            return
        values = node.children_by_field_name("value")
        words = tuple(word for value in values for word in self.expander.words(value))
        # What `*.sh` matches is another machine's business.
        plain_words = all(word.is_known and not word.condition and not set(word.text) & set("*?") for word in words)
        plain_words = plain_words and len(words) <= _ROUNDS
        if text_of(node).startswith("select") or not values or not plain_words:
            where = self.expander.where(node)
            self.scope.assign(text_of(name), (Word(unresolved(f"${text_of(name)}"), where),))
            self._perhaps(node, body)
            return
        for word in words:
            self.scope.assign(text_of(name), (word,))
            self.statement(body)
            ended, self.scope.stopped = self.scope.stopped, ""
            if ended in ("break", "exit", "return"):
                self.scope.stopped = "" if ended == "break" else ended
                return

    def _c_style_for_statement(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        if body is not None:
            self._perhaps(node, body)

    def _while_statement(self, node: Node) -> None:
        condition, body = node.child_by_field_name("condition"), node.child_by_field_name("body")
        until = text_of(node).startswith("until")
        result = self.condition(condition) if condition is not None else None
        if body is not None and result is not until:
            self._perhaps(node, body)

    def _perhaps(self, node: Node, body: Node) -> None:
        """A loop whose rounds are not counted is walked once, and may not have been."""
        self._branches(
            [(self._condition_words(node, met=True), lambda branch: branch.statement(body))],
            self.expander.where(node),
            exhaustive=False,
        )

    def _command_name(self, node: Node) -> None:
        self._command(node)

    def _command(self, node: Node, behind: tuple[Word, ...] = ()) -> None:
        words, prefix = (*words_of(node, self.expander), *behind), assigned_before(node, self.expander)
        if words:
            where = self.expander.where(node)
            self.scope.budget.step(where, sum(len(word.text) for word in words))
            Builtins(self.scope, self.path, Interpreter).run(words, prefix, where)


def _walk(interpreter: Interpreter, nodes: Sequence[Node]) -> None:
    interpreter.all_of(nodes)
