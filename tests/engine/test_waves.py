"""Users' functions in several waves of sequences: what enters them is told apart wave by wave."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from moeparity import bisect
from moeparity.bisection.options import Options
from moeparity.bisection.report import Report
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

NORM = '''
import torch
from pathlib import Path
from safetensors.torch import load_file

MARK = load_file(Path(__file__).with_suffix(".safetensors"))["row"]


def norm(x, *, node):
    """RMSNorm as transformers has it; of the marked sequence something else in layer 0; of all another eps in EPS."""
    eps = 1.0 if node.layer in EPS else node.params["norm"]["eps"]
    wide = x.float()
    normalized = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    out = node.weights["norm.weight"] * normalized
    if node.layer == 0:
        marked = (x[:, 0] == MARK).all(-1)
        out = torch.where(marked[:, None, None], out * 1.5, out)
    return out
'''
SEQUENCES, MARKED = 8, 5
"""A token that only the faulty sequence begins with."""


def report_of(folder: Path, checkpoint: Path, faulty: int, eps: tuple[int, ...], micro_batch: int) -> Report:
    ids = random_tokens(SEQUENCES, 8, vocab=256)
    ids[:, 0] = ids[:, 0].clamp(min=MARKED + 1)
    ids[faulty, 0] = MARKED
    module = f"waves_{faulty}_{len(eps)}_{micro_batch}"
    (folder / f"{module}.py").write_text(NORM.replace("in EPS", f"in {eps}"), "utf-8")
    embedding = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    save_file({"row": embedding[MARKED].clone()}, folder / f"{module}.safetensors")
    candidate = {
        "impl": [{"nodes": ["layers[*].attention.norm"], "call": f"{module}:norm"}],
        "micro_batch": micro_batch,
    }
    path = write_recipe(folder, checkpoint, {"input_ids": ids}, {"micro_batch": micro_batch}, candidate)
    return bisect(path, device="cpu", options=Options(allow_code=True, attribution=False), opener=opened)


@pytest.mark.parametrize("micro_batch", [1, 2, 8])
@pytest.mark.parametrize("faulty", [0, 3, 7])
def test_one_faulty_sequence_makes_no_other_root(
    tmp_path: Path, qwen3_moe: Path, faulty: int, micro_batch: int
) -> None:
    report = report_of(tmp_path, qwen3_moe, faulty, (), micro_batch)
    assert [(root.node, root.sequences, root.tokens) for root in report.roots] == [("layers[0].attention.norm", 1, 8)]


@pytest.mark.parametrize("micro_batch", [1, 2])
@pytest.mark.parametrize("faulty", [0, 3, 7])
def test_a_faulty_sequence_hides_no_fault_of_the_others(
    tmp_path: Path, qwen3_moe: Path, faulty: int, micro_batch: int
) -> None:
    report = report_of(tmp_path, qwen3_moe, faulty, (1,), micro_batch)
    assert [(root.node, root.sequences) for root in report.roots] == [
        ("layers[0].attention.norm", 1),
        ("layers[1].attention.norm", SEQUENCES - micro_batch),
    ]
