"""A profile that `explain --profile-out` makes of one trace of a real vLLM on this CPU gives that run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import executable
from tests.opened import opened
from tests.real.served import PLAIN, Run, capturing, checkpoint, drawn_prompts, replayed, serve, shares

pytestmark = pytest.mark.live


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "gpt_oss"])
def test_every_log_probability_of_the_run(name: str, tmp_path: Path) -> None:
    """Requests that join at different steps: prompts and drawn tokens in one batch."""
    model = opened(checkpoint(name, tmp_path / "checkpoint"))
    prompts = drawn_prompts((60, 20, 3, 31), model.vocab_size, seed=4)
    run = Run(prompts=prompts, new=6, arrivals=[0, 1, 2, 6], prompt_logprobs=False)
    under = capturing(tmp_path / "trace", "op,module", "model*", "logits_processor", "aten.log_softmax.int")
    (answer,) = serve(model.folder, [run], PLAIN, tmp_path, under=under)

    # From transformers' eager modules on: nothing of vLLM is told.
    options = ["--checkpoint", str(model.folder), "--profile", "hf-eager", "--profile-out", f"{tmp_path}/derived.yaml"]
    done = executable("explain", tmp_path / "trace", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    log_probs = replayed(model, run, answer, tmp_path / "steps", profile=str(tmp_path / "derived.yaml"))["log_probs"]
    _, of_drawn = shares(run, answer, log_probs)
    assert of_drawn.whole, of_drawn
