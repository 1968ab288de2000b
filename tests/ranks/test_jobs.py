"""Real jobs of two and three processes: each fault is named with rank and call, nothing hangs, nobody is left."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moeparity.evidence.weights.compare import compare
from moeparity.evidence.weights.fingerprint_files import open_weights
from moeparity.ranks.journal import stories
from moeparity.ranks.report import job_report
from tests.ranks.launch import Ended, begun_job, launched

IN_STEP = {
    "none": "done",
    "backend": r"at start: .*environment\.given\.kv_bias_backend: ranks 0, 2 \"?flash\"?, rank 1 \"?fa4",
    "variable": r"at start: .*environment\.\$CUBLAS_WORKSPACE_CONFIG: ranks 0, 2 absent, rank 1 :4096:8",
    "switch": r"at start: .*switch\.deterministic_algorithms: ranks 0, 2 False, rank 1 True",
    "pinned switch": "done",
    "same shard": r"at start: weights\.1\.weight: ranks 0-2 have the same bits .* should hold different parts",
    "other replica": r"at start: weights\.0\.weight: ranks 0, 2 .*, rank 1 .*; every rank holds all of it",
    "envelope": r"call 3: .*envelope\.init_cache: ranks 0, 2 false, rank 1 true",
    "dtype": r"call 3: .*tensors\.inputs\.dtype: ranks 0, 2 float32, rank 1 float64",
    "shape": r"call 3: .*tensors\.inputs\.shape: ranks 0, 2 \[4, 8\], rank 1 \[3, 8\]",
    "input bit": r"call 3: .*tensors\.inputs\.bytes: ranks 0, 2 \w{16}, rank 1 \w{16}$",
    "extra draw": r"call 3: .*rng\.torch: rank 1 drew 2 numbers more than ranks 0, 2$",
    "skipped after a draw": (
        r"call 3: .* rank 1 1 call ahead, as if call 3 had been skipped: envelope\.chunk: ranks 0, 2 3, rank 1 4$"
    ),
    "broadcast draw": "done",
    "noise handed over": r"call 3: .*tensors\.inputs\.bytes: ranks 0, 2 .*, rank 1",
    "weight bit": r"call 3: .*weights\.0\.weight: ranks 0, 2 unchanged, rank 1 changed to \w{16}$",
    "adapter bit": r"call 3: .*weights\.0\.lora_a\.weight: ranks 0, 2 unchanged, rank 1 changed to \w{16}$",
    "buffer bit": r"call 3: .*weights\.0\.scale: ranks 0, 2 unchanged, rank 1 changed to \w{16}$",
    "epoch weight": (
        r"call 3, at a new cache epoch: .*weights\.0\.bias: ranks 0, 2 unchanged, rank 1 changed to \w{16}$"
    ),
    "attached": r"call 3: .*tensors\.0\.bytes: ranks 0, 2 \w{16}, rank 1 \w{16}$",
    "wrapped": r"call 3: .*envelope\.arguments\.scale: ranks 0, 2 1\.5, rank 1 2\.5$",
    "update": "done",
    "cache": r"call 3: .*cache\.current_start_frame: ranks 0, 2 8, rank 1 7",
}
"""By fault what all ranks say; what is no fault ends as if nothing had been planted."""

APART = {
    "skipped": r"control flow diverged\. collectives\.0: .*number 6: rank 0 allreduce\(float32\[8\], sum\) at job\."
    r"py:\d+, in call 3; rank 1 broadcast\(float32\[8\], root 0\) at job\.py:\d+, in call 3$",
    "recompute": r"control flow diverged\. .*number 8: rank 0 none, in call 3, .*; rank 1 allreduce.*in call 3\. ",
    "skipped in a group": r"collectives\.\d: the first that differs is number 3: rank 0 allred.*in call 3; rank 1 none",
    "order": r"control flow diverged\. .*number 6: rank 0 allreduce.*in call 3; rank 1 broadcast.*in call 3$",
    "killed": r"rank 1 was killed\. Its last sign of life: ",
    "stopped": r"rank 1 is stopped\. Its last sign of life: in call 3; finished call 2\. rank 0: in call 3",
    "slow": r"rank 1 is slow or stuck: in call 3 for \d+ s, finished call 2\. rank 0: in call 3, in collective 6",
}
"""By fault what the job ends with: one rank says it, from inside a collective where need be."""


@pytest.fixture(scope="module")
def in_step(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """One job of three ranks that lives through all faults that are found at a guard."""
    folder = tmp_path_factory.mktemp("ranks")
    settings = {"weights_every": 1, "cache_every": 1, "folder": str(folder), "watchdog_s": 60}
    return launched("--faults", json.dumps(list(IN_STEP)), ranks=3, settings=settings, limit=240), folder


def test_the_job_ends_by_itself(in_step: tuple[Ended, Path]) -> None:
    ended, _ = in_step
    assert ended.codes == (0, 0, 0), ended.errors
    assert ended.leftovers == ()
    assert ended.words("after") == {"[3.0, 3.0]"}, "torch.distributed is as it was"
    assert ended.words("seen") == {"allreduce(float32[12]), all_reduce(float32[3], sum), allreduce(float32[3], sum)"}


@pytest.mark.parametrize("fault", IN_STEP)
def test_all_ranks_say_the_same_of_a_fault_and_name_rank_and_call(in_step: tuple[Ended, Path], fault: str) -> None:
    ended, _ = in_step
    (words,) = ended.words(fault)
    assert re.search(IN_STEP[fault], words), words


@pytest.mark.parametrize("fault", ["none", "envelope"])
def test_journals_tell_the_same_afterwards(in_step: tuple[Ended, Path], fault: str) -> None:
    ended, folder = in_step
    job_stories = stories(folder / fault)
    assert [story.rank for story in job_stories] == [0, 1, 2]
    if fault == "none":
        assert [(story.ended, story.last, story.difference) for story in job_stories] == [(True, 5, None)] * 3
    else:
        assert {story.difference for story in job_stories} == ended.words(fault)
        assert [(story.ended, story.last) for story in job_stories] == [(False, 2)] * 3


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the job keeps its journals whose rank 0 is stopped."""
    return tmp_path_factory.mktemp("stopped")


@pytest.fixture(scope="module")
def apart(stopped: Path) -> Iterator[Callable[[str], Ended]]:
    """How jobs ended that lose a rank, by their names: all of them run at once, since most of their time they wait.

    Those that no test asks for, where only some tests run, are ended with the fixture.
    """
    slower = {"watchdog_s": 4}
    jobs = {fault: begun_job("--faults", json.dumps([fault]), settings=slower) for fault in APART}
    jobs["stopped store"] = begun_job(
        "--faults", '["stopped"]', "--on", "0", "--at", "0", ranks=4, settings={**slower, "folder": str(stopped)}
    )
    # It ends before the second of its signs of life.
    early = {"watchdog_s": 8, "heartbeat_s": 2}
    jobs["killed store"] = begun_job("--faults", '["killed"]', "--on", "0", settings=early)
    jobs["late"] = begun_job("--faults", '["late"]', settings={"watchdog_s": 2})
    jobs["left open"] = begun_job("--faults", '["left open"]', settings=slower)
    jobs["ends"] = begun_job("--faults", '["ends"]', settings=slower)
    jobs["checked order"] = begun_job("--faults", '["order"]', settings={**slower, "collectives": "check"})
    yield lambda name: jobs.pop(name).ended(90)
    for job in jobs.values():
        job.ended(90)


def test_ranks_are_held_to_a_contract_together(in_step: tuple[Ended, Path]) -> None:
    ended, _ = in_step
    assert ended.words("hold") == {"{'weights': ['1 tensor, by the sums of 3 ranks'], 'environment': ['1 field']}"}
    (broken,) = ended.words("hold broken")
    assert re.search(
        r"broken\. weights: weight: float32 \[6, 4\], bits \w{16} in the contract, bits \w{16} here; ", broken
    )
    assert "; rank 1: environment: switch.deterministic_algorithms: False in the contract, True here." in broken
    assert ended.words("hold unread") == {"rank 1: no.json: can't be read: No such file or directory. Check the path."}


def test_fingerprints_are_written_at_start_and_after_an_update(in_step: tuple[Ended, Path]) -> None:
    _, folder = in_step
    before, after = (open_weights(folder / "update" / "weights" / moment) for moment in ("at-start", "call-3"))
    report = compare(before, after)
    assert [finding.tensor for finding in report.findings if finding.sort == "differs"] == ["0.weight"]
    # Nobody said that this one is cut.
    assert {finding.tensor for finding in report.findings if finding.sort == "replicas"} == {"1.weight"}


@pytest.mark.parametrize("fault", APART)
def test_a_rank_that_is_lost_ends_the_job(apart: Callable[[str], Ended], fault: str) -> None:
    ended = apart(fault)
    assert ended.leftovers == ()
    assert ended.codes[1] != 0
    words = ended.verdict or "\n".join(ended.words(fault))
    assert re.search(APART[fault], words), (words, ended.errors)
    assert ended.seconds < 30, "the backend's own limit is 300 seconds"


def test_the_rank_that_holds_the_store_is_named_by_the_others(apart: Callable[[str], Ended], stopped: Path) -> None:
    """Who notices first ends the job, and kills the stopped process: those who notice later say what the first said."""
    ended = apart("stopped store")
    assert (ended.leftovers, ended.codes[0]) == ((), -9)
    words = job_report(stopped / "stopped").difference
    assert words.startswith("rank 0 is stopped. Its last sign of life: in call 0; no call finished. rank ")
    assert [story.difference for story in stories(stopped / "stopped")] == [None, words, words, words]
    assert {*ended.verdict.splitlines(), *ended.words("stopped")} <= {words, f"moeparity ranks: {words}"}


def test_a_rank_that_is_lost_between_signs_of_life_is_named_with_its_call(apart: Callable[[str], Ended]) -> None:
    ended = apart("killed store")
    assert (ended.leftovers, ended.codes) == ((), (-9, 1))
    words = "moeparity ranks: rank 0 was killed. Its last sign of life: in call 3; finished call 2. rank 1: "
    assert ended.verdict.startswith(words), ended.verdict


def test_a_rank_that_ends_early_is_named_by_those_who_wait_for_it(apart: Callable[[str], Ended]) -> None:
    ended = apart("ends")
    assert ended.leftovers == ()
    assert ended.words("ends") == {"call 3: ranks are not in step. at: rank 0 call 3, rank 1 the end"}


def test_a_rank_that_does_not_come_is_named(apart: Callable[[str], Ended]) -> None:
    ended = apart("late")
    words = "rank 1 gave no sign of life: not in the guard yet. rank 0: starting, no call finished"
    assert (ended.leftovers, ended.verdict) == ((), f"moeparity ranks: {words}")


def test_a_guard_that_is_never_left_ends_with_its_program(apart: Callable[[str], Ended]) -> None:
    ended = apart("left open")
    assert (ended.codes, ended.leftovers, ended.words("left open")) == ((0, 0), (), {"done"}), ended.errors


def test_checked_collectives_are_compared_before_they_run(apart: Callable[[str], Ended]) -> None:
    ended = apart("checked order")
    (words,) = ended.words("order")
    assert re.search(
        r"^in call 3, collective 6 of 0: .*rank 0 .*allreduce.*, rank 1 .*broadcast.*"
        r"called by rank 0 at job\.py:\d+ in call 3; rank 1 at job\.py:\d+ in call 3",
        words,
    )
    assert (ended.codes, ended.leftovers) == ((0, 0), ()), ended.errors
