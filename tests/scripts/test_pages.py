"""What programs write of the documentation: the quick pages are in step, and every block has its writer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.pages.__main__ import hold, write
from scripts.pages.page import BLOCK, ROOT, Page, blocks
from scripts.pages.registry import FROM_CODE, MEASURED, PAGES

TEXT = "by hand\n<!-- generated: table -->\nold 1\n<!-- /generated -->\nby hand too\n"


@pytest.mark.parametrize("name", FROM_CODE)
def test_a_page_is_what_the_code_says(name: str) -> None:
    page = FROM_CODE[name]
    text = page.file.read_text("utf-8")
    assert text == page.write(text), f"run `python -m scripts.pages {name}`"


@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_page_is_there_and_names_its_command(name: str) -> None:
    text = MEASURED[name].file.read_text("utf-8")
    if name in {"attribution-cost", "evidence", "rl-loop-curves"}:
        pages = {"evidence": "fidelity.md", "rl-loop-curves": "generated/rl-loop.md"}
        page = pages.get(name, "generated/attribution.md")
        text = Path(ROOT, "docs", page).read_text("utf-8")
    assert re.search(rf"python -m scripts\.pages ([\w-]+ )*{name}\b", " ".join(text.split()))


def test_generated_pages_and_marked_blocks_have_a_writer() -> None:
    written = {page.file for page in PAGES.values()}
    assert set((ROOT / "docs" / "generated").iterdir()) <= written
    marked = {path for path in ROOT.glob("**/*.md") if BLOCK.search(path.read_text("utf-8"))}
    assert marked <= written
    for path in marked:
        text = path.read_text("utf-8")
        assert text.count("<!-- generated: ") == text.count("<!-- /generated -->") == len(BLOCK.findall(text))


def test_only_what_is_marked_is_written() -> None:
    assert blocks({"table": lambda old: f"{old}new\n"})(TEXT) == TEXT.replace("old 1", "old 1\nnew")
    with pytest.raises(ValueError, match=r"has blocks \['table'\], written are \['other'\]"):
        blocks({"other": str})(TEXT)


def page_of(tmp_path: Path, anew: str, *, measured: bool = False) -> Page:
    (tmp_path / "page.md").write_text(TEXT, "utf-8")
    return Page(path=str(tmp_path / "page.md"), takes="no time", write=lambda _: anew, measured=measured)


def test_a_check_writes_nothing_and_tells_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = page_of(tmp_path, TEXT.replace("old 1", "old 2"))
    assert not hold(page)
    assert "+old 2" in capsys.readouterr().out
    assert page.file.read_text("utf-8") == TEXT
    assert not write(page)
    assert hold(page)


def test_measured_figures_and_their_machine_are_not_held(tmp_path: Path) -> None:
    line = "2000-01-01, some machine\n"
    assert hold(page_of(tmp_path, TEXT.replace("old 1", f"old  2.5e-07\n{line.strip()}"), measured=True))
    assert not hold(page_of(tmp_path, TEXT.replace("old", "another"), measured=True))
