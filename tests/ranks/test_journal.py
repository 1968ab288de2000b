"""What journals tell after the job, also where nobody was left to say it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from moeparity.cli.schemas import report_schema
from moeparity.errors import RankError
from moeparity.ranks.journal import Journal
from moeparity.ranks.report import Undeclared, job_report
from tests.command import inside


def written(folder: Path, rank: int, chunks: list[int], *, end: bool = True, ranks: int = 2) -> Path:
    """A rank's journal of calls with these chunks, each finished."""
    journal = Journal(folder, rank, ranks)
    for call, chunk in enumerate(chunks):
        journal.write("call", call=call, fields={"envelope.chunk": str(chunk)})
        journal.write("done", call=call)
    if end:
        journal.write("end", last=len(chunks) - 1)
    journal.close()
    return folder / f"rank-{rank}.jsonl"


def test_ranks_in_step_to_the_end(tmp_path: Path) -> None:
    for rank in range(2):
        written(tmp_path, rank, [0, 1, 2])
    report = job_report(tmp_path)
    assert (report.exit_code, report.difference, report.missing) == (0, "", ())
    assert [(line.calls, line.last, line.end) for line in report.ranks] == [(3, 2, "ended")] * 2
    done = inside("ranks", str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.count("PASS") == 2
    assert "2 ranks in step to the end; exit 0" in done.stdout
    jsonschema.validate(json.loads(report.to_json()), report_schema("ranks"))


def test_weights_that_nobody_declared_are_named_beside_the_verdict(tmp_path: Path) -> None:
    for rank in range(3):
        journal = Journal(tmp_path, rank, 3)
        journal.write("weights", fields={"a": "1", "b": "2", "c": str(rank)}, undeclared=["a", "b"])
        journal.write("weights", fields={"a": "3", "b": str(rank // 2), "c": str(rank)}, undeclared=["a", "b"])
        journal.write("end", last=0)
        journal.close()
    report = job_report(tmp_path)
    assert report.undeclared == Undeclared(tensors=2, apart=("b",), moment="after 1 update")
    jsonschema.validate(json.loads(report.to_json()), report_schema("ranks"))
    done = inside("ranks", str(tmp_path))
    assert (done.returncode, done.stdout.count("PASS")) == (0, 2)
    words = " ".join(done.stdout.split())
    assert "2 weight tensors were not compared across ranks, since nothing declares them sharded or replicated" in words
    assert (
        "After 1 update ranks hold different bits of 1, as they do of shards, or of replicas loaded wrongly: b."
        in words
    )


@pytest.mark.parametrize(("at_start", "latest"), [("1", "1"), ("1", "2")])
def test_undeclared_weights_that_are_alike_are_said_to_be(tmp_path: Path, at_start: str, latest: str) -> None:
    for rank in range(2):
        journal = Journal(tmp_path, rank, 2)
        for bits in (at_start, latest):
            journal.write("weights", fields={"a": bits, "c": str(rank)}, undeclared=["a"])
        journal.write("end", last=0)
        journal.close()
    assert job_report(tmp_path).undeclared == Undeclared(tensors=1, apart=(), moment="at start and after 1 update")
    words = " ".join(inside("ranks", str(tmp_path)).stdout.split())
    assert "1 weight tensor was not compared across ranks, since nothing declares it" in words
    assert "At start and after 1 update all ranks that have it hold the same bits." in words


def test_a_difference_nobody_told_is_found_by_comparing_the_journals(tmp_path: Path) -> None:
    written(tmp_path, 0, [0, 1, 2], end=False)
    written(tmp_path, 1, [0, 1, 7], end=False)
    report = job_report(tmp_path)
    assert (report.exit_code, report.difference) == (1, "call 2: envelope.chunk: rank 0 2, rank 1 7")
    done = inside("ranks", str(tmp_path))
    assert (done.returncode, "call 2: envelope.chunk: rank 0 2, rank 1 7; exit 1" in done.stdout) == (1, True)


def test_a_rank_lost_without_a_word_or_a_journal_is_inconclusive(tmp_path: Path) -> None:
    path = written(tmp_path, 0, [0, 1], end=False)
    path.write_bytes(path.read_bytes()[:-5])
    report = job_report(tmp_path)
    assert (report.exit_code, report.missing) == (3, (1,))
    assert [(line.last, line.end) for line in report.ranks] == [(0, "lost")]
    assert "rank 1 left no journal; exit 3" in inside("ranks", str(tmp_path)).stdout
    written(tmp_path, 1, [0, 1])
    assert (
        "rank 0 did not end by itself, and no rank told of a difference; exit 3"
        in inside("ranks", str(tmp_path)).stdout
    )


def test_a_rank_that_left_by_its_own_error_is_named_with_it(tmp_path: Path) -> None:
    """Also before the first call, where there is nothing to compare yet."""
    for rank, why in ((0, None), (1, "starting by RuntimeError: no such device"), (2, None)):
        written(tmp_path, rank, [], end=False)
        if why is not None:
            with (tmp_path / f"rank-{rank}.jsonl").open("a") as file:
                file.write(json.dumps({"event": "left", "at": 1.0, "text": why}) + "\n")
    report = job_report(tmp_path)
    assert (report.exit_code, report.difference) == (1, "rank 1 left starting by RuntimeError: no such device")
    assert [line.end for line in report.ranks] == ["lost", "left", "lost"]
    assert report.ranks[1].error == "starting by RuntimeError: no such device"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{\n", r"rank-0\.jsonl:2: no JSON; expected an event of a journal"),
        ("[]\n", r"rank-0\.jsonl:2: no event of a journal"),
        ('{"event": "call", "at": 1}\n', r"rank-0\.jsonl:2: no event of a journal"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = written(tmp_path, 0, [0])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + line + "".join(lines[1:]))
    with pytest.raises(RankError, match=words):
        job_report(tmp_path)


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"no journals: expected rank-0\.jsonl, rank-1\.jsonl"):
        job_report(tmp_path)
    path = tmp_path / "rank-0.jsonl"
    path.write_text("")
    with pytest.raises(RankError, match="empty; expected the journal of a rank"):
        job_report(tmp_path)
    path.write_text(json.dumps({"event": "start", "schema": "other/1"}) + "\n")
    with pytest.raises(RankError, match=r"schema 'other/1'; expected moeparity\.journal/2"):
        job_report(tmp_path)


def test_another_jobs_journal_is_not_written_over(tmp_path: Path) -> None:
    written(tmp_path, 0, [0])
    with pytest.raises(RankError, match=r"another job's journal is there\. Name another folder"):
        Journal(tmp_path, 0, 2)
