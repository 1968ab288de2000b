"""`moeparity show` of a recipe says how both sides are scheduled, and values of every phase that there may be."""

from __future__ import annotations

from tests.command import ROOT, inside


def test_show_prints_the_schedules_of_both_sides() -> None:
    done = inside("show", "plan", ROOT / "recipes/latent-decode.yaml")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    server = "vllm-v1, continuous, at most 1,024"
    assert (
        f"schedule of the reference: {server}, prefill chunks of 8,192 tokens. Its steps may be of prefill, chunk "
        f"schedule of the candidate: {server}, decode from the prompt's end, prefill chunks of 8,192 tokens. Its steps "
        "may be of prefill, chunk, decode "
    ) in text
    assert "absorbed)" in text
    plain = inside("show", "plan", ROOT / "recipes/rounding.yaml").stdout
    assert "schedule of the reference: micro-batch 8\nschedule of the candidate: micro-batch 8\n" in plain
