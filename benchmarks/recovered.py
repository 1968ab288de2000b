"""Whether `moeparity explain` finds choices that were drawn, and the values of shipped profiles: `docs/explain.md`.

Choices: so many listed ones at a node, of which each changes some bit beside the others, drawn by a seed. Profiles:
what every node of one layer computes under each shipped profile, without that any profile is tried as a whole.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import torch

from moeparity.documents.checked import shipped
from moeparity.errors import MoeparityError
from moeparity.evidence.explain.observation import Observation
from moeparity.inputs.model import Model
from tests.checkpoint_factory import make_small
from tests.evidence.explain.observed import bound, drawn, explain, opened, planted, seen_under

COUNTS = (2, 3, 4)
SHAPE = (1, 12)
"""Sequences and tokens of the one micro-batch."""
LAYER = 1
DEAREST = 10.0
Row = tuple[str, str]


def of_choices(model: Model, seeds: range) -> Iterator[tuple[Row, bool, str]]:
    """By op and number of choices, whether drawn choices are explained; and which they were."""
    plan = bound(model, "hf-eager")
    for name, observed in seen_under(model, plan, SHAPE).items():
        if observed.node.layer not in {None, LAYER}:
            continue
        for count in COUNTS:
            for seed in seeds:
                choices = drawn(plan, observed, count, f"{name} {count} {seed}", DEAREST)
                plant = None if choices is None else planted(plan, observed, choices)
                if choices is None or plant is None:
                    continue
                answer = explain(plan, name, [plant[0]], observed.loaded)
                row = (observed.node.op.name, str(count))
                yield row, answer.explained, f"{name} {sorted((p[1], v) for p, v in choices)}"


def of_profiles(model: Model) -> Iterator[tuple[Row, bool, str]]:
    """By op, whether what a shipped profile's node computes is explained from hf-eager on; equal choices once."""
    plan, done = bound(model, "hf-eager"), set()
    for profile in shipped("profiles"):
        try:
            theirs = bound(model, profile)
            nodes = seen_under(model, theirs, SHAPE)
        except MoeparityError:
            # Its placement does not fit the small model.
            continue
        for name, observed in nodes.items():
            choices = (name, str(theirs.active(observed.node)), str(theirs.told_to(observed.node)))
            if (
                observed.node.layer not in {None, LAYER}
                or choices in done
                or theirs.partials[observed.node.values[0]] > 1
            ):
                continue
            done.add(choices)
            answer = explain(plan, name, [Observation(values=observed.values)], observed.loaded)
            yield (observed.node.op.name, "profiles"), answer.explained, f"{profile} {name}"


def main() -> None:
    """Read the command line, run the cases, print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovered", description=__doc__)
    parser.add_argument("--model", default="qwen3_moe", help="a small model of the tests (default: qwen3_moe)")
    parser.add_argument("--seeds", type=int, default=1, help="draws of each number of choices at a node (default: 1)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[Row] = Counter()
    explained: Counter[Row] = Counter()
    with (
        tempfile.TemporaryDirectory() as scratch,
        torch.inference_mode(),
        patch("moeparity.evidence.explain.inquiry.profiles_choices", lambda _: ()),
    ):
        model = opened(make_small(options.model, Path(scratch)))
        for cases in (of_profiles(model), of_choices(model, range(options.seeds))):
            for row, is_explained, words in cases:
                counts[row] += 1
                explained[row] += is_explained
                if not is_explained:
                    print(f"not explained: {words}", flush=True)
    columns = ["profiles", *map(str, COUNTS)]
    print(f"\n| op | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for op in [*sorted({op for op, _ in counts}), "all"]:
        rows = {c: [row for row in counts if row[1] == c and op in {"all", row[0]}] for c in columns}
        cells = [f"{sum(explained[r] for r in rows[c])} of {sum(counts[r] for r in rows[c])}" for c in columns]
        print(f"| {op} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
