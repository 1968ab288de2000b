"""The rules of `python -m scripts.tree --check`, on small trees made up here."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scripts.names import WORDS
from scripts.tree import LONGEST, LONGEST_FILE, broken, circles, main, nameless, rooms, sources
from tests.command import ROOT

CLEAN = {
    "moeparity/__init__.py": '"""The package."""\n',
    "moeparity/upper/__init__.py": '"""A room."""\n',
    "moeparity/upper/one.py": 'from moeparity.lower import two\n\n\ndef f():\n    """Say."""\n    return two.g()\n',
    "moeparity/upper/sibling.py": "from . import one\nfrom .one import f\n",
    "moeparity/lower/__init__.py": "",
    "moeparity/lower/two.py": 'import torch\n\n\nclass A:\n    """Say."""\n\n    def _p(self):\n        return torch\n',
    "cli/main.py": "from moeparity.upper.one import f\n",
}


def tree(folder: Path, changes: dict[str, str]) -> Path:
    """The clean tree with some of its files changed, or more files."""
    for name, text in (CLEAN | changes).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return folder


def test_a_clean_tree(tmp_path: Path) -> None:
    files = sources(tree(tmp_path, {}))
    assert list(broken(files)) == []
    head, *rows = rooms(files)
    assert head.split() == ["room", "files", "lines", "longest", "function"]
    assert [row.split()[:2] for row in rows] == [["__init__", "1"], ["cli", "1"], ["lower", "2"], ["upper", "3"]]
    assert rows[2].endswith("moeparity/lower/two.py:7 A._p")


@pytest.mark.parametrize(
    "back",
    [
        "import moeparity.upper.one\n",
        "from moeparity.upper import one\n",
        "from ..upper.one import f\n",
        "def g():\n    from moeparity.upper.one import f\n",
        "if TYPE_CHECKING:\n    from moeparity.upper.one import f\n",
    ],
)
def test_a_circle_wherever_its_import_stands(tmp_path: Path, back: str) -> None:
    files = sources(tree(tmp_path, {"moeparity/lower/two.py": back}))
    (steps,) = circles(files)
    line = 1 + back.startswith(("def", "if"))
    assert steps == [
        f"moeparity/lower/two.py:{line} imports moeparity.upper.one",
        "moeparity/upper/one.py:1 imports moeparity.lower.two",
    ]


def test_a_circle_through_the_command_line_and_its_other_files(tmp_path: Path) -> None:
    """`cli/` is imported as moeparity.cli; the shortest way round is shown, and how many files hang together."""
    changes = {
        "moeparity/lower/two.py": "from moeparity.cli import main\nfrom moeparity.upper import sibling\n",
        "cli/__init__.py": "",
    }
    (steps,) = circles(sources(tree(tmp_path, changes)))
    assert len(steps) == 4
    assert steps[-1] == "in a group of 4 files"
    assert "imports moeparity.cli.main" in "".join(steps) or "imports moeparity.upper.sibling" in "".join(steps)


def test_a_package_that_exports_its_files_is_no_circle_unless_they_ask_it(tmp_path: Path) -> None:
    changes = {"moeparity/upper/__init__.py": "from moeparity.upper.one import f\n"}
    assert circles(sources(tree(tmp_path, changes))) == []
    changes["moeparity/upper/one.py"] = "from moeparity.upper import f\n"
    assert len(circles(sources(tree(tmp_path, changes)))) == 1


def test_long_functions_and_missing_docstrings(tmp_path: Path) -> None:
    body = "    x = 0\n" * LONGEST
    text = (
        f"def long():\n{body}\n\nclass A:\n    def m(self):\n        def inner(): ...\n\n    def _p(self): ...\n\n\n"
        'class _B:\n    def m(self): ...\n\n\nasync def f():\n    """Say."""\n'
    )
    files = sources(tree(tmp_path, {"moeparity/lower/two.py": text}))
    complaints = [line.split()[-1] for line in broken(files) if line.startswith("  ")]
    assert complaints == ["long", "long", "A", "A.m"]


def test_a_long_file(tmp_path: Path) -> None:
    lines = list(broken(sources(tree(tmp_path, {"cli/main.py": "x = 0\n" * (LONGEST_FILE + 1)}))))
    assert lines == [f"\nfiles above {LONGEST_FILE} lines", f"   {LONGEST_FILE + 1}  cli/main.py"]


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("x = node.op.name == 'router'", 1),
        ("x = 1\ny = 'a' != op.name", 2),
        ("x = [n for n in y if n.op.name in ('a', 'b')]", 1),
        ("if node.op.name in {'a'}: ...", 1),
        ("x = node.op.name == other.op.name", None),
        ("x = node.op.role.routes or node.name == 'a'", None),
    ],
)
def test_an_op_told_by_its_name(tmp_path: Path, line: str, number: int | None) -> None:
    files = sources(tree(tmp_path, {"moeparity/upper/one.py": line, "moeparity/ops/two.py": line}))
    expected = ["\nops told by their names", f"  moeparity/upper/one.py:{number}"] if number else []
    assert list(broken(files)) == expected


BOUND = (
    "{} = 1\n",
    "x, (*{}, y) = f()\n",
    "def f(x, *, {}=1): ...\n",
    "def f(**{}): ...\n",
    "g = lambda {}: 1\n",
    "class A:\n    def f(self, {}): ...\n",
    "for i, {} in x: ...\n",
    "x = [1 for {} in y]\n",
    "x = f'{{[a for {} in y]}}'\n",
    "with x as {}: ...\n",
    "try: ...\nexcept E as {}: ...\n",
    "import a as {}\n",
    "if ({} := f()): ...\n",
    "match x:\n    case [1, {}]: ...\n",
)


@pytest.mark.parametrize("text", BOUND)
def test_a_variable_is_a_noun_wherever_it_is_bound(tmp_path: Path, text: str) -> None:
    for word in WORDS:
        (tmp_path / "moeparity").mkdir(exist_ok=True)
        (tmp_path / "moeparity/x.py").write_text(text.format(word), "utf-8")
        _, *lines = nameless(sources(tmp_path))
        assert [line.split()[-1] for line in lines] == [word]


def test_what_is_no_variable_or_has_no_better_name(tmp_path: Path) -> None:
    text = (
        "left, right = 1, 2\n\n\nclass A:\n    left: int\n    right: int\n\n    def __add__(self, other): ...\n\n\n"
        "class B:\n    def tell(self): self.x.own = 1; return self.kept\n\n\n"
        "def keep(owned, one_order): return owned.kept(found=one_order)\n"
    )
    assert list(nameless(sources(tree(tmp_path, {"moeparity/lower/two.py": text})))) == []
    text = "def f(left):\n    def g(right): ...\n\n\ndef add(self, other): ...\n"
    lines = list(nameless(sources(tree(tmp_path, {"moeparity/lower/two.py": text}))))
    assert [line.split()[-1] for line in lines[1:]] == ["left", "other"]


FUNCTIONS = (
    "def {}(): ...\n",
    "async def _{}(): ...\n",
    "class A:\n    def {}(self): ...\n",
    "def f():\n    def {}(): ...\n",
)


@pytest.mark.parametrize("text", FUNCTIONS)
def test_a_function_says_what_it_gives_or_does(tmp_path: Path, text: str) -> None:
    (tmp_path / "moeparity").mkdir()
    for word in WORDS:
        (tmp_path / "moeparity/x.py").write_text(text.format(word), "utf-8")
        _, *lines = nameless(sources(tmp_path))
        assert [line.split()[-1].lstrip("_") for line in lines] == [word]


FIELDS = (
    "class A:\n    {}: int\n",
    "class A:\n    _{} = 1\n",
    "class A:\n    x: int\n\n    def f(self): self.x, self._{} = 1, 2\n",
    "class A:\n    def f(self): self.{} += 1\n",
    "class A:\n    def f(self): self.{}: int = 1\n",
    "class A:\n    @property\n    def {}(self): ...\n",
    "class A:\n    @cached_property\n    def _{}(self): ...\n",
)


@pytest.mark.parametrize("text", FIELDS)
def test_a_field_is_a_noun_unless_it_is_a_key_of_json(tmp_path: Path, text: str) -> None:
    for word in WORDS:
        for name, lines in (("x.py", 1), ("report.py", 0 if "self" not in text else None)):
            (tmp_path / "moeparity").mkdir(exist_ok=True)
            (tmp_path / "moeparity" / name).write_text(text.format(word), "utf-8")
            complaints = [line.split()[-1] for line in list(nameless(sources(tmp_path)))[1:]]
            (tmp_path / "moeparity" / name).unlink()
            assert lines is None or [name.lstrip("_") for name in complaints] == [word] * lines


@pytest.mark.parametrize(
    ("changes", "code"),
    [({}, 0), ({"cli/main.py": "def f(): ...\n"}, 1), ({"tests/test_x.py": "def f():\n    own = 1\n"}, 1)],
)
def test_the_command(tmp_path: Path, changes: dict[str, str], code: int) -> None:
    command = [sys.executable, "-m", "scripts.tree", "--check", "--root", str(tree(tmp_path, changes))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("cli/main.py:1 f" in done.stdout or "tests/test_x.py:2 own" in done.stdout) == bool(code)
    relaxed = subprocess.run([*command[:3], *command[4:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert relaxed.returncode == 0


def test_each_file_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: Counter[str] = Counter()
    parse = ast.parse

    def counting(text: str, name: str) -> ast.Module:
        parsed[name] += 1
        return parse(text, name)

    monkeypatch.setattr(ast, "parse", counting)
    monkeypatch.setattr(sys, "argv", ["tree", "--root", str(tree(tmp_path, {"tests/test_x.py": ""}))])
    assert main() == 0
    assert parsed == Counter([*CLEAN, "tests/test_x.py"])
