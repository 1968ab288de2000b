"""What trials cost that differ only in the last layer of a deep checkpoint, whose head costs less than half a layer.

    python -m benchmarks.late [--threads 2] [--layers 24] [--repeats 5]

One pass of the reference and 12 trials is compared with one forward of the reference alone, and with the counted ideal:
every distinct piece of work once, each at what it cost in the same process when walkers ran alone. Everything runs on
the same resident weights, in turn; the best of some repeats counts. Exits with 1 when the pass takes more than twice as
long as one forward, or more than 1.15 times the ideal.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import lockstep
from benchmarks.turns import header
from moeparity.bisection.observers import Changes, Logits, Routes
from moeparity.engine.lockstep import Counts, run
from moeparity.engine.view import NodeView, Observer
from moeparity.engine.walker import Walker
from moeparity.inputs.model import Model, open_model
from moeparity.metrics.tokens import first_occurrences
from moeparity.ops.attribute import Value
from moeparity.plan.graph import Node
from moeparity.progress import Progress

LAYERS, VOCAB = 24, 1024
SEQUENCES, TOKENS = 4, 256
AGAINST_FORWARD, AGAINST_IDEAL = 2.0, 1.15

TRIALS: list[dict[str, Value]] = [
    {f"layers[-1].{site}": dtype}
    for dtype in ("fp32", "fp16")
    for site in (
        "attention.rope:products",
        "attention.attend:probabilities",
        "moe.experts:activation",
        "moe.router:weights",
        "moe.combine:accumulate",
        "moe.combine:weighted",
    )
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of the passes: one forward, all walkers, all walkers with observers; and of the ideal.

    `head` is the share of a layer that the nodes after the layers cost.
    """

    forward: float
    together: float
    observed: float
    ideal: float
    head: float
    evaluations: int


def main() -> int:
    """Measure, print, judge."""
    options = _options()
    torch.set_num_threads(options.threads)
    print(header(options.threads))
    print(
        f"{options.layers} layers of hidden {lockstep.HIDDEN}, {lockstep.EXPERTS} experts, vocabulary {VOCAB}, ", end=""
    )
    print(f"{SEQUENCES} x {TOKENS} tokens, bf16, best of {options.repeats}")
    lockstep.LAYERS, lockstep.VOCAB, lockstep.SEQUENCES, lockstep.TOKENS = options.layers, VOCAB, SEQUENCES, TOKENS
    with tempfile.TemporaryDirectory() as folder:
        lockstep.write_checkpoint(Path(folder))
        model = open_model(folder, device="cpu", residency="resident")
        reference, _, *trials = lockstep.walkers(model, TRIALS)
        cost = measure(model, [reference, *trials], options.repeats)
    forward, ideal = cost.together / cost.forward, cost.together / cost.ideal
    print(f"one forward {cost.forward:.3f} s; the head costs {cost.head:.2f} of a layer")
    print(f"reference and {len(TRIALS)} trials {cost.together:.3f} s: {forward:.2f} of one forward; ", end="")
    print(f"counted ideal {cost.ideal:.3f} s ({cost.evaluations} op evaluations): {ideal:.2f} of it")
    print(f"with what a bisection looks at {cost.observed:.3f} s: {cost.observed / cost.forward:.2f} of one forward")
    return int(forward > AGAINST_FORWARD or ideal > AGAINST_IDEAL or cost.head >= 0.5)


def measure(model: Model, walkers: Sequence[Walker], repeats: int) -> Measured:
    """All of it in turn, after one round that fills caches."""
    names = [walker.name for walker in walkers]
    forward, together, observed = [], [], []
    rounds: list[dict[tuple[str, str], float]] = []
    counts = Counts()
    for repeat in range(repeats + 1):
        times: dict[tuple[str, str], float] = {}
        alone = [timed(model, [walker], [], times) for walker in walkers]
        counts, seconds = timed(model, walkers, [], None)
        observation = timed(model, walkers, observers(model, names), None)[1]
        if repeat:
            forward.append(timed(model, walkers[:1], [], None)[1])
            together.append(seconds)
            observed.append(observation)
            rounds.append(times)
        assert all(sum(part.evaluations.values()) == len(model.graph.nodes) for part, _ in alone)
    places = distinct(model, walkers)
    return Measured(
        forward=min(forward),
        together=min(together),
        observed=min(observed),
        # The best round, as of the passes: the best of each node would be less than any round attains.
        ideal=min(sum(times[place] for place in places) for times in rounds),
        head=statistics.median(_share_of_head(model, walkers[0].name, times) for times in rounds),
        evaluations=sum(counts.evaluations.values()),
    )


def distinct(model: Model, walkers: Sequence[Walker]) -> list[tuple[str, str]]:
    """One (walker, node) for every distinct piece of work: equal bits of all inputs read, and equal numerics.

    Counted from the bits themselves by an observer of its own, not by the engine's counters.
    """
    count = _Distinct(walkers)
    run(walkers, model.weights, lockstep.tokens(model.vocab_size), [count])
    return count.places


class _Distinct:
    def __init__(self, walkers: Sequence[Walker]) -> None:
        self.walkers = walkers
        self.places: list[tuple[str, str]] = []

    def see(self, view: NodeView) -> None:
        work_met: set[object] = set()
        for walker in self.walkers:
            inputs = tuple(None if b is None else tuple(block.ids for block in b) for b in view.inputs[walker.name])
            work = (inputs, tuple(walker.plan.active(view.node).items()))
            if work not in work_met:
                work_met.add(work)
                self.places.append((walker.name, view.node.name))


def _share_of_head(model: Model, walker: str, cost: dict[tuple[str, str], float]) -> float:
    def spent(nodes: Sequence[Node]) -> float:
        return sum(cost[walker, node.name] for node in nodes)

    layers = [spent(segment.nodes) for segment in model.graph.segments[1:-1]]
    return spent(model.graph.segments[-1].nodes) / statistics.median(layers)


def observers(model: Model, names: Sequence[str]) -> list[Observer]:
    """What a pass of trials looks at: where bits change, routes, and the metrics of the logits."""
    ids = lockstep.tokens(model.vocab_size)
    scored = torch.ones_like(ids, dtype=torch.bool)
    return [
        Changes([(name, names[0]) for name in names[1:]]),
        Routes(names[0], names[1:], scored),
        Logits(model.graph.scores, names[0], names[1:], ids, scored, "candidate", first_occurrences(ids, scored)),
    ]


def timed(
    model: Model, walkers: Sequence[Walker], observers: Sequence[Observer], nodes: dict[tuple[str, str], float] | None
) -> tuple[Counts, float]:
    """One pass and its seconds; with `nodes` also those of each node, for a single walker."""
    last = started = time.perf_counter()

    def spent(progress: Progress) -> None:
        nonlocal last
        now_s = time.perf_counter()
        assert nodes is not None
        nodes[walkers[0].name, model.graph.nodes[progress.done - 1].name] = now_s - last
        last = now_s

    counts = run(
        walkers, model.weights, lockstep.tokens(model.vocab_size), observers, progress=None if nodes is None else spent
    )
    return counts, time.perf_counter() - started


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
