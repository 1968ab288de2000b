"""Which share of a node's bf16 outputs has other bits under another choice of rounding, form or order.

    python -m benchmarks.op_shares [--tokens 512]

One forward each of a two-layer Qwen3-MoE with synthetic weights (hidden 256, 128 experts of which 8 are chosen), the
value of one node compared with its value under another setting; the inputs of that node are the same. Prints a table in
Markdown; nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from benchmarks.turns import header
from moeparity.engine.forward import forward
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import int_view
from moeparity.plan.address import file_key

VOCABULARY = 512
CONFIG = {
    "model_type": "qwen3_moe",
    "torch_dtype": "bfloat16",
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 2,
    "mlp_only_layers": [0],
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "vocab_size": VOCABULARY,
}
SUM, SWIGLU, ROPE = "layers[1].moe.reduce", "layers[0].mlp.swiglu", "layers[0].attention.rope"
Settings = Mapping[str, str | float]


def combine(weighted: str, accumulate: str, order: str = "sequential", leaves: str = "slot", **more: str) -> Settings:
    """Settings of the combine, and `more` by short names."""
    short = {"score": "layers[1].moe.experts:score_site", "weights": "layers[1].moe.router:weights"}
    short |= {name: f"layers[1].moe.experts:{name}" for name in ("activation", "product")}
    settings = {"weighted": weighted, "accumulate": accumulate, "order": order, "leaves": leaves}
    if "score" in more:
        del settings["weighted"]
    return {f"layers[1].moe.combine:{k}": v for k, v in settings.items()} | {short[k]: v for k, v in more.items()}


BF16_SUM = combine("bf16", "bf16")
C4 = combine("bf16", "fp32", weights="bf16")
C6 = combine("fp32", "fp32", "sequential(fma)", weights="fp32")
C3 = combine("", "fp32", weights="fp32", score="epilogue")
C9 = combine("", "fp32", "reverse", "expert", weights="fp32", score="activation", activation="fp32", product="fp32")
FP32 = combine("fp32", "fp32", weights="fp32")
HF_ROPE: Settings = {}
VLLM_ROPE: Settings = {"layers[0].attention.rope:products": "fp32"}
SGLANG_ROPE: Settings = {**VLLM_ROPE, "rotary:output": "fp32"}
EP8: Settings = {**C6, "layers[1].moe.reduce:collective": "deepep.intranode", "layers[1].moe.combine:expert": 8}

PAIRS: tuple[tuple[str, str, Settings, Settings], ...] = (
    ("combine, bf16 sums: by slot, by expert", SUM, BF16_SUM, combine("bf16", "bf16", leaves="expert")),
    (
        "combine, fp32 products and sums: by slot, by expert",
        SUM,
        FP32,
        combine("fp32", "fp32", leaves="expert", weights="fp32"),
    ),
    (
        "combine, fp32 products and sums: by slot, in four lanes",
        SUM,
        FP32,
        combine("fp32", "fp32", "lanes(4) | sequential", weights="fp32"),
    ),
    (
        "combine, bf16 products, fp32 sums: by slot, by expert",
        SUM,
        C4,
        {**C4, "layers[1].moe.combine:leaves": "expert"},
    ),
    ("combine, fp32: product then sum, fma", SUM, FP32, C6),
    ("combine: C4 (bf16 scores and products), C6 (fp32, fma)", SUM, C4, C6),
    ("combine: C6, C3 (score in the GEMM's epilogue)", SUM, C6, C3),
    ("combine: C6, C9 (score before the down projection)", SUM, C6, C9),
    ("combine: C6, C11 (DeepEP on 8 ranks)", SUM, C6, EP8),
    ("SwiGLU: two roundings, one", SWIGLU, {}, {f"{SWIGLU}:activation": "fp32"}),
    ("RoPE: Hugging Face, vLLM", ROPE, HF_ROPE, VLLM_ROPE),
    ("RoPE: Hugging Face, SGLang", ROPE, HF_ROPE, SGLANG_ROPE),
    ("RoPE: vLLM, SGLang", ROPE, VLLM_ROPE, SGLANG_ROPE),
)


def main() -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512)
    tokens = parser.parse_args().tokens
    print(header(torch.get_num_threads()))
    print(f"fraction of bf16 outputs with other bits, {tokens} tokens\n")
    print("| what differs | fraction of outputs |\n|---|---:|")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        model = open_model(folder, device="cpu", residency="resident", synthetic=0)
        for title, node, first, second in PAIRS:
            print(f"| {title} | {_percent(*differing(model, node, first, second, tokens))} |")
    return 0


def differing(model: Model, node: str, first: Settings, second: Settings, tokens: int) -> tuple[int, int]:
    """Of a node's outputs, how many differ under two settings, and how many there are."""
    a, b = (values(model, node, settings, tokens) for settings in (first, second))
    return int((int_view(a) != int_view(b)).sum()), a.numel()


def values(model: Model, node: str, settings: Settings, tokens: int) -> torch.Tensor:
    """All values of a node, flattened."""
    ids = torch.arange(tokens).remainder(VOCABULARY).view(-1, 128)
    tensors = forward(model, ids, profile="hf-eager", settings=settings, save=[node])
    return torch.cat([x.flatten() for key, x in sorted(tensors.items()) if key.startswith(file_key(node))])


def _percent(count: int, outputs: int) -> str:
    share = 100 * count / outputs
    if share >= 1:
        return f"{share:.0f} %"
    return "0" if count == 0 else f"{share:.2g} % ({count} of {outputs})"


if __name__ == "__main__":
    sys.exit(main())
