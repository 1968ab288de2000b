"""How often a record is said not to be reproduced, of what an honest engine and of what a wrong one would record.

    python -m benchmarks.records [--draws 24] [--trials 300]

On recipes/rounding.yaml, a trained checkpoint in bf16, with its reference as the engine: its combine adds in an order
that can be drawn. An honest engine has another drawn order than the two that its floor consists of; a wrong one has one
of the candidate's choices. Shares are of random triples of draws, of all sequences and of four of them.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.turns import header
from moeparity.bisection.floor.measure import drawn
from moeparity.bisection.prepare import prepare
from moeparity.bisection.record.compare import Compared
from moeparity.bisection.record.last_digit import ARITHMETIC
from moeparity.bisection.record.observe import chosen_logprobs
from moeparity.bisection.study import Study
from moeparity.bisection.trials import alone, toggle_trials, walker
from moeparity.engine.view import NodeView
from moeparity.engine.walker import WalkerName
from moeparity.plan.sides import REFERENCE, Side

RECIPE = Path(__file__).parents[1] / "recipes" / "rounding.yaml"


class _LogProbs:
    """log P of the scored tokens, fp64 [N], by walker."""

    def __init__(self, study: Study, names: Sequence[WalkerName]) -> None:
        self.names, self.output = names, study.model.graph.scores
        self.ids, _, self.mask = study.tokens_on_device
        self.parts: dict[WalkerName, list[Tensor]] = {name: [] for name in names}

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name == self.output:
            rows = slice(*view.wave)
            for name in self.names:
                self.parts[name].append(chosen_logprobs(view.tensor(name), self.ids[rows], self.mask[rows]).cpu())


def log_probs(study: Study, draws: int) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """Of the reference, of its drawn orders, and of the reference with each of the candidate's choices alone."""
    sides: dict[WalkerName, Side] = {REFERENCE: study.reference}
    for seed in range(draws):
        settings = drawn(study.reference.plan, seed)
        assert settings is not None, "the reference has orders to draw"
        sides[f"draw {seed}"] = replace(study.reference, plan=settings)
    wrong = {
        toggle.name: trial.side
        for toggle in study.toggles
        if (trial := toggle_trials(study, [toggle])[0].get(alone(toggle))) is not None
    }
    observer = _LogProbs(study, [*sides, *wrong])
    study.passes().run([walker(study, name, side) for name, side in {**sides, **wrong}.items()], [observer])
    values = {name: torch.cat(parts) for name, parts in observer.parts.items()}
    return values[REFERENCE], [values[f"draw {seed}"] for seed in range(draws)], {name: values[name] for name in wrong}


def not_reproduced(study: Study, recomputed: Tensor, record: Tensor, floor: Sequence[Tensor], sequences: int) -> bool:
    """Whether the reference is said not to reproduce a record, on the first scored tokens of so many sequences."""
    sequence, position = study.tokens.loss_mask.nonzero(as_tuple=True)
    keep = sequence < sequences
    floors = {str(i): (draw - recomputed).abs()[keep] for i, draw in enumerate(floor)}
    compared = Compared(
        sequence=sequence[keep],
        position=position[keep],
        delta=(record - recomputed).abs()[keep],
        half_unit=torch.full_like(recomputed[keep], ARITHMETIC),
        floors=floors,
        loudest=max(float(values.max()) for values in floors.values()),
    )
    return not compared.reproduced


def main() -> int:
    """Print the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=24)
    parser.add_argument("--trials", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(header(1))
    study, chance = prepare(RECIPE, device="cpu"), random.Random(0)  # noqa: S311
    recomputed, draws, wrong = log_probs(study, arguments.draws)
    total = len(study.tokens.input_ids)
    for sequences in (total, 4):
        triples = [chance.sample(draws, 3) for _ in range(arguments.trials)]
        alarms = sum(not_reproduced(study, recomputed, record, floor, sequences) for record, *floor in triples)
        print(f"{sequences} sequences, another legal order: not reproduced {alarms / arguments.trials:.1%}")
    for name, record in wrong.items():
        pairs = [chance.sample(draws, 2) for _ in range(arguments.trials // 10)]
        detected = sum(not_reproduced(study, recomputed, record, floor, total) for floor in pairs)
        print(f"{total} sequences, the candidate's {name}: not reproduced {detected / len(pairs):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
