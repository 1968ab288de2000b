"""What every section of a bisection's report prints, and every other command's document: a golden text for each.

After a change of wording, `UPDATE_SNAPSHOTS=1 pytest tests/test_screens.py` writes them anew: read each one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from moeparity.bisection.report import Report
from moeparity.bisection.sections import SECTIONS, Section
from tests.bisection.reports import name_of
from tests.bisection.screens import answers, choices, commands, noise, places
from tests.evidence.screens import documents as of_evidence
from tests.logs.screens import documents as of_logs
from tests.probe.screens import documents as of_probe
from tests.ranks.screens import documents as of_ranks
from tests.screens import Screens, golden, text_of

TESTS = Path(__file__).parent
FOLDER = TESTS / "bisection" / "screens"
REPORTS: Mapping[str, Mapping[str, Report]] = {
    name: reports
    for part in (answers.REPORTS, places.REPORTS, noise.REPORTS, choices.REPORTS)
    for name, reports in part.items()
}
ROOMS: Mapping[str, Mapping[str, Screens]] = {
    "bisection/screens/commands": commands.DOCUMENTS,
    "evidence/screens": of_evidence.DOCUMENTS,
    "logs/screens": of_logs.DOCUMENTS,
    "probe/screens": of_probe.DOCUMENTS,
    "ranks/screens": of_ranks.DOCUMENTS,
}
DOCUMENTS = [(room, name) for room, documents in ROOMS.items() for name in documents]


@pytest.mark.parametrize("section", SECTIONS, ids=name_of)
def test_a_section_prints_its_text(section: Section) -> None:
    name = name_of(section)
    text = text_of({case: list(section.show(of)) for case, of in REPORTS[name].items()})
    assert text == golden(FOLDER / f"{name}.txt", text)


@pytest.mark.parametrize(("room", "name"), DOCUMENTS, ids=[f"{room}/{name}" for room, name in DOCUMENTS])
def test_a_document_prints_its_text(room: str, name: str) -> None:
    text = text_of(ROOMS[room][name])
    assert text == golden(TESTS / room / f"{name}.txt", text)


def test_no_section_is_without_a_text_and_no_text_without_a_section() -> None:
    names = sorted(map(name_of, SECTIONS))
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == names
    assert sorted(REPORTS) == names


@pytest.mark.parametrize("room", ROOMS)
def test_no_document_is_without_a_text_and_no_text_without_a_document(room: str) -> None:
    assert {path.stem for path in (TESTS / room).glob("*.txt")} == set(ROOMS[room])
