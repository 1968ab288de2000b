"""One-line mutations of product code, and whether the default tests kill what all tests kill."""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.tiers.records import ROOT, Place, Records

ROOMS = ("moeparity", "cli")
MOST = 400
"""Tests that are tried on a mutation, of each tier: those that run fewest lines, which look closest."""
LIMIT_S = 900
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of one expression: where, what stood there, and what stands there instead."""

    file: str
    line: int
    before: str
    after: str
    text: str

    @property
    def place(self) -> Place:
        """Its file and line."""
        return self.file, self.line


@dataclass(frozen=True, slots=True)
class Outcome:
    """A mutation, and the tier whose tests killed it first: `default`, `all`, or neither."""

    mutation: Mutation
    killed_by: str
    test: str = ""


def drawn(records: Records, seed: int, rooms: Sequence[str] = ROOMS) -> Iterator[Mutation]:
    """Mutations at random of lines in these folders that some test runs, files by their number of lines, each line at
    most once.
    """
    covered = set[Place]().union(*records.lines.values())
    files = [file for room in rooms for file in sorted((ROOT / room).rglob("*.py"))]
    mutations = [m for file in files for m in _of_file(file) if m.place in covered]
    random.Random(seed).shuffle(mutations)  # noqa: S311
    places: set[Place] = set()
    for mutation in mutations:
        if mutation.place not in places:
            places.add(mutation.place)
            yield mutation


def _of_file(file: Path) -> Iterator[Mutation]:
    source = file.read_text("utf-8")
    lines = source.split("\n")
    for node in _expressions(ast.parse(source)):
        changed = _changed(node)
        if changed is None or node.lineno != node.end_lineno:  # type: ignore[attr-defined]
            continue
        row, start, end = node.lineno, node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        line = lines[row - 1].encode()
        before = line[start:end].decode()
        after = ast.unparse(changed)
        if before != after:
            mutated = (line[:start] + f"({after})".encode() + line[end:]).decode()
            text = "\n".join([*lines[: row - 1], mutated, *lines[row:]])
            yield Mutation(str(file.relative_to(ROOT)), row, before, after, text)


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but annotations, which say nothing to a running program."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in {"annotation", "returns"}:
                yield child
                yield from _expressions(child)


def _changed(node: ast.AST) -> ast.expr | None:
    """An expression with another meaning; None for what is not mutated."""
    match node:
        case ast.Compare(left, [operator], right) if type(operator) in _COMPARISONS:
            return ast.Compare(left, [_COMPARISONS[type(operator)]()], right)
        case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC and not _is_text(left, right):
            return ast.BinOp(left, _ARITHMETIC[type(operator)](), right)
        case ast.BoolOp(ast.And(), values):
            return ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(ast.Or(), values):
            return ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.IfExp(test, body, orelse):
            return ast.IfExp(test, orelse, body)
        case ast.Constant(value) if isinstance(value, bool):
            return ast.Constant(not value)
        case ast.Constant(value) if isinstance(value, int | float):
            return ast.Constant(value + 1)
    return None


def _is_text(*sides: ast.expr) -> bool:
    """Whether an operator joins texts, or types."""
    return any(
        isinstance(side, ast.JoinedStr)
        or isinstance(getattr(side, "value", None), str)
        or (isinstance(side, ast.Constant) and side.value is None)
        or (isinstance(side, ast.Name) and side.id[:1].isupper())
        for side in sides
    )


def tried(mutation: Mutation, records: Records, held_back: Container[str]) -> Outcome:
    """Run the tests that run the line, the default ones first, until one fails."""
    closest = records.running(mutation.place)
    tiers = {"default": [t for t in closest if t not in held_back], "all": [t for t in closest if t in held_back]}
    file = ROOT / mutation.file
    whole = file.read_text("utf-8")
    file.write_text(mutation.text, "utf-8")
    try:
        for tier, tests in tiers.items():
            failed = _first_failure(tests[:MOST])
            if failed:
                return Outcome(mutation, tier, failed)
    finally:
        file.write_text(whole, "utf-8")
    return Outcome(mutation, "")


def _first_failure(tests: Sequence[str]) -> str:
    """The first of these tests that fails, or that pytest cannot run any more; empty where all pass."""
    if not tests:
        return ""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    listed = ROOT / ".tier-tests"
    listed.write_text("\n".join(tests), "utf-8")
    command = [sys.executable, "-m", "pytest", "-n0", "-x", "-q", "--no-header", "-rN", "--tb=line", f"@{listed}"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return "the time"
    finally:
        listed.unlink()
    return "" if done.returncode == 0 else (done.stdout.strip().split("\n") or [""])[-1]
