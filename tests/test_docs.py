"""What documents name is there: files, modules, commands."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from moeparity.bisection.measures import MEASURES
from moeparity.metrics.registry import METRICS
from tests.command import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "checkpoints" / "quickstart" / "README.md"]
TOPS = {path.name for path in ROOT.iterdir() if path.is_dir()}
SOURCES = {path.name for top in TOPS for path in (ROOT / top).rglob("*.py") if not top.startswith(".")}
FILE = re.compile(r"[\w.-]+(?:/[\w.*-]+)+")
MODULE = re.compile(r"(?:moeparity|scripts|benchmarks|tests)(?:\.[a-z_0-9]+)+")
ELSEWHERE = {"my_kernels.py", "pytorch_processor.py", "train.py"}
"""Files that a page tells its reader to write, those of another tool, and a reader's own program."""
PYTHON = {"moeparity.sweep", "moeparity.forward", "moeparity.bisect", "moeparity.open_model", "moeparity.cli"}
"""Names that `moeparity` exports, and the command line's name in an installation."""


def quoted(page: Path) -> set[str]:
    """What stands in backticks or links on a page, code blocks left out."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {*re.findall(r"`([^`\n]+)`", text), *re.findall(r"\]\(([^)#:]+)\)", text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_modules_named_are_there(page: Path) -> None:
    words = {word for text in quoted(page) for word in text.split()}
    files = {word.rstrip("/") for word in words if FILE.fullmatch(word) and word.partition("/")[0] in TOPS}
    assert [name for name in files if not list(ROOT.glob(name))] == []
    bare = {word for word in words if re.fullmatch(r"\w+\.py", word)} - ELSEWHERE
    assert [name for name in bare if name not in SOURCES] == []
    modules = {word for word in words if MODULE.fullmatch(word)} - PYTHON
    assert [name for name in modules if not _module(name)] == []


def _module(name: str) -> bool:
    """Whether a dotted name is a module, or a name in one."""
    parts = name.split(".")
    ways = (ROOT.joinpath(*parts[:end]) for end in (len(parts), len(parts) - 1))
    return any(path.with_suffix(".py").exists() or (path / "__init__.py").exists() for path in ways)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_a_word_of_the_glossary_is_defined_once() -> None:
    lines = (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| ")]
    defined = Counter(term for cell in cells for term in re.findall(r"\*\*(.*?)\*\*", cell))
    assert len(defined) > 100
    assert [term for term, times in defined.items() if times > 1] == []


def test_the_glossary_is_led_to() -> None:
    for page in ("README.md", "docs/design.md", "docs/method.md"):
        assert "docs/glossary.md" in (ROOT / page).read_text("utf-8"), page


def test_design_names_every_room_and_every_section() -> None:
    text = (ROOT / "docs" / "design.md").read_text("utf-8")
    table = text[text.index("| room | holds |") :].split("\n\n")[0].splitlines()[2:]
    cells = [row.replace(r"\|", ",").split("|")[1] for row in table]
    listed = {name for cell in cells for name in re.findall(r"`(?:moeparity\.)?([a-z_]+)/?`", cell)}
    rooms = {path.stem for path in (ROOT / "moeparity").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert listed - {"cli"} == rooms - {"__init__", "__pycache__", "py", "cli", "graphs", "recipes"}

    (sections,) = re.findall(r"has one folder for each section of the report: ([^;]*);", text)
    folders = {measure.gives.__module__.split(".")[2] for measure in MEASURES}
    assert set(re.findall(r"`([a-z_]+)`", sections)) == folders


def test_from_a_recipe_to_the_verdict_it_is_fewer_than_20_files() -> None:
    text = (ROOT / "docs" / "design.md").read_text("utf-8")
    way = text[text.index("The stops on the way") : text.index("## Rooms")]
    files = set(re.findall(r"`([a-z_/]+\.py)`", way))
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert "nineteen files" in way
    assert len(files) == 19


WHOLES = r"(tokens|token-layers|sequences|outputs|results|slots|draws|bf16|all|sum|activated|\d)"
"""Of what a part is a fraction: share means a share of the KL alone."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_share_means_one_thing(page: Path) -> None:
    """But in the changelog, which keeps what was said."""
    text = page.read_text("utf-8")
    assert page.name == "CHANGELOG.md" or re.findall(rf"\bshares? of (?:the )?`?{WHOLES}", text) == []


def test_no_metric_is_defined_by_a_share() -> None:
    for metric in METRICS.values():
        assert not re.search(r"\bshares?\b", f"{metric.formula} {metric.estimates}"), metric.name
