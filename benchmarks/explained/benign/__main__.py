"""Score, ask, print the table: `python -m benchmarks.explained.benign [--folder DIR] [--runs N] [--out FILE]`.

What DIR has an answer of is not asked again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.explained.benign.runs import CHANGES, MODELS, Said, answers_of_run
from moeparity.inputs.machine import cpu_name
from tests.checkpoint_factory import make_random
from tests.hf.reference import load
from tests.small_models import SMALL

SEED, RUNS, LAYERS = 20261127, 300, 2
READING = """\
transformers scores drawn sequences, and the same ones again where nothing is wrong: in other micro-batches, one by one,
in another order, with other padding, beside other sequences, the first tokens of each alone, one token alone, as a
prompt and steps of decoding with a cache, all in one row (a pack), on two threads, after another model has run in the
process, or just again. Positions are counted in each sequence, as trainers hand them over: left to itself, transformers
counts from the first column, and behind padding at the left other rotations are taken. Both runs are captured, modules
and ops. `moeparity diff` is given both, and nothing else; `moeparity explain` the second, the checkpoint and the
program's own profile, and is asked for no search.

- *fails*: `diff` says that values differ. In other company a GEMM has another number of rows, and may add in another
  order. *inside*: of these, how often other orders of the same sums explain all starts. *outside*: `diff` says that
  none explains some start. *inconclusive*: it could not compare all that there is.
- *accused*: runs of which `explain` calls some node another than the profile says. There should be none.
"""


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explained.benign", description=__doc__)
    parser.add_argument("--folder", type=Path, help="keep checkpoints and answers here (default: nowhere)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--out", type=Path, help="write the page, as Markdown, to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        every = list(answers(options.folder or Path(scratch), options.seed, options.runs))
    where = f"{cpu_name()}, one thread, torch {torch.__version__}, {datetime.now(UTC):%Y-%m-%d}, seed {options.seed}"
    text = page(every, where)
    print(text)
    if options.out is not None:
        options.out.write_text(text, "utf-8")


def answers(folder: Path, seed: int, runs: int) -> Iterator[Said]:
    """What is said of each run, in its own file in `folder`; models and changes take turns."""
    folder.mkdir(parents=True, exist_ok=True)
    by_model: dict[str, Path] = {}
    for model in MODELS:
        by_model[model] = folder / model
        if not by_model[model].exists():
            make_random({**SMALL[model], "num_hidden_layers": LAYERS}, by_model[model])
    for number in range(runs):
        file, model = folder / f"{number}.json", MODELS[number % len(MODELS)]
        if not file.exists():
            with tempfile.TemporaryDirectory() as scratch:
                program, before = (
                    load(by_model[name], "hf-eager", torch.bfloat16)
                    for name in (model, MODELS[(number + 1) % len(MODELS)])
                )
                run = answers_of_run(number, seed, program, model, by_model[model], Path(scratch), before)
                file.write_text(run.as_json(), "utf-8")
        yield Said.of_json(file.read_text("utf-8"))


def page(every: Sequence[Said], where: str) -> str:
    """The whole page as Markdown."""
    parts = [
        "# Runs in which nothing is wrong",
        f"Written by `python -m scripts.pages benign`; {where}.",
        READING.strip(),
        "\n".join([*_HEAD, *(_row(change, [s for s in every if s.change == change]) for change in CHANGES)]),
        "\n".join([*_HEAD, *(_row(model, [s for s in every if s.model == model]) for model in MODELS)]),
        _together(every),
        *_accusations(every),
    ]
    return "\n\n".join(parts) + "\n"


_HEAD = (
    "| runs | number | pass | inconclusive | fails | inside | outside | accused |",
    "|---|---|---|---|---|---|---|---|",
)


def _row(words: str, some: Sequence[Said]) -> str:
    statuses = Counter(each.status for each in some)
    counts = [len(some), *(statuses[status] for status in ("pass", "inconclusive", "fail"))]
    verdicts = [
        sum(each.inside for each in some),
        sum(each.outside for each in some),
        sum(bool(s.accused) for s in some),
    ]
    return f"| {words} | {' | '.join(map(str, [*counts, *verdicts]))} |"


def _together(every: Sequence[Said]) -> str:
    accused, outside = sum(bool(s.accused) for s in every), sum(s.outside for s in every)
    nodes = sum(s.nodes for s in every)
    return (
        f"Together {len(every)} runs, {nodes} nodes compared by `explain`; accused in {accused}, outside in {outside}."
    )


def _accusations(every: Sequence[Said]) -> Iterator[str]:
    wrong = [run for run in every if run.accused]
    if wrong:
        rows = [f"| {each.model} | {each.change} | {', '.join(each.accused)} |" for each in wrong]
        yield "\n".join(["| model | run | accused |", "|---|---|---|", *rows])


if __name__ == "__main__":
    main()
