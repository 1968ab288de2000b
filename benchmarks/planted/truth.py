"""The truth of the decoy cases, fixed before moeparity runs: `python -m benchmarks.planted.truth --cases 150`.

For each case a draw is made into a checkpoint, tokens are sampled from the candidate, and every mixture of both sides is
evaluated (`factorial.py`), over twice the sequences that moeparity will be given. From these alone it is judged
who is a culprit. A draw whose truth is unclear is drawn again, and how often is told. Free of moeparity.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.planted import checkpoints
from benchmarks.planted.cases import CHUNKS, LAYERS, SEQUENCES, TOKENS, Background, Case, backgrounds, draw
from benchmarks.planted.factorial import Toggle, divergence, factorial, shapley
from benchmarks.planted.program import Program, sample

Costs = npt.NDArray[np.float64]

CULPRIT = 0.1
"""A culprit's share of the whole divergence is at least this; restoring it lowers the divergence."""
SATURATED = 0.5
"""Saturated toggles make at least this part of the divergence alone, and leave as much restored; at least two do."""
UNCLEAR_SHARE = (0.05, 0.15)
UNCLEAR_SATURATION = (0.4, 0.6)
STANDS_OUT = 4.0
"""A culprit's share, and what restoring it changes, are so many standard errors (of the given sequences) above 0."""
PATIENCE = 40
"""After so many draws a case takes any number of culprits."""
"""Where a draw lies too near to one of these lines to say on which side, it is drawn again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One toggle: nats per token over all sequences, and over those that moeparity is given.

    `spread`: how many standard errors of as many sequences as are given its share and its change lie from 0, the fewer
    of both, by the spread over all sequences. `idle`: no two mixtures that differ by it alone differ in any sequence.
    """

    key: str
    share: float
    given: float
    alone: float
    restored: float
    spread: float
    idle: bool
    culprit: bool
    saturated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is so. `whole` and `given` are the candidate's KL in nats per token, over all and over the given sequences."""

    whole: float
    given: float
    mixtures: int
    rows: tuple[Row, ...]

    @property
    def culprits(self) -> frozenset[str]:
        """Who is to blame alone."""
        return frozenset(row.key for row in self.rows if row.culprit)

    @property
    def saturated(self) -> frozenset[str]:
        """Who can stand in for each other."""
        return frozenset(row.key for row in self.rows if row.saturated)


def read(data: dict[str, object]) -> Truth:
    """The inverse of `asdict`."""
    rows = data["rows"]
    assert isinstance(rows, list)
    return Truth(**{**data, "rows": tuple(Row(**row) for row in rows)})  # type: ignore[arg-type]


def judged(keys: Sequence[str], costs: Costs, given: int) -> Truth:
    """The truth of the costs [2^n, B] of all mixtures, in nats per token; the first `given` sequences are moeparity's."""
    every, first = costs.mean(1), costs[:, :given].mean(1)
    all_of_them = len(every) - 1
    by_sequence, own = shapley(costs, len(keys)), shapley(first, len(keys))
    shares = by_sequence.mean(1)
    whole = every[all_of_them]
    alone = [every[1 << i] for i in range(len(keys))]
    restored = [every[all_of_them ^ 1 << i] for i in range(len(keys))]
    stand_in = [whole > 0 and min(pair) >= SATURATED * whole for pair in zip(alone, restored, strict=True)]
    rows = []
    for i, key in enumerate(keys):
        without = np.array([m for m in range(len(every)) if not m >> i & 1])
        saturated = bool(stand_in[i] and sum(stand_in) > 1)
        culprit = bool(whole > 0 and not saturated and shares[i] >= CULPRIT * whole and restored[i] < whole)
        rows.append(
            Row(
                key=key,
                share=float(shares[i]),
                given=float(own[i]),
                alone=float(alone[i]),
                restored=float(restored[i]),
                spread=min(spread(by_sequence[i], given), spread(costs[-1] - costs[all_of_them ^ 1 << i], given)),
                idle=bool((costs[without] == costs[without | 1 << i]).all()),
                culprit=culprit,
                saturated=saturated,
            )
        )
    return Truth(whole=float(whole), given=float(first[all_of_them]), mixtures=len(every), rows=tuple(rows))


def spread(values: Costs, given: int) -> float:
    """The mean over its standard error, if so many sequences were given; 0 where all are 0."""
    error = float(values.std(ddof=1)) / given**0.5
    return abs(float(values.mean())) / error if error else 0.0


def wanted(number: int, attempt: int) -> tuple[int, ...]:
    """How many culprits a case with resolvable shares is to have: each number as often, while draws last."""
    return (1 + number % 4,) if attempt < PATIENCE else (1, 2, 3, 4)


def unclear(truth: Truth, background: Background) -> str:
    """Why the truth is too near to a line, or not what the background asks for; empty where it is clear."""
    if background == "clean":
        return "" if all(row.idle for row in truth.rows) else "not clean"
    if truth.whole <= 0:
        return "nothing differs"
    for row in truth.rows:
        smaller = min(row.alone, row.restored) / truth.whole
        if UNCLEAR_SATURATION[0] < smaller < UNCLEAR_SATURATION[1]:
            return "near saturation"
        share = row.share / truth.whole
        if not row.saturated and UNCLEAR_SHARE[0] < abs(share) < UNCLEAR_SHARE[1]:
            return "share near a tenth"
        if row.culprit and row.spread < STANDS_OUT:
            return "lost in the spread over sequences"
        if not row.saturated and not row.culprit and share >= UNCLEAR_SHARE[1]:
            return "restoring it lowers nothing"
    if background == "bf16":
        return "" if 2 <= len(truth.saturated) <= 4 and not truth.culprits else "not saturated"
    return "" if 1 <= len(truth.culprits) <= 4 else "no culprit"


def make(case: Case, folder: Path, screen: bool = True) -> Truth | str:
    """The checkpoint, tokens and truth of one draw in a folder; the reason where the truth is not clear."""
    checkpoints.write(
        folder / "checkpoint", case.family, seed=case.seed, layers=LAYERS, dtype=case.stored, damped=case.damped
    )
    program = Program(folder / "checkpoint", case.dtype)
    toggles = [Toggle(each.selector, each.attribute, each.reference, each.candidate) for each in case.planted]
    candidate = {toggle.key: toggle.candidate for toggle in toggles}
    ids = sample(program, candidate, sequences=SEQUENCES * CHUNKS, tokens=TOKENS, seed=case.seed)
    chunks = ids.split(SEQUENCES)
    if screen:
        reason = _screened(program, toggles, chunks, case)
        if reason:
            return reason
    costs = np.concatenate([factorial(program, toggles, chunk) for chunk in chunks], 1) / (TOKENS - 1)
    truth = judged([toggle.key for toggle in toggles], costs, SEQUENCES)
    reason = unclear(truth, case.background)
    if reason:
        return reason
    save_file({"input_ids": chunks[0].contiguous()}, folder / "tokens.safetensors")
    (folder / "case.json").write_text(json.dumps(case.data(), indent=1), "utf-8")
    (folder / "truth.json").write_text(json.dumps(asdict(truth), indent=1), "utf-8")
    return truth


def _screened(program: Program, toggles: Sequence[Toggle], chunks: Sequence[Tensor], case: Case) -> str:
    """What one mixture per toggle says already, so that the factorial is spared; empty where it may be clear."""
    settings = {toggle.key: toggle.reference for toggle in toggles}
    reference = [program.logits(chunk, settings) for chunk in chunks]

    def cost(moved: Sequence[Toggle]) -> Costs:
        own = {**settings, **{toggle.key: toggle.candidate for toggle in moved}}
        pairs = zip(chunks, reference, strict=True)
        return np.concatenate([divergence(program.logits(chunk, own), base) for chunk, base in pairs])

    costs = [cost([toggle]) for toggle in toggles]
    alone, whole = [float(each.mean()) for each in costs], float(cost(toggles).mean())
    if case.background == "clean":
        return "" if not any([*alone, whole]) else "not clean"
    if whole <= 0:
        return "nothing differs"
    if case.background == "bf16":
        large = sum(each > UNCLEAR_SATURATION[0] * whole for each in alone)
        return "" if 2 <= large <= 4 else "not saturated"
    shares = [each / sum(alone) for each in alone]
    near = any(UNCLEAR_SHARE[0] + 0.02 < share < UNCLEAR_SHARE[1] - 0.02 for share in shares)
    if near:
        return "share near a tenth"
    if any(
        share >= UNCLEAR_SHARE[1] and spread(own, SEQUENCES) < STANDS_OUT
        for share, own in zip(shares, costs, strict=True)
    ):
        return "lost in the spread over sequences"
    large = sum(share >= UNCLEAR_SHARE[1] for share in shares)
    asked = wanted(case.number, case.attempt) if case.background == "fp32" else (1, 2, 3, 4)
    return "" if large in asked else "another number of culprits"


def fix(number: int, background: Background, folder: Path) -> tuple[Case, Truth]:
    """Draw until the truth is clear. What is finished stays on disk and is not made again."""
    from benchmarks.planted.cases import read as read_case

    target = folder / f"{number:03}"
    if (target / "truth.json").exists():
        case = read_case(json.loads((target / "case.json").read_text("utf-8")))
        return case, read(json.loads((target / "truth.json").read_text("utf-8")))
    reasons: list[str] = []
    while True:
        case = draw(number, len(reasons), background)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            truth = make(case, Path(scratch))
            if isinstance(truth, Truth):
                (Path(scratch) / "redrawn.json").write_text(json.dumps(reasons), "utf-8")
                shutil.copytree(scratch, target)
                return case, truth
        reasons.append(truth)


def main() -> None:
    """Fix the truth of so many cases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted.truth", description=__doc__)
    parser.add_argument("--cases", type=int, default=160)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "planted" / "decoys")
    parser.add_argument("--part", default="0/1", help="every n-th case from the k-th on, as k/n")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    first, step = map(int, options.part.split("/"))
    for number, background in list(enumerate(backgrounds(options.cases)))[first::step]:
        case, truth = fix(number, background, options.folder)
        print(
            f"{number:3} {background:5} {case.family:9} draw {case.attempt}, whole {truth.whole:.2g}, culprits "
            f"{sorted(truth.culprits)}, saturated {sorted(truth.saturated)}, {os.times().user:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
