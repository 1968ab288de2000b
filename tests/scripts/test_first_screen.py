"""The first screens of docs/first-screen.md: eight situations as snapshots of their words, at 80 columns."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from moeparity.bisection.sections import ON_REQUEST
from scripts.pages.page import BLOCK, ROOT
from scripts.pages.registry import MEASURED
from scripts.pages.sessions import broken_off
from scripts.pages.situations import SITUATIONS, arguments
from tests.command import inside

PAGE = MEASURED["first-screen"]
TEXT = PAGE.file.read_text("utf-8")
SHOWN = {block[2]: block[3] for block in BLOCK.finditer(TEXT)}
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
EXIT = {"parity": 0, "culprit": 1, "saturated": 1, "record": 3, "log": 1, "nan": 1, "inconclusive": 3, "refused": 2}
_CELLS = re.findall(r"\*\*([^*]+)\*\*|^\| `([^`]+)` \|", GLOSSARY, re.MULTILINE)
WORDS = 40
"""So many words of a screen are compared: the verdict, and what the lines below it begin with."""
TERMS = {term.lower() for cell in _CELLS for term in cell if term}
"""What the glossary says the meaning of."""
SAYS = ("verified", "read", "inferred", "opaque", "unknown")
PLAIN = {"machine", "files", "scored"}
"""First columns that are words of every day; a list of metrics has names of its own (docs/metrics.md)."""


def words(text: str) -> list[str]:
    """What does not depend on the processor: the words of a text without numbers, path and machine."""
    lines = (line for line in text.splitlines() if not line.strip().startswith(("machine", "checkpoint ", "--section")))
    return re.findall(r"[A-Za-z]{3,}", " ".join(lines))


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_page_shows_what_is_printed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    SITUATIONS[name].make(tmp_path)
    done = inside(*arguments(name), cwd=tmp_path)
    assert done.returncode == EXIT[name], done.stderr
    lines = (done.stdout or textwrap.fill(done.stderr, 80)).splitlines()
    assert max(map(len, lines)) <= 80
    screen = broken_off(lines, SITUATIONS[name].lines)
    # Digits are another processor's, and with them where a line ends; what is said is not.
    shown = SHOWN[name].split("```")[1].splitlines()[2:]
    assert words("\n".join(screen))[:WORDS] == words("\n".join(shown))[:WORDS]


def first_columns(name: str) -> set[str]:
    """The words in the first column of the lines that have several, down to the metrics of a log."""
    shown, _, _ = SHOWN[name].split("```")[1].partition("\nMetrics\n")
    lines = re.findall(r"^ {0,2}(?:--section )?(\S+(?: \S+)*) {2,}\S", shown, re.MULTILINE)
    return {line.lower() for line in lines}


@pytest.mark.parametrize("name", sorted(set(SITUATIONS) - {"refused"}))
def test_the_first_column_is_in_the_glossary(name: str) -> None:
    assert "`pass`, `fail` or `inconclusive`" in GLOSSARY
    columns = first_columns(name) - {"pass", "fail", "inconclusive"} - PLAIN
    assert {"cause"} <= columns or {"record", "starts", "blame", "to set", "floor", "sure"} <= columns
    assert {word for word in columns if not {word, word.removesuffix("s")} & TERMS} == set()


@pytest.mark.parametrize(
    "term",
    [
        *("k3", "toggle", "root", "ulp", "leaves", "floor", "gate", "record", "blame", "saturated", "interchangeable"),
        *("nats", "interval", "noise", "evidence", "flag", "reference", "candidate", "scored token", "to set", *SAYS),
    ],
)
def test_the_words_of_the_seven_lines_are_in_the_glossary(term: str) -> None:
    assert term in TERMS


def test_every_section_is_in_the_glossary() -> None:
    assert {name for name in ON_REQUEST if not {name, name.removesuffix("s")} & TERMS} == set()
