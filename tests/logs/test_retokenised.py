"""Logs whose sides have different ids: aligned by text, with what cannot be compared left out, counted and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moeparity import logs
from moeparity.errors import Where
from moeparity.inputs.tokens.tokenizer import FileTokenizer
from moeparity.logs.log_files import Opening, measure_files
from moeparity.logs.report import LogReport
from moeparity.logs.request import MetricsRequest, read_gate
from moeparity.logs.retokenised import Span, align
from tests.command import inside
from tests.logs.test_mutations import present
from tests.logs.vocabulary import END, IMAGE, ids, tokenizer_file


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_file(tmp_path_factory.mktemp("tokenizer"))


def opened(path: Path) -> FileTokenizer:
    return FileTokenizer(path, Where(path))


@pytest.mark.parametrize(
    ("mine", "theirs", "counterparts", "spans", "kinds", "first"),
    [
        ("x ab c y", "x abc y", [0, -1, -1, 2], [(1, 3, 1, 2)], ("same text",), 1),
        ("abc ab c", "a b c abc", [-1, -1, -1], [(0, 1, 0, 3), (1, 3, 3, 4)], ("same text",), 0),
        # A character of two tokens has no border inside.
        ("x Ã © y", "x Ã© y", [0, -1, -1, 2], [(1, 3, 1, 2)], ("same text",), 1),
        # A lone half of it is no text, and equals only itself.
        ("x Ã y", "x © y", [0, -1, -1], [], ("other text",), 1),
        ("x Ã y", "x Ã y y", [0, 1, 2], [], ("other text",), 3),
        ("x y z", "x z", [0, -1, -1], [], ("other text",), 1),
        ("x", "x y", [0], [], ("other text",), 1),
        (f"x {IMAGE} {IMAGE} y", f"x {IMAGE} {IMAGE} {IMAGE} {IMAGE} y", [0, 1, 2, -1], [], ("placeholders",), 3),
        (f"{IMAGE} y", f"{IMAGE} {IMAGE} y", [0, -1], [], ("placeholders",), 1),
        (f"ab c {IMAGE} {IMAGE} y", f"abc {IMAGE} y", [-1, -1, 1, -1, -1], [(0, 2, 0, 1)],
         ("same text", "placeholders"), 0),
        # Runs of an ordinary token are text.
        ("x y y z", "x y y y z", [0, 1, 2, -1], [], ("other text",), 3),
        (f"x {END} y", "x < | i m _ e n d | > y", [0, -1, -1], [], ("special token as text",), 1),
        ("x < | i m _ e n d | > y", f"x {END} y", [0, *[-1] * 11], [], ("special token as text",), 1),
        (f"x {END} y", f"x {IMAGE} y", [0, -1, -1], [], ("other text",), 1),
    ],
)  # fmt: skip
def test_ids_go_together_by_text(
    tokenizer: Path, mine: str, theirs: str, counterparts: list[int], spans: Any, kinds: Any, first: int
) -> None:
    of = align(ids(tokenizer, *mine.split()), ids(tokenizer, *theirs.split()), opened(tokenizer))
    assert of.counterparts.tolist() == counterparts
    assert of.spans == tuple(Span(*span) for span in spans)
    assert (of.kinds, of.first) == (kinds, first)


def write(path: Path, *sequences: dict[str, Any]) -> Path:
    lines = ({"id": f"s{number}", **sequence} for number, sequence in enumerate(sequences))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def joined(folder: Path, tokenizer: Path | None, sampled: list[Any], scored: list[Any]) -> list[logs.Sequence]:
    paths = write(folder / "sampled.jsonl", *sampled), write(folder / "scored.jsonl", *scored)
    return list(logs.open([paths[0]], trainer=[paths[1]], tokenizer=tokenizer))


def side(path: Path, words: str, prompt: int, logprobs: list[float], **further: Any) -> dict[str, Any]:
    of = ids(path, *words.split())
    values = [None] * (len(of) - len(logprobs)) + logprobs
    return {"input_ids": of, "logprobs": values, "prompt_tokens": prompt, **further}


def test_values_are_those_of_the_counterparts(tmp_path: Path, tokenizer: Path) -> None:
    sampled = side(tokenizer, "x y ab c z w", 2, [-1.0, -2.0, -3.0, -4.0], mask=[0, 0, 1, 1, 1, 1])
    scored = side(tokenizer, "x y abc z w", 2, [-2.5, -3.25, -4.5], mask=[0, 0, 1, 1, 1])
    [of] = joined(tmp_path, tokenizer, [sampled], [scored])
    assert of.mask.tolist() == [False, False, False, False, True, True]
    assert present(of.trainer)[4:].tolist() == [-3.25, -4.5]
    assert of.retokenised.sums.tolist() == [[-3.0, -2.5]]
    assert (of.retokenised.first, of.retokenised.behind, of.retokenised.lost) == (2, 2, 0)
    words = [
        f"'{word}' ({token})" for word, token in zip(("ab", "c", "abc"), ids(tokenizer, "ab", "c", "abc"), strict=True)
    ]
    assert of.retokenised.says == f"{words[0]} {words[1]} against {words[2]}"


def test_a_span_across_the_border_of_the_prompt_is_lost(tmp_path: Path, tokenizer: Path) -> None:
    sampled = side(tokenizer, "x ab c z", 2, [-2.0, -3.0], mask=[0, 0, 1, 1])
    scored = side(tokenizer, "x abc z", 1, [-2.5, -3.25], mask=[0, 1, 1])
    [of] = joined(tmp_path, tokenizer, [sampled], [scored])
    assert of.mask.tolist() == [False, False, False, True]
    assert (of.retokenised.sums.tolist(), of.retokenised.lost) == ([], 1)


def test_a_response_alone_is_aligned_with_the_end_of_a_whole_sequence(tmp_path: Path, tokenizer: Path) -> None:
    sampled = side(tokenizer, "ab c z", 0, [-1.0, -2.0, -3.0])
    scored = side(tokenizer, "x y abc z", 2, [-2.5, -3.25], mask=[0, 0, 1, 1])
    [of] = joined(tmp_path, tokenizer, [sampled], [scored])
    assert of.mask.tolist() == [False, False, True]
    assert (present(of.trainer)[2].item(), of.retokenised.sums.tolist()) == (-3.25, [[-3.0, -2.5]])
    [of] = joined(tmp_path, tokenizer, [{**scored, "mask": [0, 0, 1, 1]}], [sampled])
    assert (of.mask.tolist(), present(of.trainer)[3].item()) == ([False, False, False, True], -3.0)
    assert of.retokenised.first == 2


def test_routes_go_with_their_tokens(tmp_path: Path, tokenizer: Path) -> None:
    sampled = side(tokenizer, "x ab c z", 1, [-1.0, -2.0, -3.0], routed_experts=[[[1]], [[2]], [[3]], [[4]]])
    scored = side(tokenizer, "x abc z", 1, [-2.5, -3.25], routed_experts=[[[1]], [[9]], [[4]]])
    [of] = joined(tmp_path, tokenizer, [sampled], [scored])
    assert of.extra["trainer_routed_experts"].flatten().tolist() == [1, -1, -1, 4]


def many(folder: Path, tokenizer: Path) -> tuple[Path, Path]:
    """Thirty sequences: of ten the trainer has a span otherwise, of five an image is expanded twice."""
    sampled, scored = [], []
    for number in range(30):
        if number % 3 == 0:
            sampled.append(side(tokenizer, "x ab c y z w", 1, [-1.0, -0.5, -2.0, -1.0, -0.7]))
            scored.append(side(tokenizer, "x abc y z w", 1, [-1.0 - number / 100, -2.01, -1.01, -0.7]))
        elif number % 6 == 1:
            sampled.append(side(tokenizer, f"x y {IMAGE} {IMAGE} z", 1, [-1.0, -1.0, -1.0, -2.0]))
            sampled[-1]["mask"] = [0, 1, 0, 0, 1]
            scored.append(side(tokenizer, f"x y {IMAGE} {IMAGE} {IMAGE} {IMAGE} z", 1, [-1.01, *[-1.0] * 4, -2.0]))
            scored[-1]["mask"] = [0, 1, 0, 0, 0, 0, 1]
        else:
            sampled.append(side(tokenizer, "x y z w", 1, [-2.0, -1.0, -0.7]))
            scored.append(side(tokenizer, "x y z w", 1, [-2.001, -1.0 + number / 1e4, -0.7]))
        scored[-1]["logprobs"][-1] += number / 1e5
    return write(folder / "sampled.jsonl", *sampled), write(folder / "scored.jsonl", *scored)


def measured(folder: Path, tokenizer: Path, gate: str = "k3<0.1") -> LogReport:
    sampled, scored = many(folder, tokenizer)
    request = MetricsRequest(by=("retokenised",), gate=read_gate(gate))
    return measure_files([sampled], request, Opening(trainer=[scored], tokenizer=tokenizer))


def test_the_diagnosis_names_counts_and_places_it(tmp_path: Path, tokenizer: Path) -> None:
    report = measured(tmp_path, tokenizer)
    finding = report.diagnosis.find("retokenised")
    assert (finding.verdict, report.causes[0]) == ("named", "retokenised")
    assert "ids of 15 of 30 sequences differ" in finding.reason
    assert "same text in 10 sequences, placeholders in 5 sequences" in finding.reason
    assert "sampled.jsonl:1: token 1 of sequence s0, same text: 'ab' (" in finding.reason
    numbers = {evidence.name: evidence.value for evidence in finding.evidence}
    assert numbers["compared behind other ids of the same text"] == 30
    assert numbers["not comparable"] == 5
    assert numbers["same text in other ids"] == 10
    spans = [-1.0 - number / 100 + 1.5 for number in range(0, 30, 3)]
    assert numbers["trainer's sum less the sampler's"] == pytest.approx(sum(spans) / 10)
    assert report.left_out[0] == "5 scored tokens without a counterpart, since ids differ"
    groups = {group.name: group.tokens for group in report.groupings[0].groups}
    assert groups == {"same ids before it": 5 + 3 * 15, "other ids of the same text before it": 30}


def test_what_could_not_be_compared_passes_no_gate(tmp_path: Path, tokenizer: Path) -> None:
    verdict = measured(tmp_path, tokenizer).verdict
    assert (verdict.status, "5 scored tokens could not be compared" in verdict.reason) == ("inconclusive", True)
    assert measured(tmp_path, tokenizer, "k3<1e-9").verdict.status == "fail"


def test_the_command_and_a_check_tell_it(tmp_path: Path, tokenizer: Path) -> None:
    sampled, scored = many(tmp_path, tokenizer)
    done = inside("metrics", sampled, "--trainer", scored, "--tokenizer", tokenizer.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert "NAMED  retokenised: The ids of 15 of 30 sequences differ" in " ".join(done.stdout.split("\n")[:40])
    done = inside("metrics", sampled, "--trainer", scored)
    assert done.returncode == 2
    check = {
        "kind": "log", "files": ["sampled.jsonl"], "trainer": ["scored.jsonl"], "tokenizer": str(tokenizer),
        "gate": {"metric": "k3", "below": 0.1}, "expect": {"verdict": "inconclusive", "causes": ["retokenised"]},
    }  # fmt: skip
    (tmp_path / "log.yaml").write_text(json.dumps(check))
    assert inside("check", tmp_path / "log.yaml").returncode == 0
