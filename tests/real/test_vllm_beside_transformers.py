"""A real vLLM 0.32.0 on this CPU beside transformers with the same checkpoint: where they begin to differ."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.evidence.diff.run import diff
from tests.evidence.recorded import recorded
from tests.hf.reference import load
from tests.real.served import PLAIN, Run, capturing, checkpoint, drawn_prompts, grid, serve
from tests.real.test_vllm_cpu import refuse_other_cpus

pytestmark = pytest.mark.live


def test_two_engines_begin_to_differ_in_attention(tmp_path: Path) -> None:
    """Prompts and drawn tokens in steps, against all at once: by token, and no handle, plan or buffer is accused."""
    refuse_other_cpus()
    folder = checkpoint("qwen3_moe", tmp_path / "checkpoint")
    run = Run(prompts=drawn_prompts((24, 10, 3, 17), 512, seed=5), new=4, arrivals=[0, 1, 2, 4], prompt_logprobs=False)
    under = capturing(tmp_path / "served", "op,module", "model*", "logits_processor")
    (answer,) = serve(folder, [run], PLAIN, tmp_path, under=under)
    ids, mask = grid(run, answer)
    program = load(folder, "hf-eager", torch.bfloat16)
    with recorded(tmp_path / "scored", level="op,module"), torch.no_grad():
        program(ids, attention_mask=mask, use_cache=False)
    report = diff(tmp_path / "served", tmp_path / "scored")
    assert report.status == "fail"
    assert {(start.kind, start.node) for start in report.starts} == {("op", "layers[0].attention.attend")}
    assert {start.step for start in report.starts} >= {1, 2, 3}
    assert report.coverage.equal > 20
