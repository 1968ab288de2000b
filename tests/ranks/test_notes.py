"""What a rank called last is read by others after its process is gone, and never by halves."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from moeparity.ranks.notes import SLOT, SLOTS, Note, Notes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where notes are kept."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_others_read_the_last_notes_of_each_group(folder: Path) -> None:
    first, second = Notes("a", 0), Notes("a", 3)
    stranger = Notes("b", 1)
    stranger.write("0", 7, "barrier()", "x.py:1")
    for number in range(SLOTS + 2):
        first.write("0", number, f"allreduce(float32[{number}], sum)", "job.py:5, in call 1")
    first.write("1", 4, "broadcast(float32[2], root 0)", "job.py:6, in call 1")
    notes = second.read()
    assert notes[3] == {}
    assert set(notes) == {0, 3}
    assert notes[0]["collectives.1"] == "4\tbroadcast(float32[2], root 0)\tjob.py:6, in call 1"
    numbers = {int(line.split("\t")[0]) for line in notes[0]["collectives.0"].splitlines()}
    assert numbers == set(range(3, SLOTS + 2)), "the oldest are written over"
    first.close()
    assert set(second.read()) == {3}
    for notes_of_rank in (second, stranger):
        notes_of_rank.close()
    assert list(folder.iterdir()) == []


def test_others_read_where_a_rank_came_to_last(folder: Path) -> None:
    first, second, third = Notes("a", 0), Notes("a", 3), Notes("a", 4)
    assert third.places() == {}
    places = Note(1, None, "before the first call, at a place with a long name"), Note(40, 11, "in call 12")
    first.at(places[0])
    second.at(places[1])
    assert third.places() == {0: places[0], 3: places[1]}
    first.at(last := Note(2, None, "in call 0"))
    assert third.places()[0] == last, "a shorter note has nothing of the one before"
    first.write("0", 0, "barrier()", "job.py:5")
    assert (third.places()[0], third.read()[0]) == (last, {"collectives.0": "0\tbarrier()\tjob.py:5"})
    for notes in (first, second, third):
        notes.close()
        notes.at(Note(41, 1, "after its end"))
    assert list(folder.iterdir()) == []


def test_a_note_that_is_written_by_halves_is_passed_over(folder: Path) -> None:
    notes = Notes("a", 0)
    for number in range(2):
        notes.write("0", number, "allreduce(float32[8], sum)", "job.py:5")
    (file,) = folder.iterdir()
    content = bytearray(file.read_bytes())
    content[SLOT + 14] ^= 1
    file.write_bytes(content)
    assert notes.read()[0] == {"collectives.0": "0\tallreduce(float32[8], sum)\tjob.py:5"}
    notes.close()


def test_the_first_verdict_on_a_host_is_that_of_all_until_the_last_of_them_has_left(folder: Path) -> None:
    """Who stopped a job for a stopped rank kills that rank: to a slower one it must not seem to have been killed."""
    first, second, stranger = Notes("a", 0), Notes("a", 1), Notes("b", 0)
    assert first.verdict() is None
    assert first.elected("rank 2 is stopped") == "rank 2 is stopped"
    first.clear()
    first.close()
    assert second.verdict() == "rank 2 is stopped"
    assert second.elected("rank 2 was killed") == "rank 2 is stopped"
    second.close()
    assert [file.name for file in folder.iterdir()] == [f"moeparity-ranks-b-0-{os.getpid()}"]
    stranger.close()


def test_notes_go_of_processes_that_can_not_remove_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, stopped, running, staying = (Notes("a", rank) for rank in range(4))
    states = {"0": "gone", "1": "stopped", "2": "running", "3": "running"}
    for rank, file in ((file.name.split("-")[3], file) for file in list(folder.iterdir())):
        file.rename(file.with_name(f"moeparity-ranks-a-{rank}-{10 + int(rank)}"))
    monkeypatch.setattr("moeparity.ranks.notes.process_state", lambda pid: states[str(pid - 10)])
    staying.clear()
    assert set(staying.read()) == {2, 3}
    for notes in (gone, stopped, running, staying):
        notes.close()


def test_a_note_too_long_for_its_place_is_left_out(folder: Path) -> None:
    notes = Notes("a", 0)
    notes.write("0", 0, "x" * SLOT, "job.py:5")
    notes.write("0", 1, "barrier()", "job.py:6")
    assert notes.read()[0] == {"collectives.0": "1\tbarrier()\tjob.py:6"}
    notes.close()
    assert list(folder.iterdir()) == []
