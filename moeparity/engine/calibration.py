"""Measures how fast a machine's kernels, copies and random numbers are: the rates that an estimate of time is made
with.

The rates are fitted to passes over two layers of made-up weights, as wide as those of models of 30B and 235B parameters
but with fewer experts, with few tokens and with many.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from moeparity.documents.checked import shipped
from moeparity.engine.duration import (
    CALLS,
    DRAWN,
    FASTEST,
    MADE,
    Amount,
    Amounts,
    Rates,
    amounts_of_loading,
)
from moeparity.engine.footprint import estimate
from moeparity.engine.lockstep import run
from moeparity.engine.walker import Walker
from moeparity.errors import Where
from moeparity.inputs.machine import keep_freed_memory
from moeparity.inputs.weights.store import WeightStore
from moeparity.inputs.weights.synthetic import Synthetic
from moeparity.plan.bind import bind
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.expand import expand
from moeparity.plan.schedule.steps import MicroBatches

Clock = Callable[[], float]

_LAYERS: tuple[dict[str, Any], ...] = (
    {"hidden_size": 2048, "moe_intermediate_size": 768, "num_attention_heads": 32, "num_experts": 48},
    {"hidden_size": 4096, "moe_intermediate_size": 1536, "num_attention_heads": 64, "num_experts": 12},
)
"""Both are larger than a processor's caches, so that weights come from memory, as those of a whole model do."""
_TOKENS = ((1, 1), (1, 64), (2, 256))
_REPEATS = 2
_DRAWN_IN = ("bf16",)


def measured_rates(dtypes: Sequence[str], device: torch.device, *, clock: Clock = time.perf_counter) -> Rates:
    """The rates of this machine; measuring them takes some seconds. `clock` gives wall time or processor time."""
    keep_freed_memory()
    rows: list[tuple[Amounts, float]] = []
    seconds: dict[Amount, float] = {}
    for fields in _LAYERS:
        with tempfile.TemporaryDirectory() as folder:
            weights = _weights(Path(folder), fields, device)
        seconds |= _of_making(weights, clock)
        for dtype in dtypes:
            # Further dtypes differ only in their GEMMs.
            rows += _of_passes(weights, dtype, clock, _TOKENS if dtype == dtypes[0] else _TOKENS[1:2])
    fitted = _fitted(rows)
    # On a busy machine the fit may leave no time for calls.
    calls = max(fitted.get((CALLS, ""), 0.0), FASTEST[device.type].seconds[CALLS, ""])
    return Rates(seconds=seconds | fitted | {(CALLS, ""): calls})


def _weights(folder: Path, fields: dict[str, Any], device: torch.device) -> WeightStore:
    config = json.loads(shipped("configs", "json")["qwen3_moe"].read_text("utf-8"))
    config |= {"num_hidden_layers": 1, "vocab_size": 512, "num_experts_per_tok": 6, **fields}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    graph = expand(Config(folder / "config.json"))
    return WeightStore(Synthetic(Config(folder / "config.json"), graph, 0), graph, device, "resident")


def _of_making(weights: WeightStore, clock: Clock) -> dict[Amount, float]:
    """The seconds to draw one number, and to copy one byte of a weight. It leaves all weights loaded."""
    tensor = weights.checkpoint.tensor(max(weights.checkpoint.entries, key=_size_in(weights)))
    start = clock()
    stack = torch.empty((16, *tensor.shape), dtype=tensor.dtype, device=weights.device)
    # A pass fills fresh memory for its first two layers, and the same again for all others.
    for _ in range(2):
        for part in stack:
            part.copy_(tensor)
    byte = (clock() - start) / (2 * stack.nbytes)
    loading = amounts_of_loading(weights, _DRAWN_IN).of
    start = clock()
    for segment in weights.graph.segments:
        weights.load(segment, _DRAWN_IN)
    drawing = max(clock() - start - loading[MADE, ""] * byte, 0)
    return {(DRAWN, ""): drawing / loading[DRAWN, ""], (MADE, ""): byte}


def _size_in(weights: WeightStore) -> Callable[[str], int]:
    return lambda name: weights.checkpoint.entries[name].bytes


def _of_passes(
    weights: WeightStore, dtype: str, clock: Clock, tokens: Sequence[tuple[int, int]]
) -> Iterator[tuple[Amounts, float]]:
    """The work in some passes, and the seconds that each took: the least of several repetitions."""
    plan = bind(weights.graph, load_profile("hf-eager", Where(Path("calibration"))), dtype)
    for sequences, length in tokens:
        walker = Walker(name="calibration", plan=plan, schedule=MicroBatches(sequences))
        ids = torch.randint(0, 512, (sequences, length), generator=torch.Generator().manual_seed(0))
        times = []
        for _ in range(_REPEATS + 1):
            start = clock()
            run([walker], weights, ids.to(weights.device), [])
            times.append(clock() - start)
        yield estimate([walker], weights, sequences, length).amounts, min(times[1:])


def _fitted(rows: Sequence[tuple[Amounts, float]]) -> dict[Amount, float]:
    """Seconds per unit of each amount, none below 0, that give the least sum of squared relative errors."""
    amounts = list(
        dict.fromkeys(amount for row, _ in rows for amount in row.of if any(r.of.get(amount) for r, _ in rows))
    )
    shares = torch.tensor([[row.of.get(amount, 0) / seconds for amount in amounts] for row, seconds in rows]).double()
    scale = shares.amax(0)
    positive = list(range(len(amounts)))
    while True:
        solution = torch.linalg.lstsq((shares / scale)[:, positive], torch.ones(len(rows), 1).double()).solution[:, 0]
        if bool((solution >= 0).all()):
            return {amounts[i]: float(x / scale[i]) for i, x in zip(positive, solution, strict=True)}
        del positive[int(solution.argmin())]
