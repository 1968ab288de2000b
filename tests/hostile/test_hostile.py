"""The contract, on seeds that stay; and that what breaks it is seen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.errors.base import WEIGHTS
from tests.hostile.campaign import try_one
from tests.hostile.contract import CODES, Ended, breach, run
from tests.hostile.second import false_passes
from tests.hostile.subjects import BISECT, SUBJECTS
from tests.warm import load


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    load()


@pytest.mark.parametrize("kind", SUBJECTS)
def test_nothing_that_is_given_breaks_the_contract(kind: str) -> None:
    for seed in range(3):
        for trial in try_one(kind, seed):
            assert trial.breach is None, f"seed {seed}, {' '.join(trial.command)}: {trial.breach}: {trial.says}"


@pytest.mark.parametrize("kind", SUBJECTS)
def test_what_is_changed_was_good_before(tmp_path: Path, kind: str) -> None:
    SUBJECTS[kind].make(tmp_path)
    for command in SUBJECTS[kind].commands:
        ended = run(command, tmp_path)
        # `expect:` of the recipe with everything in it is not met.
        assert ended.code in {0, 3} or command[0] == "check", ended.errors
        assert breach(ended) is None


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        (Ended(None, "", ""), "hangs"),
        (Ended(70, "", "error: moeparity failed"), "exit code 70"),
        (Ended(-9, "", ""), "exit code -9"),
        (Ended(1, "Traceback (most recent call last):\n", ""), "a traceback"),
        (Ended(0, "a\x1b]0;b\x07", ""), "control character"),
        (Ended(2, "", "error: \u202e"), "control character"),
        (Ended(2, "", ""), "without a message"),
        (Ended(2, "", "x" * 3000), "a message of 3000 characters"),
    ],
)
def test_a_breach_is_seen(ended: Ended, says: str) -> None:
    assert says in str(breach(ended))
    assert all(breach(Ended(code, "text\n", "error: text\n")) is None for code in CODES)


def test_a_false_pass_is_seen(tmp_path: Path) -> None:
    """Of a report that says pass on weights that are not those of the run."""
    SUBJECTS["safetensors"].make(tmp_path)
    assert run(BISECT, tmp_path).code == 0
    assert false_passes([tmp_path]) == [None]
    good = tmp_path / "good"
    good.mkdir()
    shutil.copy(tmp_path / WEIGHTS, good)
    tensors = load_file(tmp_path / WEIGHTS)
    for change, says in (
        ({"lm_head.weight": torch.zeros(32, 16, dtype=torch.bfloat16)}, "logits that are all alike"),
        ({"model.layers.1.mlp.experts.3.up_proj.weight": torch.ones(8, 16, dtype=torch.bfloat16)}, "is constant"),
    ):
        save_file({**tensors, **change}, tmp_path / WEIGHTS)
        assert says in str(false_passes([tmp_path]))
