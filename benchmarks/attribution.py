"""What an attribution costs: mixtures of both sides in one pass, over toggles and over layers.

    python -m benchmarks.attribution [--threads 2] [--repeats 3] [--plot docs/generated/attribution-cost.svg]

Every toggle thrown alone and left out alone, as the search asks for first, on the layers of one checkpoint family.
Evaluations are set beside the counted ideal (every distinct piece of work once, counted from the bits that kernels
read, by an observer of its own) and beside as many separate forwards; seconds beside one forward of the reference. All
in this process on resident weights, in turn; the best of some repeats counts.

The table holds evaluations, which no load of the machine changes, and `--plot` draws them over toggles for each number
of layers; seconds, as multiples of one forward, go to stderr.

Exits with 1 where a batch takes more than one pass over the weights, or more than 1.15 times the ideal.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks import late, lockstep
from benchmarks.turns import header
from moeparity.bisection.mixtures import Mixtures
from moeparity.bisection.options import Options
from moeparity.bisection.prepare import prepare
from moeparity.bisection.study import Study
from moeparity.engine.walker import Walker
from moeparity.inputs.model import open_model
from moeparity.plan.sides import micro_batches
from moeparity.plan.toggles import mixed
from moeparity.search.memo import Mixture

TOGGLES, LAYERS = (4, 8, 16), (2, 4, 8)
SEQUENCES, TOKENS, VOCAB = 2, 32, 1024
AGAINST_IDEAL = 1.15

SITES = (
    "attention.rope:products",
    "moe.combine:accumulate",
    "attention.attend:probabilities",
    "moe.experts:activation",
    "attention.attend:scores",
    "moe.router:weights",
    "attention.norm:normalized",
    "moe.norm:normalized",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One batch of mixtures: its evaluations and seconds, the counted ideal, and one forward of the reference."""

    mixtures: int
    passes: int
    evaluations: int
    ideal: int
    forward: int
    seconds: float
    forward_seconds: float


def main() -> int:
    """Measure every size, print a row each, judge."""
    options = _options()
    torch.set_num_threads(options.threads)
    print(header(options.threads))
    print(f"hidden {lockstep.HIDDEN}, {lockstep.EXPERTS} experts, {SEQUENCES} x {TOKENS} tokens, bf16")
    columns = ("toggles", "layers", "mixtures", "evaluations", "of as many separate forwards", "of the counted ideal")
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    fine = True
    curves: dict[int, list[Measured]] = {layers: [] for layers in LAYERS}
    for layers, toggles in product(LAYERS, TOGGLES):
        with tempfile.TemporaryDirectory() as folder:
            point = measure(planned(Path(folder), layers, toggles), options.repeats)
        curves[layers].append(point)
        of_ideal = point.evaluations / point.ideal
        fine &= point.passes == 1 and of_ideal <= AGAINST_IDEAL
        of_separate = point.evaluations / (point.forward * (1 + point.mixtures))
        print(
            f"| {toggles} | {layers} | {point.mixtures} | {point.evaluations} | {of_separate:.2f} | {of_ideal:.3f} |",
            flush=True,
        )
        print(
            f"{toggles} toggles, {layers} layers: {point.evaluations / point.forward:.2f} forwards in evaluations, "
            f"{point.seconds / point.forward_seconds:.2f} in seconds",
            file=sys.stderr,
        )
    if options.plot is not None:
        plot(curves, options.plot)
    return 0 if fine else 1


def plot(curves: dict[int, list[Measured]], path: Path) -> None:
    """Evaluations of one batch, in forwards of the reference, over toggles; dashed: as many separate forwards."""
    # Asked for with --plot only; it comes with the extra `plot`.
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for layers, of_layers in curves.items():
        cost = [point.evaluations / point.forward for point in of_layers]
        axes.plot(TOGGLES, cost, marker="o", label=f"{layers} layers")
    separate = [1 + point.mixtures for point in curves[LAYERS[0]]]
    axes.plot(TOGGLES, separate, linestyle="--", color="grey", label="separate forwards")
    axes.set(xlabel="toggles", ylabel="op evaluations, in forwards", xticks=TOGGLES, ylim=0)
    axes.set_title("each toggle alone and restored, one pass over the weights", fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def planned(folder: Path, layers: int, toggles: int) -> Study:
    """A checkpoint of so many layers, and a recipe whose sides differ in so many choices, spread over the layers."""
    lockstep.LAYERS, lockstep.VOCAB, lockstep.SEQUENCES, lockstep.TOKENS = layers, VOCAB, SEQUENCES, TOKENS
    lockstep.write_checkpoint(folder)
    save_file({"input_ids": lockstep.tokens(VOCAB)}, folder / "tokens.safetensors")
    # Two dtypes at each site give as many toggles as two layers hold.
    places = {
        f"layers[{i * layers // toggles}].{SITES[i % len(SITES)]}": "fp32" if i < len(SITES) else "fp16"
        for i in range(toggles)
    }
    side = {"profile": "hf-eager", "micro_batch": SEQUENCES}
    recipe = {
        "kind": "recipe",
        "checkpoint": ".",
        "tokens": {"file": "tokens.safetensors", "sampled_from": "candidate"},
        "reference": side,
        "candidate": {**side, "set": places},
        "gate": {"metric": "k3", "below": 1e-4},
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe), "utf-8")
    options = Options(memory_limit=float("inf"))
    study = prepare(
        folder / "recipe.yaml",
        device="cpu",
        options=options,
        opener=lambda at, **_: open_model(at, device="cpu", residency="resident"),
    )
    assert len(study.toggles) == toggles, [toggle.name for toggle in study.toggles]
    return study


def measure(study: Study, repeats: int) -> Measured:
    """The best of some repeats of the batch and of one forward, after one round that fills caches."""
    mixtures = list(asks(study))
    batches, forwards = [], []
    for repeat in range(repeats + 1):
        batch, forward = Mixtures(study), Mixtures(study)
        forward([frozenset()])
        batch(mixtures)
        if repeat:
            batches.append(batch)
            forwards.append(forward)
    best = min(batches, key=lambda oracle: oracle.seconds)
    return Measured(
        mixtures=len(mixtures),
        passes=best.passes,
        evaluations=best.counts.evaluations.total(),
        ideal=len(late.distinct(study.model, walkers(study, mixtures))),
        forward=len(study.model.graph.nodes),
        seconds=best.seconds,
        forward_seconds=min(oracle.seconds for oracle in forwards),
    )


def asks(study: Study) -> Iterator[Mixture]:
    """Every toggle alone, and all but each."""
    names = frozenset(toggle.name for toggle in study.toggles)
    yield from (frozenset({name}) for name in sorted(names))
    yield from (names - {name} for name in sorted(names))


def walkers(study: Study, mixtures: list[Mixture]) -> list[Walker]:
    """The reference and the mixtures, for the count of the ideal."""
    sides = [study.reference]
    sides += [
        mixed(study.reference, [toggle for toggle in study.toggles if toggle.name in mixture], study.candidate)
        for mixture in mixtures
    ]
    return [Walker(name=str(i), plan=side.plan, schedule=micro_batches(side)) for i, side in enumerate(sides)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
