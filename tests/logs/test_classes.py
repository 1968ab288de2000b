"""Classes of tokens in a log: grouped by, joined from two files, and handed on to a token file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moeparity.errors import LogError, Where
from moeparity.inputs.tokens.jsonl import lines
from moeparity.logs.formats.fields import Fields
from moeparity.logs.formats.own import read
from moeparity.logs.opening import open_sampled
from moeparity.logs.tokens import tokens_of
from tests.command import inside

IDS = [5, 6, 7, 8, 9]
CLASSES = ["text", "image", "image", "text", "text"]
SAMPLED = [None, -1.0, -2.0, -0.5, -0.25]
SCORED = [None, -1.5, -2.5, -0.5, -0.25]


def written(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    return path


def by_class(*arguments: Path | str) -> dict[str, tuple[int, float]]:
    """Tokens and the mean |delta| of each class, as `moeparity metrics --by class` has them in its JSON."""
    out = Path(arguments[0]).with_suffix(".report")
    done = inside("metrics", *arguments, "--by", "class", "--json", out)
    assert done.returncode == 0, done.stdout + done.stderr
    (grouping,) = json.loads(out.read_text("utf-8"))["groupings"]
    assert grouping["by"] == "class"
    return {part["name"]: (part["tokens"], part["values"]["mean_abs_delta"]) for part in grouping["groups"]}


def test_each_class_is_a_group(tmp_path: Path) -> None:
    record = {"input_ids": IDS, "labels": CLASSES, "logprobs": SAMPLED, "trainer_logprobs": SCORED}
    unlabelled = {**record, "labels": "maths"}
    log = written(tmp_path / "log.jsonl", {**record, "id": "0"}, {**record, "id": "1"}, {**unlabelled, "id": "2"})
    classes = by_class(log)
    assert classes["image"] == (4, 0.5)
    assert classes["text"] == (4, 0.0)


def test_the_trainers_file_may_be_the_one_that_says(tmp_path: Path) -> None:
    """The sampler's has responses alone, and the classes stand in front of it too."""
    sampled = written(
        tmp_path / "sampled.jsonl",
        {"id": "0", "input_ids": IDS[2:], "prompt_tokens": 0, "logprobs": SAMPLED[2:], "labels": CLASSES[2:]},
    )
    scored = written(tmp_path / "scored.jsonl", {"id": "0", "input_ids": IDS, "trainer_logprobs": SCORED})
    assert by_class(sampled, "--trainer", scored) == {"image": (1, 0.5), "text": (2, 0.0)}
    whole = written(tmp_path / "whole.jsonl", {"id": "0", "input_ids": IDS, "logprobs": SAMPLED})
    labelled = written(
        tmp_path / "labelled.jsonl", {"id": "0", "input_ids": IDS, "trainer_logprobs": SCORED, "labels": CLASSES}
    )
    assert by_class(whole, "--trainer", labelled) == {"image": (2, 0.5), "text": (2, 0.0)}


def test_a_token_file_of_the_log_has_them(tmp_path: Path) -> None:
    record = {"id": "0", "input_ids": IDS, "labels": CLASSES, "logprobs": SAMPLED}
    log = written(tmp_path / "log.jsonl", record, {**record, "id": "1", "labels": "maths"})
    (first, second) = map(json.loads, lines(tokens_of(open_sampled([log])).tokens))
    assert first["labels"] == CLASSES
    assert second["labels"] == ["maths"] * 5


@pytest.mark.parametrize("labels", [["text"], [1, 2, 3, 4, 5], 7])
def test_other_labels_are_refused(labels: Any) -> None:
    fields = Fields(Where(Path("log.jsonl"), 3), {"input_ids": IDS, "logprobs": SAMPLED, "labels": labels})
    with pytest.raises(LogError, match=r"^log\.jsonl:3: labels is .*; expected one word for the sequence, or one for"):
        read(fields, "rollout")
