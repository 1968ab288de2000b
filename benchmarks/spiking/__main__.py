"""Where tokens spike over draws of the same sums, in small models of several shapes, and what ends their spikes.

    OMP_NUM_THREADS=1 python -m benchmarks.spiking [--folder /tmp/spiking] [--out docs/generated/spiking.md]

Five shapes, each trained with some seeds on the same bytes (a minute or two each on one free core), and the shipped
quickstart. What an all-reduce over ranks and the experts' sum add is drawn in order of arrival, and `moeparity bisect`
says which tokens spike and why. A folder keeps models and figures, so that a run goes on where it was left.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.spiking.page import page
from benchmarks.spiking.runs import DRAWS, NEW_TOKENS, SEQUENCES, Figures, Size, run, sums
from benchmarks.spiking.shapes import SHAPES, STEPS, Shape, held_out_loss, trained
from scripts.train_quickstart.corpus import Corpus, load_corpus

SEEDS = 4
QUICKSTART = Path("checkpoints/quickstart")


def main() -> int:
    """Train, draw, write the page."""
    options = _options()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        size = Size(sequences=options.sequences, new_tokens=options.new_tokens, draws=options.draws)
        shapes = [shape for shape in SHAPES if not options.shape or shape.name in options.shape]
        figures = tuple(_all(shapes, options, folder, size))
    text = page(figures, size, options.steps)
    if options.out:
        Path(options.out).write_text(text, "utf-8")
    else:
        print(text)
    return 0


def _all(shapes: Sequence[Shape], options: argparse.Namespace, folder: Path, size: Size) -> Iterator[Figures]:
    corpus = load_corpus()
    for shape in shapes:
        for seed in range(min(shape.seeds, options.seeds)):
            checkpoint = folder / shape.folder(seed)
            if not (checkpoint / "config.json").exists():
                trained(shape, corpus, checkpoint, seed, options.steps)
            yield from _of_model(shape, seed, checkpoint, corpus, folder, size)
    if not options.shape:
        yield from _of_model(SHAPES[0], None, QUICKSTART, corpus, folder, size)


def _of_model(
    shape: Shape, seed: int | None, checkpoint: Path, corpus: Corpus, folder: Path, size: Size
) -> Iterator[Figures]:
    """The figures of one model under each of its sums; those that the folder has are read."""
    for of_sum in sums(shape):
        figures_file = folder / f"{checkpoint.name}-{of_sum.replace(' ', '-')}.json"
        if not figures_file.exists():
            loss = held_out_loss(checkpoint, corpus)
            name = "quickstart" if seed is None else shape.name
            figures = run(name, seed, checkpoint, of_sum, loss, folder / "run", size)
            figures_file.write_text(json.dumps(asdict(figures)), "utf-8")
            print(f"{name}, seed {seed}, {of_sum}: {figures.spikes} spikes", file=sys.stderr, flush=True)
        yield Figures(**json.loads(figures_file.read_text("utf-8")))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="keeps models and figures; without it they are lost at the end")
    parser.add_argument("--out", help="the page to write; without it it is printed")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="most models of each shape")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps of each model")
    parser.add_argument("--sequences", type=int, default=SEQUENCES)
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--shape", action="append", help="only this shape; may be given several times")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
