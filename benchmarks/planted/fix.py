"""Fix the truth of the decoy cases, before moeparity runs: `python -m benchmarks.planted.fix --cases 160`.

A draw becomes a checkpoint; from what its attributes cost one at a time some of like size are chosen to matter; tokens
are sampled from the candidate; and every mixture of both sides is evaluated (`factorial.py`), over twice the sequences
that moeparity will be given. From these it is judged who is a culprit (`truth.py`). A draw whose truth is unclear is
drawn again, and how often is kept. Free of moeparity.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.planted import checkpoints
from benchmarks.planted.cases import (
    CHUNKS,
    FIRST,
    LAYERS,
    LEAST,
    SEQUENCES,
    TOKENS,
    Case,
    Draft,
    Planted,
    background,
    compatible,
    draw,
)
from benchmarks.planted.cases import read as read_case
from benchmarks.planted.factorial import Toggle, divergence, factorial
from benchmarks.planted.program import Program, sample
from benchmarks.planted.truth import (
    SATURATED,
    STANDS_OUT,
    UNCLEAR_SATURATION,
    UNCLEAR_SHARE,
    Costs,
    Truth,
    judged,
    spread,
    unclear,
)
from benchmarks.planted.truth import read as read_truth

ALIKE, UNLIKE, SATURATING = (1.0, 2.2), (1.7, 3.5), (1.0, 1.5)
"""How far the costs of those chosen to matter lie apart, at least and at most, as factors of the first one's.

Two culprits of the same size would make half of the divergence alone, and leave half: where saturation begins.
"""


def fix(number: int, folder: Path) -> tuple[Case, Truth]:
    """Draw until the truth is clear. What is finished stays on disk and is not made again."""
    target = folder / f"{number:03}"
    if (target / "truth.json").exists():
        return load(target)
    reasons: list[str] = []
    while True:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            reason = make(draw(number, len(reasons), background(number)), Path(scratch))
            if not reason:
                (Path(scratch) / "redrawn.json").write_text(json.dumps(reasons), "utf-8")
                shutil.copytree(scratch, target)
                return load(target)
        reasons.append(reason)


def load(folder: Path) -> tuple[Case, Truth]:
    """A case that was fixed."""
    case, truth = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("case", "truth"))
    return read_case(case), read_truth(truth)


def make(draft: Draft, folder: Path) -> str:
    """Checkpoint, tokens, case and truth of a draw in a folder; the reason where it is drawn again."""
    case = draft.case
    checkpoints.write(
        folder / "checkpoint", case.family, seed=case.seed, layers=LAYERS, dtype=case.stored, damped=case.damped
    )
    program = Program(folder / "checkpoint", case.dtype)
    chosen = choose(draft, program)
    if chosen is None:
        return "too few of like size"
    case = draft.cast(chosen)
    if len(case.planted) < LEAST:
        return "too few attributes without effect"
    toggles = [Toggle(each.selector, each.attribute, each.reference, each.candidate) for each in case.planted]
    candidate = {toggle.key: toggle.candidate for toggle in toggles}
    ids = sample(program, candidate, sequences=SEQUENCES * CHUNKS, tokens=TOKENS, seed=case.seed)
    chunks = torch.split(ids, SEQUENCES)
    reason = _hopeless(program, toggles, chunks, case.background)
    if reason:
        return reason
    costs = np.concatenate([factorial(program, toggles, chunk) for chunk in chunks], 1) / (TOKENS - 1)
    truth = judged([toggle.key for toggle in toggles], costs, SEQUENCES)
    reason = unclear(truth, case.background)
    if not reason:
        save_file({"input_ids": chunks[0].contiguous()}, folder / "tokens.safetensors")
        (folder / "case.json").write_text(json.dumps(case.data(), indent=1), "utf-8")
        (folder / "truth.json").write_text(json.dumps(asdict(truth), indent=1), "utf-8")
    return reason


def choose(draft: Draft, program: Program) -> Sequence[Planted] | None:
    """As many as are wanted that cost about as much one at a time, on random tokens; None where there are too few.

    Where shares are to be resolved, costs that a few sequences make up are passed over.
    """
    generator = torch.Generator().manual_seed(draft.case.seed)
    ids = torch.randint(0, program.config["vocab_size"], (SEQUENCES, TOKENS), generator=generator)
    reference = program.logits(ids, {})
    chosen: list[Planted] = []
    first = 0.0
    least, most = SATURATING if draft.case.background == "bf16" else UNLIKE if draft.wanted == 2 else ALIKE
    for planted in draft.large if draft.wanted else ():
        if not compatible(planted, chosen):
            continue
        costs = divergence(program.logits(ids, {planted.key: planted.candidate}), reference)
        cost = float(costs.mean())
        resolved = draft.case.background == "bf16" or spread(costs, SEQUENCES) >= STANDS_OUT
        if cost > 0 and resolved and (not chosen or least <= max(cost / first, first / cost) <= most):
            first = first or cost
            chosen.append(planted)
        if len(chosen) == draft.wanted:
            break
    return chosen if len(chosen) == draft.wanted else None


def _hopeless(program: Program, toggles: Sequence[Toggle], chunks: Sequence[torch.Tensor], background: str) -> str:
    """Why the factorial is not worth its time, from each toggle alone and restored; empty where it may be."""
    if background == "clean":
        return ""
    reference = {toggle.key: toggle.reference for toggle in toggles}
    bases = [program.logits(chunk, reference) for chunk in chunks]

    def cost(moved: Sequence[Toggle]) -> Costs:
        mixture = {**reference, **{toggle.key: toggle.candidate for toggle in moved}}
        pairs = zip(chunks, bases, strict=True)
        return np.concatenate([divergence(program.logits(chunk, mixture), base) for chunk, base in pairs])

    whole = cost(toggles)
    for toggle in toggles:
        others = [rest for rest in toggles if rest is not toggle]
        alone, fall = cost([toggle]), whole - cost(others)
        smaller = min(alone.mean(), whole.mean() - fall.mean()) / max(whole.mean(), 1e-300)
        if UNCLEAR_SATURATION[0] < smaller < UNCLEAR_SATURATION[1]:
            return "near saturation"
        # As the share would be if all orders were like these two.
        share = (alone + fall) / 2
        large = background != "bf16" and smaller < SATURATED and share.mean() >= UNCLEAR_SHARE[1] * whole.mean()
        if large and min(spread(share, SEQUENCES), spread(fall, SEQUENCES)) < STANDS_OUT:
            return "lost in the spread over sequences"
    return ""


def main() -> None:
    """Fix the truth of so many cases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted.fix", description=__doc__)
    parser.add_argument("--cases", type=int, default=160)
    parser.add_argument("--first", type=int, default=FIRST)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "planted" / "decoys")
    parser.add_argument("--part", default="0/1", help="every n-th case from the k-th on, as k/n")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    start, step = map(int, options.part.split("/"))
    for number in range(options.first + start, options.first + options.cases, step):
        case, truth = fix(number, options.folder)
        print(
            f"{number:3} {case.background:5} {case.family:9} draw {case.attempt}, whole {truth.whole:.2g}, culprits "
            f"{sorted(truth.culprits)}, saturated {sorted(truth.saturated)}, {time.process_time():.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
