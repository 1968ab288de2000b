"""What a bisection of models of 30B, 235B and 671B parameters takes: measured where a layer fits, computed beyond.

    python -m benchmarks.layer_cost [--out FILE]

The model of the cost is that of `moeparity bisect --dry-run` (moeparity/engine/duration.py). Its rates are measured
first, by moeparity/engine/calibration.py, on layers of other sizes; then single layers of the models' own widths are
made from a seed and run, each by one variant: those of 30B and 235B whole, of 671B some of the 256 experts. What was
predicted of them stands beside what they took. The rest is computed from the same rates and the public configs, with
all layers. Seconds are of processor time of one thread, since others use the machine; wall time stands beside it.
Needs 6 GB of memory and no disk. Exits with 1 where a prediction is off by more than 15 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.turns import header
from moeparity.bisection.cost import expected, shown_time
from moeparity.bisection.pipeline import bisect
from moeparity.documents.checked import shipped
from moeparity.engine.calibration import measured_rates
from moeparity.engine.duration import DRAWN, MADE, Rates
from moeparity.engine.footprint import Footprint, estimate, shown_size
from moeparity.engine.lockstep import run
from moeparity.engine.memory import Peak
from moeparity.engine.walker import Walker
from moeparity.errors import Where
from moeparity.inputs.weights.store import WeightStore
from moeparity.inputs.weights.synthetic import Synthetic
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.steps import MicroBatches

BOUND = 0.15
SEQUENCES, TOKENS = 4, 128
WIDE = {"hidden_size": 4096, "num_attention_heads": 64, "moe_intermediate_size": 1536}
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "30B": ("qwen3_moe", {"num_hidden_layers": 48}),
    "235B": ("qwen3_moe", {"num_hidden_layers": 94, **WIDE}),
    "671B": ("deepseek_v3", {"num_hidden_layers": 61}),
}
"""Qwen3-30B-A3B, Qwen3-235B-A22B (widths of its config.json) and DeepSeek-V3: the shipped config, and what differs."""
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "30B, a whole layer": ("30B", {}),
    "235B, a whole layer": ("235B", {}),
    "671B, 24 of 256 experts": ("671B", {"first_k_dense_replace": 0, "n_routed_experts": 24}),
}
RECIPE = """kind: recipe
checkpoint: .
weights: synthetic(0)
tokens: {file: tokens.safetensors, sampled_from: candidate}
reference: {profile: hf-eager}
candidate: {profile: hf-default}
gate: {metric: k3, below: 1e-4}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Predicted and measured seconds of one layer, and of making its weights; bytes at its peak; its wall time."""

    name: str
    tokens: int
    pass_seconds: tuple[float, float]
    making_seconds: tuple[float, float]
    peak: tuple[int, int]
    wall: float


def main() -> int:
    """Measure the rates and the layers, compute the rest, print; 1 where a prediction is off by too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write what is printed to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    title = header(1)
    rates = measured_rates(["bf16", "fp32", "fp64"], torch.device("cpu"), clock=time.process_time)
    rows = [row for name in LAYERS for row in measured(name, rates)]
    errors = [a / b - 1 for row in rows for a, b in (row.pass_seconds, row.making_seconds)]
    worst = max(errors, key=abs)
    table = [*_measured_table(rows), "", f"Worst error {worst:+.0%}. {_bisected(rates)}"]
    text = "\n".join([title, "", *table, "", *_computed_table(rates)])
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", "utf-8")
    return int(abs(worst) > BOUND)


def measured(name: str, rates: Rates) -> Iterator[Row]:
    """One layer of a model, with 64 tokens and with 512."""
    model, fields = LAYERS[name]
    with tempfile.TemporaryDirectory() as folder:
        graph, config = _graph(Path(folder), model, {"num_hidden_layers": 1, "vocab_size": 512, **fields})
    weights = WeightStore(Synthetic(config, graph, 0), graph, torch.device("cpu"), "resident")
    plan = bind(graph, load_profile("hf-eager", Where(Path(__file__))), "bf16")
    loading = rates.seconds_of(_estimated(weights, plan, 1).amounts.only(MADE, DRAWN))
    clock = time.process_time()
    with Peak(weights.device) as making_peak:
        for segment in graph.segments:
            weights.load(segment, ("bf16",))
    making = (loading, time.process_time() - clock)
    for sequences in (1, SEQUENCES):
        walker, ids = Walker(name="one", plan=plan, schedule=MicroBatches(sequences)), _ids(sequences)
        predicted = _estimated(weights, plan, sequences)
        times, walls = [], []
        with Peak(weights.device) as peak:
            for _ in range(4):
                clock, wall = time.process_time(), time.perf_counter()
                run([walker], weights, ids, [])
                times.append(time.process_time() - clock)
                walls.append(time.perf_counter() - wall)
        peak_bytes = (peak.bytes or 0) - (making_peak.before or 0)
        seconds = (rates.seconds_of(predicted.amounts), min(times[1:]))
        sizes = (predicted.total, peak_bytes)
        yield Row(
            name=name,
            tokens=ids.numel(),
            pass_seconds=seconds,
            making_seconds=making,
            peak=sizes,
            wall=min(walls[1:]),
        )


def _bisected(rates: Rates) -> str:
    """A whole bisection, of two narrow layers, beside what it was to take."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _graph(folder, "30B", {"num_hidden_layers": 2, "num_experts": 16, "vocab_size": 8192})
        recipe = _recipe(folder)
        limit = expected(recipe, device="cpu", rates=rates)
        clock = time.process_time()
        bisect(recipe, device="cpu")
        seconds = time.process_time() - clock
    tokens = f"{limit.variants} variants, {SEQUENCES * TOKENS} tokens"
    return f"A bisection of two layers of 16 experts ({tokens}): predicted {limit.seconds:.1f} s, took {seconds:.1f} s."


def _recipe(folder: Path) -> Path:
    save_file({"input_ids": _ids(SEQUENCES)}, folder / "tokens.safetensors")
    path = folder / "recipe.yaml"
    path.write_text(RECIPE, "utf-8")
    return path


def _measured_table(rows: list[Row]) -> list[str]:
    lines = [
        "| layer | tokens | pass, predicted | took | error | wall | weights, predicted | took | error | peak | was |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        (a, b), (c, d) = row.pass_seconds, row.making_seconds
        lines.append(
            f"| {row.name} | {row.tokens} | {a:.2f} s | {b:.2f} s | {a / b - 1:+.0%} | {row.wall:.2f} s | {c:.1f} s "
            f"| {d:.1f} s | {c / d - 1:+.0%} | {shown_size(row.peak[0])} | {shown_size(row.peak[1])} |"
        )
    return lines


def _computed_table(rates: Rates) -> list[str]:
    lines = [
        "| model | layers | disk, layer | all | layer, one variant | its weights | memory | one pass | its weights |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [_computed(model, rates) for model in WHOLE]


def _computed(model: str, rates: Rates) -> str:
    """A whole model, and the bisection of two of transformers' own profiles on it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        graph, config = _graph(folder, model, {})
        whole = expected(_recipe(folder), device="cpu", rates=rates)
        layer, _ = _graph(folder, model, {"num_hidden_layers": 1, "first_k_dense_replace": 0, "vocab_size": 512})
        weights = WeightStore(Synthetic(config, layer, 0), layer, torch.device("cpu"), "stream")
        plan = bind(layer, load_profile("hf-eager", Where(Path(__file__))), "bf16")
        amounts = _estimated(weights, plan, SEQUENCES).amounts
    making = rates.seconds_of(amounts.only(MADE, DRAWN))
    return (
        f"| {model} | {graph.layers} | {shown_size(_bytes(config, layer))} | {shown_size(_bytes(config, graph))} "
        f"| {shown_time(rates.seconds_of(amounts) - making)} | {shown_time(making)} "
        f"| {shown_size(whole.footprint.total)} | {shown_time(whole.seconds)} ({whole.variants} variants) "
        f"| {shown_time(whole.loading)} |"
    )


def _bytes(config: Config, graph: Graph) -> int:
    return sum(entry.bytes for entry in Synthetic(config, graph, 0).entries.values())


def _graph(folder: Path, model: str, fields: dict[str, Any]) -> tuple[Graph, Config]:
    base, changes = WHOLE[model]
    config = json.loads(shipped("configs", "json")[base].read_text("utf-8"))
    path = folder / "config.json"
    path.write_text(json.dumps({**config, **changes, **fields}), "utf-8")
    return expand(Config(path)), Config(path)


def _estimated(weights: WeightStore, plan: Plan, sequences: int) -> Footprint:
    walker = Walker(name="one", plan=plan, schedule=MicroBatches(sequences))
    return estimate([walker], weights, sequences, _ids(sequences).shape[1])


def _ids(sequences: int) -> torch.Tensor:
    length = TOKENS if sequences > 1 else TOKENS // 2
    return torch.randint(0, 512, (sequences, length), generator=torch.Generator().manual_seed(0))


if __name__ == "__main__":
    sys.exit(main())
