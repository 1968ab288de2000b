"""A bisection in shards: the report's bytes are those of a local run, whatever comes first, is lost, or was kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file

from moeparity.bisection import pipeline
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.workers.crew import LostWorkerError
from moeparity.bisection.workers.sharded_pass import MOST, ShardedPass, shards_of
from moeparity.errors import MoeparityError
from moeparity.inputs.machine import numerics_key
from tests.bisection.workers.hands import Hand, Shuffled, at_work
from tests.errors.base import BASE

ALL = "oracle: true\nreplay: true\nenvelope: 2\nsplit: 2\nby: rule\nswap: ['layers[*].moe']\n"
CANDIDATE = "profile: hf-default, set: {'layers[*].moe.gate:output': fp32, 'layers[*].moe.experts:activation': fp32}"


def write_recipe(folder: Path, name: str, rest: str, *, micro_batch: int = 2, sequences: int = 7) -> Path:
    """Sequences of unequal length, one of which is one token, some the same; with labels and records."""
    if not (folder / "config.json").exists():
        shutil.copytree(BASE, folder, dirs_exist_ok=True)
    generator = torch.Generator().manual_seed(11)
    ids = torch.randint(0, 32, (sequences, 9), generator=generator)
    mask = torch.arange(9) < torch.randint(2, 10, (sequences, 1), generator=generator)
    mask[0], mask[sequences - 1] = True, torch.arange(9) < 1
    ids[1], mask[1] = ids[0], mask[0]
    scored = mask.clone()
    scored[:, :2] = False
    tokens = {
        "input_ids": ids,
        "attention_mask": mask,
        "loss_mask": scored,
        "labels": torch.randint(0, 3, ids.shape, generator=generator),
        "logprobs": (-3.5 + torch.rand(ids.shape, generator=generator)).double(),
        "routed_experts": torch.rand(*ids.shape, 2, 4, generator=generator).argsort(-1)[..., :2].contiguous(),
    }
    save_file(tokens, folder / f"{name}.safetensors", metadata={"label_names": json.dumps(["maths", "code", "text"])})
    path = folder / f"{name}.yaml"
    path.write_text(
        f"kind: recipe\ncheckpoint: .\ntokens: {{file: {name}.safetensors, sampled_from: candidate}}\n"
        f"reference: {{profile: hf-eager, micro_batch: {micro_batch}}}\n"
        f"candidate: {{{CANDIDATE}, micro_batch: {micro_batch}}}\n"
        f"gate: {{metric: k3, below: 1e-4}}\n{rest}"
    )
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shards")


def stable(text: str) -> Any:
    """A report without what it cost."""
    report = json.loads(text)
    del report["cost"]
    return report


@pytest.fixture(scope="module")
def local(folder: Path) -> Report:
    return bisect(write_recipe(folder, "all", ALL), device="cpu")


@pytest.mark.parametrize("seed", [0, 1])
def test_a_report_made_of_shards_has_the_bytes_of_a_local_one(seed: int, folder: Path, local: Report) -> None:
    """Every section looks on; every shard goes through bytes, and the second of them is lost once."""
    recipe = folder / "all.yaml"
    with at_work(pipeline, Shuffled(seed, losing=2 + seed)) as hands:
        shared = bisect(recipe, device="cpu", workers=3)
    assert stable(shared.to_json()) == stable(local.to_json())
    assert json.loads(shared.to_json())["digest"] == json.loads(local.to_json())["digest"]
    assert sum(len(hand.messages) for hand in hands.hired) > 4
    assert shared.oracle is not None
    assert shared.classes
    assert shared.roots


def test_what_is_not_finite_in_some_shards_starts_where_it_does_locally(folder: Path) -> None:
    """An expert that some tokens meet gives values that fp16 does not hold."""
    from safetensors.torch import load_file

    broken = folder / "broken"
    recipe = write_recipe(broken, "nan", "floor: false\n")
    recipe.write_text(recipe.read_text().replace("set: {", "set: {'layers[1].moe.combine:output': fp16, "))
    weights = load_file(broken / "model.safetensors")
    weights["model.layers.1.mlp.experts.2.down_proj.weight"][3] = 1e6
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    local = bisect(recipe, device="cpu")
    with at_work(pipeline, Shuffled(5)):
        shared = bisect(recipe, device="cpu", workers=3)
    assert local.nonfinite is not None
    assert [(first.sequences, first.sequence, first.padding) for first in local.nonfinite.first] == [
        (4, 0, False),
        (1, 4, True),
    ]
    assert stable(shared.to_json()) == stable(local.to_json())


def test_a_killed_command_goes_on_from_its_shards_with_or_without_workers(folder: Path, tmp_path: Path) -> None:
    """Nothing that was kept is computed twice, whoever goes on."""
    recipe = write_recipe(folder, "kept", "floor: false\n")
    local = bisect(recipe, device="cpu", run=tmp_path / "local")
    save, saved = PieceStore.save, []

    def killed(self: PieceStore, name: str, piece: object) -> None:
        save(self, name, piece)
        saved.append(name)
        if len(saved) == 2:
            raise KeyboardInterrupt

    def noted(self: PieceStore, name: str, piece: object) -> None:
        saved.append(name)
        save(self, name, piece)

    for name, workers in (("here", None), ("there", 2)):
        saved.clear()
        with at_work(pipeline, Shuffled(3)), patch.object(PieceStore, "save", killed), pytest.raises(KeyboardInterrupt):
            bisect(recipe, device="cpu", run=tmp_path / name, workers=2)
        saved_names = set(saved)
        saved.clear()
        with (
            at_work(pipeline, Shuffled(4)) as hands,
            patch.object(PieceStore, "save", noted),
        ):
            report = bisect(recipe, device="cpu", run=tmp_path / name, workers=workers)
        shards = [name for name in saved if name.startswith("0.sequences-")]
        assert len(shards) == 2
        assert not saved_names & set(shards)
        assert len([message for hand in hands.hired for message in hand.messages]) == (2 if workers else 0)
        assert stable(report.to_json()) == stable(local.to_json())
        assert not list((tmp_path / name).rglob("0.sequences-*"))


def test_a_shard_is_whole_waves_and_their_number_goes_by_the_plan_alone(folder: Path) -> None:
    recipe = write_recipe(folder, "many", "floor: false\n", micro_batch=1, sequences=70)
    study = pipeline.ready(recipe, device="cpu")
    shards = shards_of(ShardedPass(study=study, toggles=(), parents=()).observation)
    assert len(shards) == MOST
    assert [shard.start for shard in shards[1:]] == [shard.end for shard in shards[:-1]]
    assert (shards[0].start, shards[-1].end) == (0, 70)
    assert {shard.end - shard.start for shard in shards} == {2, 4}


def test_another_machine_is_refused_by_what_is_another(folder: Path) -> None:
    recipe = write_recipe(folder, "refused", "floor: false\n")
    changed_key = {"instruction set": "GenuineIntel AVX2", "torch": "1.0", "threads": "64"}

    def elsewhere(hand: Hand, message: bytes) -> bytes:
        from moeparity.bisection.workers import serve

        with patch.object(serve, "numerics_key", lambda device: {**numerics_key(device), **changed_key}):
            return hand.server.answer(message)

    with (
        at_work(pipeline, elsewhere, count=1),
        pytest.raises(
            MoeparityError, match=r"instruction set GenuineIntel AVX2, not .*; torch 1.0, not .*; threads 64"
        ),
    ):
        bisect(recipe, device="cpu", workers=1)


def test_another_file_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    """What a worker finds at the path of the recipe has changed since the command read it."""
    recipe = write_recipe(tmp_path, "changed", "floor: false\n")

    def later(hand: Hand, message: bytes) -> bytes:
        recipe.write_text(recipe.read_text().replace("1e-4", "1e-3"))
        return hand.server.answer(message)

    with (
        at_work(pipeline, later, count=1),
        pytest.raises(MoeparityError, match="others than where the command runs: recipe"),
    ):
        bisect(recipe, device="cpu", workers=1)


def test_no_worker_is_asked_where_one_is_lost_for_good(folder: Path) -> None:
    recipe = write_recipe(folder, "lost", "floor: false\n")

    def lost(hand: Hand, message: bytes) -> bytes:
        raise LostWorkerError("ended by signal 9")

    with at_work(pipeline, lost), pytest.raises(MoeparityError, match="has ended 3 workers"):
        bisect(recipe, device="cpu", workers=2)
