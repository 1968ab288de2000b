"""The words for verdicts: those of the screen are those that docs/diagnosis.md says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from moeparity.logs.diagnosis.finding import Diagnosis, Finding, FindingVerdict
from moeparity.logs.diagnosis.show import diagnosis_lines

PAGE = Path("docs/diagnosis.md")
WORDS = dict(re.findall(r"^\| \*\*(.+?)\*\* \| `(.+?)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_page_has_every_verdict() -> None:
    assert set(WORDS) == set(get_args(FindingVerdict))


@pytest.mark.parametrize("verdict", get_args(FindingVerdict))
def test_the_screen_says_a_verdict_as_the_page_does(verdict: FindingVerdict) -> None:
    finding = Finding(tier="semantics", name="truncation", verdict=verdict, reason="A reason.")
    diagnosis = Diagnosis(findings=(finding,), sequences=1, tokens=1, stale=0, unsaid=0, declared=(), next=())
    (line,) = (line for line in diagnosis_lines(diagnosis) if "truncation" in line)
    assert line.strip().startswith(WORDS[verdict])
    assert not any(line.strip().startswith(word) for name, word in WORDS.items() if name != verdict)
