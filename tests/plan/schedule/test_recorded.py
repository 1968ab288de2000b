"""Recorded lists of batches: what is read, and what is refused; messages as a whole are kept in tests/bad/messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moeparity.errors import SpecError, Where
from moeparity.paths import LIMIT_FACTOR
from moeparity.plan.schedule.make import schedule
from moeparity.plan.schedule.recorded import read_batches
from moeparity.plan.schedule.settings import WHOLE, ScheduleSettings, described, mixed, part_in_words, parts, settings
from moeparity.plan.schedule.steps import Copy, Schedule, Span
from moeparity.plan.schedule.token_grid import TokenGrid
from moeparity.plan.spec import reader
from tests.plan.schedule.grids import HERE, grid, listing, make, written

TWO = grid((2, 4), (3, 5))


def recorded(folder: Path, *batches: Any, **fields: Any) -> ScheduleSettings:
    """ScheduleSettings of a file with these batches (a string is a line as it stands)."""
    lines = [batch if isinstance(batch, str) else json.dumps(batch) for batch in batches]
    (folder / "batches.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    scheduling = reader.read_scheduling({"file": "batches.jsonl", **fields}, HERE)
    return settings(scheduling, None, 2, Where(folder / "recipe.yaml"))


def refused(folder: Path, *batches: Any, tokens: TokenGrid = TWO) -> str:
    """What is said of these batches, behind the file's name."""
    with pytest.raises(SpecError) as error:
        schedule(recorded(folder, *batches), tokens, HERE)
    return str(error.value).rpartition("batches.jsonl:")[2]


def test_what_a_servers_plugin_says_beside_is_read(tmp_path: Path) -> None:
    beside = {"requests": ["a", "b"], "preempted": ["c"], "weights": "step-7"}
    plain, server = ({"spans": [[0, 0, 4], [1, 0, 5]], "scored": [0, 1], **more} for more in ({}, beside))
    assert schedule(recorded(tmp_path, server), TWO, HERE).steps == schedule(recorded(tmp_path, plain), TWO, HERE).steps


def test_the_last_weights_are_the_checkpoints_and_those_before_lag(tmp_path: Path) -> None:
    lines = [{"spans": [[0, 0, 2]], "weights": "7"}, {"spans": [[0, 2, 3]]}, {"spans": [[1, 0, 3]], "weights": "8"}]
    by = recorded(tmp_path, *lines, {"spans": [[0, 3, 4], [1, 3, 4]], "weights": "9"})
    assert [step.lag for step in schedule(by, TWO, HERE).steps if not step.filler] == [2, 2, 1, 0]
    assert by.versions == 2


def test_weights_that_come_back_and_a_step_that_the_plugin_could_not_follow(tmp_path: Path) -> None:
    first = {"spans": [[0, 0, 2]], "weights": "step-7"}
    second = {"spans": [[1, 0, 3]], "weights": "step-8"}
    assert refused(tmp_path, first, second, {"spans": [[0, 2, 3]], "weights": "step-7"}) == (
        "3: this step ran on weights 'step-7', as line 1 did, and those before it from line 2 on ran on 'step-8'; "
        "expected versions that do not come back."
    )
    says = refused(tmp_path, first, {"error": "the plugin could not follow the engine here"})
    assert says.startswith("2: what ran from here on is not known: the plugin could not follow the engine here.")


def test_a_servers_batches(tmp_path: Path) -> None:
    by = recorded(
        tmp_path,
        {"spans": [[0, 0, 2], [1, 0, 1]], "scored": [0]},
        {"spans": [[0, 2, 3], [1, 1, 3]], "scored": [0, 1]},
        {"spans": [[1, 3, 4]], "padding": 3},
    )
    of = schedule(by, TWO, HERE)
    # Phases are what the spans look like; the last token of a sequence need not be there.
    assert listing(of) == ["prefill 0:0-2 1:0-1", "chunk 0:2-3 1:1-3", "decode 1:3-4 +3"]
    assert [step.scored for step in of.steps] == [(0,), (0, 1), None, None]
    assert [step.spans for step in of.steps if step.filler] == [(Span(0, 3, 5), Span(1, 4, 5))]
    assert (of.positions, of.name, described(by)) == ("tokens", *["recorded in batches.jsonl"] * 2)


def test_everything_a_step_may_say(tmp_path: Path) -> None:
    line = {
        "spans": [[0, 0, 5], [1, 4, 5]],
        "shape": "flat",
        "phase": "verify",
        "padding": 1,
        "scored": [1],
        "verified": [0],
        "isolated": False,
        "copies": [[1, 0, 4, 0, 0]],
    }
    tokens = TokenGrid(spans=((0, 5), (0, 5)), prompts=(5, 5), length=5)
    (step,) = schedule(recorded(tmp_path, line, positions="running"), tokens, HERE).steps
    assert (step.shape, step.phase, step.padding, step.scored) == ("flat", "verify", 1, (1,))
    assert (step.verified, step.isolated, step.copies) == ((0,), False, (Copy(1, 0, 4, 0, 0),))


@pytest.mark.parametrize(
    "fields",
    [
        {"rule": "vllm-v1", "decode": {"from": "prompt"}, "prefill": {"chunk": 3}},
        {"rule": "sglang", "decode": {"from": "prompt"}, "verify": 2},
        {"decode": {"from": 2}},
        {"pack": {"length": 8}},
    ],
)
def test_a_schedule_that_is_written_down_comes_back(tmp_path: Path, fields: dict[str, Any]) -> None:
    of = make(fields, TWO)
    lines = [
        {
            "spans": step.spans,
            "shape": step.shape,
            "phase": step.phase,
            "padding": step.padding,
            "isolated": step.isolated,
            **({} if step.scored is None else {"scored": step.scored, "verified": step.verified}),
        }
        for step in of.steps
        if not step.filler
    ]
    again = schedule(recorded(tmp_path, *lines, positions=of.positions), TWO, HERE)
    assert again == Schedule(steps=of.steps, positions=of.positions, name="recorded in batches.jsonl")


def test_a_recorded_schedule_is_one_part(tmp_path: Path) -> None:
    by, server = recorded(tmp_path, {"spans": [[0, 0, 4], [1, 0, 5]]}), written({"rule": "vllm-v1"}, 2)
    trainer = settings(None, 1, 2, HERE)
    for steps_by_rule in (server, trainer):
        assert parts(by, steps_by_rule) == parts(steps_by_rule, by) == [WHOLE]
        assert mixed(steps_by_rule, by, [WHOLE]) == by
        assert part_in_words(by, WHOLE) == "recorded in batches.jsonl"
    assert part_in_words(trainer, WHOLE) == "micro-batch 1"
    assert not parts(by, by)


WHOLE_GRID = {"spans": [[0, 0, 5], [1, 0, 5]]}


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([{"spans": [[0, 0, 3]]}, {"spans": [[0, 2, 4]]}], "2: sequence 0: token 2 is computed twice"),
        ([{"spans": [[0, 0, 2]]}, {"spans": [[0, 3, 5]]}], "2: sequence 0: token 3 comes before its keys"),
        ([{"spans": [[0, 0, 5], [2, 0, 5]]}], "1: there is no sequence 2; the tokens have 2 sequences"),
        ([{"spans": [[0, 0, 6]]}], "1: [0, 0, 6] is no span of the grid; expected"),
        ([{"spans": [[0, 3, 3]]}], "1: [0, 3, 3] is no span of the grid; expected"),
        ([{"spans": [[0, 0, 2], [0, 2, 5]]}], "1: sequence 0 has two spans"),
        ([{"spans": [[0, 0, 5], [1, 0, 4]], "shape": "dense"}], "1: dense, but sequence 0 has tokens 0 to 4"),
        ([{"spans": [[1, 0, 5], [0, 0, 5]], "shape": "dense"}], "1: dense, of sequences 1, 0; expected consecutive"),
        ([{**WHOLE_GRID, "shape": "dense", "padding": 1}], "1: dense with 1 padding row; expected them in flat"),
        ([{**WHOLE_GRID, "padding": 70_000}], "1: 70,000 padding rows; expected at most 65,536"),
        (
            [{"spans": [[0, 0, 2]]}, {"spans": [[0, 2, 5]], "shape": "packed"}],
            "2: packed, sequence 0: the span starts",
        ),
        ([{**WHOLE_GRID, "phase": "decode"}], "1: decode, sequence 0: 5 tokens; expected one of each sequence"),
        ([{**WHOLE_GRID, "scored": [2]}], "1: place 2 of `scored` or `verified` is none of the 2 spans"),
        (
            [{"spans": [[0, 0, 5]], "copies": [[1, 0, 4, 0, 0]]}],
            "1: sequence 1: tokens 0 to 3 are copied of",
        ),
    ],
)
def test_what_is_no_schedule_of_these_tokens(tmp_path: Path, batches: list[Any], message: str) -> None:
    assert refused(tmp_path, *batches).startswith(message)


def test_a_gap(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"batches.jsonl: sequence 1: no step has token 2; expected all of 0 to 3"):
        schedule(recorded(tmp_path, {"spans": [[0, 0, 3], [1, 0, 2]]}), TWO, HERE)


def test_copies_have_sources(tmp_path: Path) -> None:
    tokens = TokenGrid(spans=((0, 5), (0, 5)), prompts=(5, 5), length=5)
    late = {"spans": [[1, 4, 5]], "copies": [[1, 0, 4, 0, 0]]}
    assert "copied of sequence 0 before that has them" in refused(tmp_path, late, tokens=tokens)
    for copy in ([1, 0, 4, 1, 0], [1, 0, 4, 2, 0], [1, 0, 4, 0, 1]):
        batch = {"spans": [[0, 0, 5], [1, 4, 5]], "copies": [copy]}
        assert "which begins with other tokens" in refused(tmp_path, batch, tokens=tokens)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[" * 5000, "1: not JSON: a number too large or lists too deep."),
        ('{"spans": [[0, 0, ' + "9" * 5000 + "]]}", "1: not JSON: a number too large or lists too deep."),
        ("", "1: not JSON: Expecting value, column 1."),
        ("3", "1: 3 is no step; expected an object"),
        ('{"spans": [[0, 0, 1]], "spans": [[0, 0, 2]]}', "1: key 'spans' is given twice. Keep one."),
        ('{"span": []}', "1: unknown key 'span'; expected one of spans, shape"),
        ("{}", "1: key 'spans' is missing."),
        ('{"spans": []}', "1: spans is a list; expected a list of [sequence, first, last + 1]"),
        ('{"spans": [[0, 0]]}', "1: spans is a list; expected a list of [sequence, first, last + 1]"),
        ('{"spans": [[0, 0, true]]}', "1: spans is a list"),
        ('{"spans": [[0, -1, 5]]}', "1: spans is a list"),
        ('{"spans": [[0, 0, 1e3]]}', "1: spans is a list"),
        ('{"spans": [[0, 0, 2147483648]]}', "1: spans is a list"),
        ('{"spans": [[0, 0, 5]], "shape": "round"}', "1: shape is 'round'; expected one of dense, flat, packed."),
        ('{"spans": [[0, 0, 5]], "phase": ["decode"]}', "1: phase is a list; expected one of forward, prefill"),
        ('{"spans": [[0, 0, 5]], "padding": -1}', "1: padding is -1; expected a whole number of rows."),
        ('{"spans": [[0, 0, 5]], "padding": NaN}', "1: padding is nan; expected a whole number of rows."),
        ('{"spans": [[0, 0, 5]], "scored": [0, 0]}', "1: scored is a list; expected a list of places in `spans`"),
        ('{"spans": [[0, 0, 5]], "isolated": 1}', "1: isolated is 1; expected true or false."),
        ('{"spans": [[0, 0, 5]], "copies": [[0, 0, 5, 0]]}', "1: copies is a list; expected a list of"),
    ],
)
def test_lines_that_are_no_steps(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        recorded(tmp_path, line)
    assert str(error.value).rpartition("batches.jsonl:")[2].startswith(message)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    where = Where(tmp_path / "recipe.yaml")
    with pytest.raises(SpecError, match=r"schedule.file 'none.jsonl' does not exist"):
        read_batches("none.jsonl", "tokens", where)
    (tmp_path / "folder").mkdir()
    with pytest.raises(SpecError, match="folder: cannot be read: it is a folder"):
        read_batches("folder", "tokens", where)
    (tmp_path / "bytes").write_bytes(b'{"spans": \xff')
    with pytest.raises(SpecError, match="bytes: not JSON lines: byte 10 is not UTF-8"):
        read_batches("bytes", "tokens", where)


def test_a_file_of_too_many_steps_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "long").write_text("no step\n" * 100_001, "utf-8")
    with pytest.raises(SpecError, match="long: the schedule has more than 100,000 steps"):
        read_batches("long", "tokens", Where(tmp_path / "recipe.yaml"))
    monkeypatch.setenv(LIMIT_FACTOR, "0.00001")
    with pytest.raises(SpecError, match="long: cannot be read: it holds 800,008 bytes; at most 640 are read"):
        read_batches("long", "tokens", Where(tmp_path / "recipe.yaml"))
