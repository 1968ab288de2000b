"""A real vLLM 0.32.0 on this CPU that serves a checkpoint with a fault: from its trace the fault's node is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint_factory import FILE
from tests.command import executable
from tests.real.served import CACHED, Run, capturing, checkpoint, drawn_prompts, serve, traced_recipe
from tests.real.test_vllm_cpu import ROPE_IS_WRONG, refuse_other_cpus

pytestmark = pytest.mark.live
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A fault in the checkpoint that the server loads: of which model, what is changed, and the node that shows it."""

    model: str
    change: Callable[[Tensors], None]
    node: str


def exchange_down_weights(tensors: Tensors) -> None:
    """Two experts of the second layer have each other's down projection."""
    a, b = (f"model.layers.1.mlp.experts.{expert}.down_proj.weight" for expert in (3, 5))
    tensors[a], tensors[b] = tensors[b], tensors[a]


def make_router_stale(tensors: Tensors) -> None:
    """The second layer's router is a step of training behind."""
    name = "model.layers.1.mlp.gate.weight"
    drawn = torch.randn(tensors[name].shape, generator=torch.Generator().manual_seed(0))
    tensors[name] = tensors[name] + 0.01 * drawn.to(tensors[name].dtype)


FAULTS = {
    "experts": Planted(model="qwen3_moe", change=exchange_down_weights, node="layers[1].moe.combine"),
    "router": Planted(model="qwen3_moe", change=make_router_stale, node="layers[1].moe.gate"),
    "latent experts": Planted(model=ROPE_IS_WRONG, change=exchange_down_weights, node="layers[1].moe.combine"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_node_of_a_fault_is_named(fault: str, tmp_path: Path) -> None:
    """Captured while it serves, in chunks and from a prefix cache; `moeparity bisect` has the right checkpoint."""
    refuse_other_cpus()
    planted = FAULTS[fault]
    right, wrong = (checkpoint(planted.model, tmp_path / name) for name in ("right", "wrong"))
    tensors = load_file(wrong / FILE)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in load_file(right / FILE).items())
    planted.change(tensors)
    save_file(tensors, wrong / FILE, {"format": "pt"})
    vocab = json.loads((right / "config.json").read_text("utf-8"))["vocab_size"]
    prompts = drawn_prompts((150, 140), vocab, seed=3, shared=130) + drawn_prompts(range(3, 29), vocab, seed=4)
    arrivals = [0, 9, *(number % 7 for number in range(26))]
    run = Run(prompts=prompts, new=4, arrivals=arrivals, prompt_logprobs=False)
    engine = CACHED | {"max_num_batched_tokens": 48}
    under = capturing(tmp_path / "trace", "op,module", "model*", "logits_processor")
    (answer,) = serve(wrong, [run], engine, tmp_path, mended=planted.model == ROPE_IS_WRONG, under=under)
    recipe = traced_recipe(tmp_path, right, run, answer, tmp_path / "trace")
    done = executable("bisect", recipe, "--json", tmp_path / "report.json")
    assert done.returncode == 1, done.stdout + done.stderr
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [root["node"] for root in report["roots"]] == [planted.node]
    assert report["summary"]["starts"].startswith(planted.node), report["summary"]["starts"]
