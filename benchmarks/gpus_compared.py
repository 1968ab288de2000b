"""What it changes on whose GPU a model's sums are added, on the shipped checkpoint, as a page.

    python -m benchmarks.gpus_compared --out docs/generated/tensor-cores.md

Every row is a recipe like recipes/tensor-cores.yaml, scored on the same tokens; nothing here needs a GPU.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch
import yaml

from moeparity import bisect
from moeparity.bisection.report import Report
from moeparity.inputs.machine import cpu_name

ROOT = Path(__file__).parents[1]
TRAINER, SERVER = {"profile": "hf-default"}, {"profile": "vllm"}
FLASH = {"layers[*].attention.attend:implementation": "flash"}
WITHOUT = {"layers[*].attention.attend:order": "native"}
H100, A100 = {"gpu": "h100"}, {"gpu": "a100"}

PAGE = """# What it changes whose tensor cores add up

Written by `python -m scripts.pages tensor-cores`; {cpu}, {threads} thread, torch {torch}, {today}.

The shipped checkpoint, {tokens} scored tokens, bf16, micro-batch 8. On a GPU every 16-bit GEMM with
a weight is one chain over K, attention that is written as an online softmax (the server's) is that of
FlashAttention 2, and the server's norms take an H100's roots ([tensor cores](../tensor-cores.md)).

- **k3** in nats per token, with its 95 % interval. **flips**: token-layers with another set of experts.
- **first divergence**: the first node whose bits differ.

| what | reference | candidate | k3 | flips | first divergence |
|---|---|---|---|---|---|
{rows}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two sides, and what they are compared for."""

    title: str
    reference: Mapping[str, Any] = field(default_factory=dict)
    candidate: Mapping[str, Any] = field(default_factory=dict)


def _splits(node: str, count: int) -> dict[str, Any]:
    return {**TRAINER, **H100, "set": {f"layers[*].attention.{node}:splits": count}}


PAIRS = (
    Pair(title="two generations", reference=TRAINER | A100, candidate=TRAINER | H100),
    Pair(title="two generations, attention too", reference=TRAINER | A100 | {"set": FLASH},
         candidate=TRAINER | H100 | {"set": FLASH}),
    Pair(title="splits of K: q_proj in 2", reference=TRAINER | H100, candidate=_splits("q_proj", 2)),
    Pair(title="splits of K: o_proj in 2", reference=TRAINER | H100, candidate=_splits("o_proj", 2)),
    Pair(title="splits of K: o_proj in 4", reference=TRAINER | H100, candidate=_splits("o_proj", 4)),
    Pair(title="attention alone", reference=SERVER | H100 | {"set": WITHOUT}, candidate=SERVER | H100),
    Pair(title="trainer and server, torch's sums", reference=TRAINER, candidate=SERVER),
    Pair(title="the server's on an H100", reference=TRAINER, candidate=SERVER | H100),
    Pair(title="the trainer's on an H100", reference=TRAINER | H100, candidate=SERVER),
    Pair(title="both on an H100", reference=TRAINER | H100, candidate=SERVER | H100),
    Pair(title="both, attention as torch adds", reference=TRAINER | H100, candidate=SERVER | H100 | {"set": WITHOUT}),
    Pair(title="trainer on an A100, server on an H100", reference=TRAINER | A100, candidate=SERVER | H100),
)  # fmt: skip


def compared(pair: Pair, folder: Path) -> Report:
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
    return bisect(path, device="cpu")


def row(pair: Pair, report: Report) -> str:
    """A line of the table."""
    value, detail = report.verdict.value, None if report.flips is None else report.flips.detail
    if value is None or detail is None:
        raise SystemExit(f"{pair.title}: the report has no verdict or no flips.")
    sides = (_words(side) for side in (pair.reference, pair.candidate))
    k3 = "0" if value.estimate == 0 else f"{value.estimate:.1e} [{value.low:.1e}, {value.high:.1e}]"
    first = report.roots[0].node if report.roots else "none"
    return f"| {pair.title} | {' | '.join(sides)} | {k3} | {detail.rates.set_differs:.2%} | {first} |"


def _words(side: Mapping[str, Any]) -> str:
    return str(side["profile"]) + (f", {side['gpu'].upper()}" if "gpu" in side else "")


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reports = [compared(pair, Path(folder)) for pair in PAIRS]
    facts = {"cpu": cpu_name(), "threads": torch.get_num_threads(), "torch": torch.__version__, "today": date.today()}
    rows = "\n".join(map(row, PAIRS, reports))
    scored = reports[0].run.scored_tokens
    options.out.write_text(PAGE.format(**facts, tokens=scored, rows=rows), "utf-8")


if __name__ == "__main__":
    main()
