"""A real vLLM 0.32.0 on two ranks of this CPU, in processes of their own: `placement: {tensor: 2}` has its bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.opened import opened
from tests.real.ranks import WIDTHS, checkpoint_for_ranks, serve_on_ranks, share_of_ranks
from tests.real.served import PROFILE
from tests.real.test_vllm_cpu import BLIND, ROPE_IS_WRONG, refuse_other_cpus
from tests.verified import record_plan

pytestmark = pytest.mark.live
LIVE = "vLLM 0.32.0 on CPU with AVX2, two ranks"


@pytest.mark.parametrize("name", WIDTHS)
def test_every_drawn_token(name: str, tmp_path: Path) -> None:
    """Of prompts of several lengths, which decode together; with one rank's arithmetic some have other bits."""
    refuse_other_cpus()
    model = opened(checkpoint_for_ranks(name, tmp_path / "checkpoint"))
    answer = serve_on_ranks(tmp_path, model, mended=name == ROPE_IS_WRONG)
    of_two = share_of_ranks(model, answer, ranks=2)
    assert of_two.whole, of_two
    assert not share_of_ranks(model, answer, ranks=1).whole
    if PROFILE == "vllm-cpu-avx2":
        record_plan(model, LIVE, profile=PROFILE, dtype="bf16", placement={"tensor": 2}, blind=BLIND)
