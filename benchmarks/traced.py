"""Two captures of one mixture of experts, compared: `python -m benchmarks.traced sdpa|grouped|router|dtype|batch`.

A is transformers' eager Qwen3-MoE in bf16 with random weights; B has sdpa attention, a grouped GEMM of experts, a
router in fp32, fp32 throughout, or its sequences one by one.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from moeparity.cli.render import console
from moeparity.evidence.capture.context import capture
from moeparity.evidence.diff.run import diff
from moeparity.evidence.diff.show import document
from moeparity.output.terminal import print_blocks

KINDS = ("sdpa", "grouped", "router", "dtype", "batch")
IDS = torch.randint(0, 128, (2, 32), generator=torch.Generator().manual_seed(5))
SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "intermediate_size": 64,
    "vocab_size": 128,
}  # fmt: skip


def model(kind: str = "") -> Any:
    """The model of side B; of side A without a kind."""
    attention, experts = ("sdpa" if kind == "sdpa" else "eager"), ("grouped_mm" if kind == "grouped" else "eager")
    settings: dict[str, Any] = {"attn_implementation": attention, "experts_implementation": experts}
    program: Any = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **settings))
    random = torch.Generator().manual_seed(1)
    for parameter in program.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.08, generator=random)
    program = program.bfloat16().float() if kind == "dtype" else program.bfloat16()
    if kind == "router":
        for layer in program.model.layers:
            _in_fp32(layer.mlp.gate)
    program.train(mode=False)
    return program


def _in_fp32(gate: Any) -> None:
    def forward(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = F.linear(hidden.reshape(-1, hidden.shape[-1]).float(), gate.weight.float())
        weights, ids = F.softmax(logits, -1, dtype=torch.float).topk(gate.top_k, -1)
        return logits, (weights / weights.sum(-1, keepdim=True)).to(hidden.dtype), ids

    gate.forward = forward


def main() -> None:
    """Capture both, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    kind = parser.parse_args().kind
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name, program, batches in (
            ("A", model(), [IDS]),
            ("B", model(kind), list(IDS.unsqueeze(1)) if kind == "batch" else [IDS]),
        ):
            with capture(Path(folder) / name, save="*"), torch.no_grad():
                for batch in batches:
                    program(input_ids=batch, use_cache=False)
        print_blocks(document(diff(Path(folder) / "A", Path(folder) / "B"), "A B").blocks, console())


if __name__ == "__main__":
    main()
