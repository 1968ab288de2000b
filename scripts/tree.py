"""The house at a glance, `python -m scripts.tree`: rooms, their sizes, their longest functions, circles of imports.

With `--check` it exits with 1 where files import each other in a circle (wherever in a file the import stands), where a
public function, method or class has no docstring, where a function has more than 50 lines or a file more than 350,
where an op is told by its name outside `moeparity/ops`, whose declarations say what others need to know of it, or where
a variable, a field or a function is called by a word that says nothing of it (`scripts/names.py`).
"""

from __future__ import annotations

import argparse
import ast
import gc
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path

import networkx as nx

from scripts.names import misnamed

LONGEST = 50
LONGEST_FILE = 350
TOPS = ("moeparity", "cli", "scripts", "benchmarks")
PRODUCT = ("moeparity", "cli")
INSTALLED = {"cli": "moeparity.cli"}
"""A top-level folder whose modules are imported under another name."""

BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""The fields of a syntax tree's nodes that hold statements, or what holds them."""

_OP_NAME = re.compile(r"\bop\.name$")
_WORD = re.compile(r"""[({\[]?["']""")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Place:
    """A function or class by its qualified name, with its file, line and number of lines."""

    lines: int
    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


@dataclass(frozen=True, kw_only=True)
class Source:
    """One parsed file; `path` is from the root of the tree."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """What the file holds."""
        return ast.parse(self.text, str(self.path))

    @property
    def lines(self) -> int:
        """How many lines the file has."""
        return self.text.count("\n")

    @property
    def room(self) -> str:
        """A folder or file at the top of `moeparity/`, or another top-level folder as a whole."""
        top, *below = self.path.parts
        return top if top != "moeparity" else below[0].removesuffix(".py")

    @property
    def module(self) -> str:
        """The name under which the file is imported."""
        top, *below = self.path.with_suffix("").parts
        parts = [INSTALLED.get(top, top), *below]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def statements(self) -> list[tuple[tuple[Definition, ...], ast.stmt]]:
        """Every statement with the functions and classes around it, outermost first."""
        return list(_statements(self.tree, ()))

    @property
    def definitions(self) -> Iterator[tuple[tuple[Definition, ...], Definition]]:
        """Every function and class with those around it."""
        return ((outer, node) for outer, node in self.statements if isinstance(node, Definition))

    @property
    def functions(self) -> list[Place]:
        """Every function, nested ones too."""
        return [self._place(outer, node) for outer, node in self.definitions if isinstance(node, Function)]

    @property
    def undocumented(self) -> list[Place]:
        """Public functions, methods and classes without a docstring."""
        return [
            self._place(outer, node)
            for outer, node in self.definitions
            if all(isinstance(around, ast.ClassDef) and not around.name.startswith("_") for around in outer)
            and not node.name.startswith("_")
            and ast.get_docstring(node) is None
        ]

    def imports(self, modules: frozenset[str]) -> dict[str, int]:
        """The modules of the tree that are imported anywhere in the file, each with the first line that does so."""
        lines: dict[str, int] = {}
        package = self._package
        for _, node in self.statements:
            for name in _imported(node, package, modules):
                lines[name] = min(node.lineno, lines.get(name, node.lineno))
        return lines

    @property
    def by_name(self) -> list[int]:
        """The lines that compare an op's name with names written there."""
        if self.path.parts[0] not in PRODUCT or self.room == "ops" or "op.name" not in self.text:
            return []
        compared = (node for node in ast.walk(self.tree) if isinstance(node, ast.Compare))
        sides = ((node.lineno, [ast.unparse(side) for side in (node.left, *node.comparators)]) for node in compared)
        return [
            line
            for line, texts in sides
            if any(_OP_NAME.search(text) for text in texts) and any(_WORD.match(text) for text in texts)
        ]

    @property
    def _package(self) -> list[str]:
        """What a relative import starts from."""
        parts = self.module.split(".")
        return parts if self.path.name == "__init__.py" else parts[:-1]

    def _place(self, outer: Iterable[Definition], node: Definition) -> Place:
        name = ".".join([*(around.name for around in outer), node.name])
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        return Place(lines=lines, file=str(self.path), line=node.lineno, name=name)


def sources(root: Path, tops: Iterable[str] = TOPS) -> list[Source]:
    """The Python files below top-level folders, in order."""
    paths = [path for top in tops for path in sorted((root / top).rglob("*.py"))]
    return [Source(path=path.relative_to(root), text=path.read_text("utf-8")) for path in paths]


def circles(files: Iterable[Source]) -> list[list[str]]:
    """Groups of files that import each other: of each group the shortest way round, as lines to print."""
    by_module = {file.module: file for file in files}
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, file in by_module.items():
        for imported, line in file.imports(frozenset(by_module)).items():
            graph.add_edge(name, imported, line=line)
    groups = (sorted(group) for group in nx.strongly_connected_components(graph))
    tangled = sorted(group for group in groups if len(group) > 1 or graph.has_edge(group[0], group[0]))
    return [_round(graph.subgraph(group), by_module) for group in tangled]


def _round(group: nx.DiGraph[str], files: dict[str, Source]) -> list[str]:
    """The shortest circle of a group, an import per line, and how many files the whole group has."""
    ways = ([start, *nx.shortest_path(group, after, start)] for start, after in sorted(group.edges))
    shortest = min(ways, key=len)
    steps = [
        f"{files[name].path}:{group.edges[name, imported]['line']} imports {imported}"
        for name, imported in pairwise(shortest)
    ]
    return [*steps, f"in a group of {len(group)} files"] if len(group) > len(steps) else steps


def _statements(block: ast.AST, outer: tuple[Definition, ...]) -> Iterator[tuple[tuple[Definition, ...], ast.stmt]]:
    """The statements within another, with the definitions around each; no expression holds one."""
    for field in BLOCKS:
        for child in getattr(block, field, ()):
            if isinstance(child, ast.stmt):
                yield outer, child
            yield from _statements(child, (*outer, child) if isinstance(child, Definition) else outer)


def _imported(node: ast.stmt, package: list[str], modules: frozenset[str]) -> Iterator[str]:
    """The modules of the tree that an import statement names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif isinstance(node, ast.ImportFrom):
        start = package[: len(package) - node.level + 1] if node.level else []
        module = ".".join([*start, *([node.module] if node.module else [])])
        for alias in node.names:
            yield from [name for name in (f"{module}.{alias.name}", module) if name in modules][:1]


def rooms(files: Iterable[Source]) -> Iterator[str]:
    """A row for each room."""
    yield f"{'room':14} files  lines  longest function"
    for room, group in groupby(sorted(files, key=lambda file: file.room), key=lambda file: file.room):
        members = list(group)
        longest = max((place for file in members for place in file.functions), default=None)
        words = f"{longest.lines:4}  {longest}" if longest else "   -"
        yield f"{room:14} {len(members):5}  {sum(file.lines for file in members):5}  {words}"


def main() -> int:
    """Print the rooms and what breaks a rule."""
    parser = argparse.ArgumentParser(prog="python -m scripts.tree", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a rule is broken")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="default: this repository")
    options = parser.parse_args()
    files = sources(options.root)
    print("\n".join(rooms(files)))
    complaints = [*broken(files), *nameless([*files, *sources(options.root, ["tests"])])]
    print("\n".join(complaints))
    return int(options.check and bool(complaints))


def broken(files: list[Source]) -> Iterator[str]:
    """What breaks a rule, as lines to print."""
    for steps in circles(files):
        yield from ("\ncircle of imports", *(f"  {step}" for step in steps))
    every = [place for file in files for place in file.functions]
    complaints = {
        f"functions above {LONGEST} lines": [f"  {place.lines:4}  {place}" for place in every if place.lines > LONGEST],
        f"files above {LONGEST_FILE} lines": [f"  {f.lines:4}  {f.path}" for f in files if f.lines > LONGEST_FILE],
        "public, without docstring": [f"  {place.lines:4}  {place}" for file in files for place in file.undocumented],
        "ops told by their names": [f"  {file.path}:{line}" for file in files for line in file.by_name],
    }
    for title, lines in complaints.items():
        if lines:
            yield from (f"\n{title}", *lines)


def nameless(files: Iterable[Source]) -> Iterator[str]:
    """Names that say nothing, as lines to print."""
    lines = [
        f"  {file.path}:{line} {name}" for file in files for line, name in sorted(misnamed(str(file.path), file.tree))
    ]
    if lines:
        yield from ("\nnames that do not say what they hold, give or do (scripts/names.py)", *lines)


if __name__ == "__main__":
    gc.disable()  # All that is read is kept to the end; to look for what is not takes longer than to read it.
    sys.exit(main())
