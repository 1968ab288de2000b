"""One vLLM 0.32.0 on this CPU with one thread and with two: other bits, all of which one tile of keys makes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.opened import opened
from tests.real.served import PLAIN, Run, Share, checkpoint, drawn_prompts, replayed, serve, shares
from tests.real.test_vllm_cpu import refuse_other_cpus

pytestmark = pytest.mark.live
ONE_TILE = {"**.attend:kv_block": 512}
"""With two threads vLLM gives each fewer queries at a time, so that more keys fit into the cache beside them."""


def test_two_threads_attend_to_all_keys_in_one_tile(tmp_path: Path) -> None:
    refuse_other_cpus()
    if torch.cpu.get_capabilities()["l2_cache_size"] != 1 << 19:
        pytest.skip("not compared with a live engine: 300 keys are two tiles with 512 KiB of L2")
    model = opened(checkpoint("qwen3_moe", tmp_path))
    run = Run(prompts=drawn_prompts([300], model.vocab_size, seed=5), new=1)

    def of_prompt(threads: int) -> tuple[Share, Share]:
        folder = tmp_path / str(threads)
        folder.mkdir()
        (answer,) = serve(model.folder, [run], PLAIN, folder, threads=threads)
        ours = (replayed(model, run, answer, folder / "steps", settings=each)["log_probs"] for each in ({}, ONE_TILE))
        tiled, whole = (shares(run, answer, log_probs)[0] for log_probs in ours)
        return tiled, whole

    tiled, whole = of_prompt(threads=1)
    assert tiled.whole
    assert not whole.whole
    tiled, whole = of_prompt(threads=2)
    assert whole.whole
    assert not tiled.whole
