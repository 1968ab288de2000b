"""What it changes on whose GPU a model's sums are added, on the shipped checkpoint, as a page.

    python -m benchmarks.gpus_compared --out docs/generated/tensor-cores.md

Every row is a recipe like recipes/tensor-cores.yaml, scored on the same tokens; nothing here needs a GPU.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks import promoted
from moeparity import bisect
from moeparity.inputs.machine import cpu_name
from moeparity.metrics.verdict import Interval

ROOT = Path(__file__).parents[1]
TRAINER, SERVER = {"profile": "hf-default"}, {"profile": "vllm"}
FLASH = {"layers[*].attention.attend:implementation": "flash"}
WITHOUT = {"layers[*].attention.attend:order": "native"}
H100, A100 = {"gpu": "h100"}, {"gpu": "a100"}
DRAWS, LAYERS = 8, 4

PAGE = """# What it changes whose tensor cores add up

Written by `python -m scripts.pages tensor-cores`; {cpu}, {threads} thread, torch {torch}, {today}.

The shipped checkpoint, {tokens} scored tokens, bf16, micro-batch 8. On a GPU every 16-bit GEMM with
a weight is one chain over K, attention that is written as an online softmax (the server's) is that of
FlashAttention 2, and the server's norms take an H100's roots ([tensor cores](../tensor-cores.md)).

- **k3** in nats per token, with its 95 % interval. **flips**: token-layers with another set of experts.
- **first divergence**: the first node whose bits differ, and how many of its outputs do.
- **within**: whether k3 and flips are at most the largest of some row of the [next
  table](#what-legal-orders-of-the-same-sums-make), that is, what legal orders of the same sums make on these tokens.

| what | reference | candidate | k3 | flips | first divergence | within |
|---|---|---|---|---|---|---|
{rows}

## What legal orders of the same sums make

{draws} draws of each. Every GEMM's products are added in an order drawn at random (`unordered(seed)`), in fp32, against
torch's; or on an H100 K is cut into 1, 2 or 4 parts, drawn for each GEMM, against one part. Attention keeps its order.

| what | reference | candidate | k3 | flips |
|---|---|---|---|---|
{envelope}

## Sums in fp8: promoted, or flat?

Attention's projections multiply codes of e4m3, and everything else is added up by torch. Weights have a scale for each
output and activations one for each token, so that all of K is added up before scales meet it. **flat**: one chain, as
with fast accumulation. **promoted**: a new chain for each 128 of K, added in fp32; of the projections one has 256
inputs here and the others 96, so that another row promotes every 32. With scales by blocks and groups, as in
`vllm-fp8-blocks` (of 128 there, of 32 here), every block is a chain of its own, and there is no such choice. **within**
is by the last row of the table above.

| what | reference | candidate | k3 | flips | first divergence | within |
|---|---|---|---|---|---|---|
{fp8}

How many bf16 outputs of one GEMM change,
{gemm}:

{shares}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two sides, and what they are compared for."""

    title: str
    reference: Mapping[str, Any] = field(default_factory=dict)
    candidate: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a candidate makes: k3, flips, and the first node that differs with the share of its outputs that do.

    tokens: scored.
    """

    k3: Interval
    flips: float
    first: str
    tokens: int


def _splits(node: str, count: int) -> dict[str, Any]:
    return {**TRAINER, **H100, "set": {f"layers[*].attention.{node}:splits": count}}


PAIRS = (
    Pair(title="two generations", reference=TRAINER | A100, candidate=TRAINER | H100),
    Pair(title="two generations, attention too", reference=TRAINER | A100 | {"set": FLASH},
         candidate=TRAINER | H100 | {"set": FLASH}),
    Pair(title="splits of K: q_proj in 2", reference=TRAINER | H100, candidate=_splits("q_proj", 2)),
    Pair(title="splits of K: o_proj in 2", reference=TRAINER | H100, candidate=_splits("o_proj", 2)),
    Pair(title="splits of K: o_proj in 4", reference=TRAINER | H100, candidate=_splits("o_proj", 4)),
    Pair(title="torch's sums and an H100's", reference=TRAINER, candidate=TRAINER | H100),
    Pair(title="attention alone", reference=SERVER | H100 | {"set": WITHOUT}, candidate=SERVER | H100),
    Pair(title="trainer and server, torch's sums", reference=TRAINER, candidate=SERVER),
    Pair(title="the server's on an H100", reference=TRAINER, candidate=SERVER | H100),
    Pair(title="the trainer's on an H100", reference=TRAINER | H100, candidate=SERVER),
    Pair(title="both on an H100", reference=TRAINER | H100, candidate=SERVER | H100),
    Pair(title="both, attention as torch adds", reference=TRAINER | H100, candidate=SERVER | H100 | {"set": WITHOUT}),
    Pair(title="trainer on an A100, server on an H100", reference=TRAINER | A100, candidate=SERVER | H100),
)  # fmt: skip


_PROJECTIONS = "layers[*].attention.*_proj"
WHOLE = {"weight_scales": "channel", "activation_scales": "token"}
BY_32 = {"weight_scales": "block", "weight_block": 32, "activation_scales": "group", "activation_group": 32}
FLAT, PROMOTED, FINELY = "tensor_core(h100)", "tensor_core(h100, promote=128)", "tensor_core(h100, promote=32)"


def _in_fp8(order: str, scales: Mapping[str, Any] = WHOLE) -> dict[str, Any]:
    """A trainer whose projections multiply codes of fp8, added up in an order."""
    choices = {"weights": "fp8_e4m3", "activations": "fp8_e4m3", "order": order, **scales}
    return {**TRAINER, "set": {f"{_PROJECTIONS}:{name}": value for name, value in choices.items()}}


FP8_PAIRS = (
    Pair(title="promoted every 128 or flat", reference=_in_fp8(PROMOTED), candidate=_in_fp8(FLAT)),
    Pair(title="promoted every 32 or flat", reference=_in_fp8(FINELY), candidate=_in_fp8(FLAT)),
    Pair(title="sums of fp32 or promoted every 32", reference=_in_fp8("native"), candidate=_in_fp8(FINELY)),
    Pair(title="sums of fp32 or flat", reference=_in_fp8("native"), candidate=_in_fp8(FLAT)),
    Pair(title="blocks of 32: sums of fp32 or an H100's", reference=_in_fp8("native", BY_32),
         candidate=_in_fp8(FLAT, BY_32)),
    Pair(title="bf16 or fp8, both sums of fp32", reference=TRAINER, candidate=_in_fp8("native")),
)  # fmt: skip


def _reordered(seed: int) -> dict[str, Any]:
    """Every GEMM's products in an order drawn by a seed."""
    order = f"unordered({seed})"
    gemms = (_PROJECTIONS, "layers[*].moe.gate", "layers[*].moe.experts", "lm_head")
    return {"set": {"layers[*].moe.experts:implementation": "loop", **{f"{gemm}:order": order for gemm in gemms}}}


def _recut(seed: int) -> dict[str, Any]:
    """K of every GEMM but the experts', whose 48 inputs are no more than one part, cut as a seed draws it."""
    choose = random.Random(seed).choice  # noqa: S311
    parts = {f"attention.{name}_proj": (1, 2) for name in "qkv"} | {"attention.o_proj": (1, 2, 4), "moe.gate": (1, 2)}
    nodes = {f"layers[{layer}].{node}": counts for layer in range(LAYERS) for node, counts in parts.items()}
    return {"set": {f"{node}:splits": choose(counts) for node, counts in {**nodes, "lm_head": (1, 2)}.items()}}


LEGAL = (
    [Pair(title="orders of torch's sums", reference=TRAINER, candidate=TRAINER | _reordered(i)) for i in range(DRAWS)],
    [Pair(title="splits of K", reference=TRAINER | H100, candidate=TRAINER | H100 | _recut(i)) for i in range(DRAWS)],
)
FP8_LEGAL = (
    [
        Pair(title="orders of fp32 sums of codes", reference=_in_fp8("native"), candidate=_in_fp8(f"unordered({i})"))
        for i in range(DRAWS)
    ],
)


def compared(pair: Pair, folder: Path) -> Made:
    """Both sides scored on the shipped tokens."""
    recipe = {
        "kind": "recipe",
        "checkpoint": str(ROOT / "checkpoints/quickstart"),
        "tokens": {"file": str(ROOT / "recipes/quickstart.safetensors"), "sampled_from": "candidate"},
        "reference": {"micro_batch": 8, **pair.reference},
        "candidate": {"micro_batch": 8, **pair.candidate},
        "gate": {"metric": "k3", "below": 1e-4},
        "floor": False,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), "utf-8")
    report = bisect(path, device="cpu")
    value, detail = report.verdict.value, None if report.flips is None else report.flips.detail
    if value is None or detail is None:
        raise SystemExit(f"{pair.title}: the report has no verdict or no flips.")
    root = report.roots[0].node if report.roots else None
    changed = (f"{root}, {_percent(1 - node.local.equal_share)}" for node in report.nodes if node.node == root)
    return Made(k3=value, flips=detail.rates.set_differs, first=next(changed, "none"), tokens=report.run.scored_tokens)


def row(pair: Pair, effect: Made, legal: Sequence[Sequence[Made]]) -> str:
    """A line of a table of pairs. legal: what draws of legal orders make, by where they were drawn."""
    of = effect.k3
    k3 = f"{of.estimate:.1e} [{of.low:.1e}, {of.high:.1e}]" if of.estimate else "0"
    within = any(
        effect.k3.estimate <= max(d.k3.estimate for d in draws) and effect.flips <= max(d.flips for d in draws)
        for draws in legal
    )
    return f"| {_titled(pair)} | {k3} | {effect.flips:.2%} | {effect.first} | {'yes' if within else 'no'} |"


def _of_draws(pairs: Sequence[Pair], draws: Sequence[Made]) -> str:
    """A line of the table of draws."""
    k3, flips = [f"{d.k3.estimate:.1e}" if d.k3.estimate else "0" for d in draws], [d.flips for d in draws]
    ends = dict.fromkeys((min(k3, key=float), max(k3, key=float)))
    return f"| {_titled(pairs[0])} | {' to '.join(ends)} | {min(flips):.2%} to {max(flips):.2%} |"


def _percent(share: float) -> str:
    """With two digits, however small."""
    return f"{100 * share:.2g}%"


def _titled(pair: Pair) -> str:
    sides = (pair.reference, pair.candidate)
    return " | ".join([pair.title, *(str(side["profile"]) + _of_gpu(side) for side in sides)])


def _of_gpu(side: Mapping[str, Any]) -> str:
    return f", {side['gpu'].upper()}" if "gpu" in side else ""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pairs, fp8 = ([compared(pair, Path(folder)) for pair in of] for of in (PAIRS, FP8_PAIRS))
        legal, fp8_legal = (
            [[compared(pair, Path(folder)) for pair in draws] for draws in of] for of in (LEGAL, FP8_LEGAL)
        )
    parts = {
        "rows": (row(pair, effect, legal) for pair, effect in zip(PAIRS, pairs, strict=True)),
        "envelope": map(_of_draws, (*LEGAL, *FP8_LEGAL), (*legal, *fp8_legal)),
        "fp8": (row(pair, effect, fp8_legal) for pair, effect in zip(FP8_PAIRS, fp8, strict=True)),
        "shares": promoted.lines(),
    }
    facts = {"cpu": cpu_name(), "threads": torch.get_num_threads(), "torch": torch.__version__, "today": date.today()}
    text = {name: "\n".join(lines) for name, lines in parts.items()}
    options.out.write_text(
        PAGE.format(**facts, tokens=pairs[0].tokens, draws=DRAWS, gemm=promoted.GEMMS, **text), "utf-8"
    )


if __name__ == "__main__":
    main()
