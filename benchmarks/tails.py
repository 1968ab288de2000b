"""How often the interval of a share holds the share over a larger sample, where few sequences carry the divergence.

    OMP_NUM_THREADS=1 python -m benchmarks.tails [--cases 60] [--first 0] [--folder DIR]

Decoy cases of a heavy tail: an fp32 checkpoint of `benchmarks.planted` with two to four attributes that differ, so
that the divergence is made by the few tokens whose experts change. A draw is a case where between `LEAST` and `MOST`
of the sequences carry it (Kish: (sum w)^2 / (n sum w^2)), judged on the larger sample alone. The plain forward of
`benchmarks.planted.factorial`, free of moeparity, walks all mixtures; what is given goes through moeparity's own
shares and intervals. True are the Shapley values over the larger sample, which holds no sequence that is given.

A share counts where it is at least a tenth of the whole over the larger sample. A case is covered where all of its
shares are. `width` is the median over cases of the widest share's interval, as a multiple of the normal interval's
(1.96 standard errors). `bootstrap-t` is the verdict's interval, which shares had before they were widened for tails.
Exits with 1 where fewer than nine in ten cases are covered, the width is above three, or somebody is said to help, to
contribute or to be to blame whose true share has another sign.

Costs are kept in the folder, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.planted import checkpoints
from benchmarks.planted.attributes import FP32
from benchmarks.planted.cases import FAMILIES, LAYERS, TOKENS, Planted, compatible, shuffled
from benchmarks.planted.factorial import Toggle, factorial, shapley
from benchmarks.planted.program import Program
from benchmarks.turns import header
from moeparity.bisection.shares.search import over_sequences
from moeparity.metrics.interval import token_mean
from moeparity.search.memo import Memo, Mixture, Outcome
from moeparity.search.roles import Role
from moeparity.search.tree import Group
from moeparity.search.waterfall import Share, waterfall

Costs = npt.NDArray[np.float64]
Interval = tuple[float, float]

GIVEN, LARGER, CHUNK = 192, 1536, 96
"""Sequences of which moeparity is told, of the larger sample, and walked together."""
LOOKED_AT = 576
"""Sequences of the larger sample by which a draw is taken or left."""
LEAST, MOST = 0.012, 0.25
COUNTS = 0.1
"""From this part of the whole on, over the larger sample, a share counts."""
COVERED, WIDTH = 0.9, 3.0

SAID = {Role.CULPRIT: 1, Role.CONTRIBUTES: 1, Role.HELPS: -1}
"""Roles that say a sign."""


@dataclass(frozen=True, slots=True)
class Row:
    """One share of a case: its true value, its intervals by name, and what moeparity calls it.

    part: the true share as a part of the whole; interval: moeparity's interval of that.
    """

    share: float
    part: float
    interval: Interval
    intervals: Mapping[str, Interval]
    role: Role

    def covered(self, name: str) -> bool:
        """Whether that interval holds the true share."""
        low, high = self.intervals[name]
        return low <= self.share <= high

    def width(self, name: str) -> float:
        """The width of that interval over the normal one's; 1 where none of the given sequences has anything of it."""
        (low, high), (normal_low, normal_high) = self.intervals[name], self.intervals["normal"]
        return (high - low) / (normal_high - normal_low) if normal_high > normal_low else 1.0


def drawn(number: int, attempt: int) -> tuple[str, float, list[Planted]]:
    """Family, damping (see `checkpoints.write`) and what differs; the same arguments give the same draw."""
    rng = random.Random(f"tails {number} {attempt}")  # noqa: S311 - a reproducible draw
    family, damped = rng.choice(FAMILIES), rng.choice((0.5, 1.0))
    small, large = (list(shuffled(rng, FP32[kind], family, "fp32")) for kind in ("small", "large"))
    pool = small[:2] + large[: rng.choice((1, 2, 3))]
    rng.shuffle(pool)
    chosen: list[Planted] = []
    for planted in pool:
        if len(chosen) < 4 and compatible(planted, chosen):
            chosen.append(planted)
    return family, damped, chosen


def costs(number: int, attempt: int) -> Costs | None:
    """[2^n, LARGER + GIVEN] nats: each sequence's KL in every mixture, the larger sample first; None for no case."""
    family, damped, planted = drawn(number, attempt)
    seed = 100 * number + attempt
    with tempfile.TemporaryDirectory() as name:
        checkpoints.write(Path(name), family, seed=seed, layers=LAYERS, dtype="float32", damped=damped)
        program = Program(Path(name), "fp32")
    toggles = [Toggle(each.selector, each.attribute, each.reference, each.candidate) for each in planted]
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, program.config["vocab_size"], (LARGER + GIVEN, TOKENS), generator=generator)
    chunks: list[Costs] = []
    for chunk in torch.split(ids, CHUNK):
        chunks.append(factorial(program, toggles, chunk))
        if len(chunks) * CHUNK == LOOKED_AT and not LEAST < carrying(np.concatenate(chunks, 1)[-1]) < MOST:
            return None
    return np.concatenate(chunks, 1)


def carrying(whole: Costs) -> float:
    """Which part of the sequences carries a divergence; 1 where there is none."""
    return float(whole.sum() ** 2 / (whole**2).sum() / len(whole)) if whole.any() else 1.0


def case(number: int, folder: Path) -> Costs:
    """The costs of a case, kept in the folder once they are known."""
    file = folder / f"{number:03}.npy"
    attempt = 0
    while not file.exists():
        figures = costs(number, attempt)
        if figures is not None:
            np.save(file, figures)
        attempt += 1
    stored: Costs = np.load(file)
    return stored


def rows(figures: Costs) -> Iterator[Row]:
    """The shares of a case that count."""
    count = len(figures).bit_length() - 1
    larger, measured = np.split(figures, [LARGER], 1)
    truth = shapley(larger, count).mean(1)
    for share, mine in zip(shares(measured, count), truth, strict=True):
        values = shapley(measured, count)[int(share.name)]
        if abs(mine) >= COUNTS * larger[-1].mean():
            intervals = {
                "normal": normal(values),
                "bootstrap-t": verdicts(values),
                "moeparity's": share.interval,
            }
            yield Row(float(mine), float(mine / larger[-1].mean()), share.part, intervals, share.role)


def shares(measured: Costs, count: int) -> Sequence[Share]:
    """What moeparity makes of the given sequences, one token each; toggle i is named by its number."""
    tokens = (1.0,) * measured.shape[1]

    def outcome(mixture: Mixture) -> Outcome:
        sums = measured[sum(1 << int(name) for name in mixture)]
        mean = float(sums.mean())
        return Outcome(value=mean, k3=mean, upper=mean, sums=tuple(sums.tolist()), tokens=tokens, exact=not sums.any())

    def evaluate(mixtures: Sequence[Mixture]) -> dict[Mixture, Outcome | None]:
        return {mixture: outcome(mixture) for mixture in mixtures}

    players = tuple(map(str, range(count)))
    return waterfall(Memo(players, evaluate), Group("all", players), over_sequences).shares


def normal(values: Costs) -> Interval:
    """The mean and 1.96 standard errors."""
    mean, reach = float(values.mean()), 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5
    return mean - reach, mean + reach


def verdicts(values: Costs) -> Interval:
    """The verdict's interval: bootstrap-t, not widened."""
    interval = token_mean(torch.from_numpy(values), torch.ones(len(values)))
    return interval.low, interval.high


def table(cases: Sequence[Sequence[Row]]) -> Iterator[str]:
    """The figures in Markdown."""
    yield "| interval | cases covered | shares covered | width, over the normal interval's |"
    yield "|---|---|---|---|"
    for name in ("normal", "bootstrap-t", "moeparity's"):
        covered = [all(row.covered(name) for row in case) for case in cases]
        single = [row.covered(name) for case in cases for row in case]
        yield f"| {name} | {_part(covered)} | {_part(single)} | {width(cases, name):.2f} |"
    signs = [row for case in cases for row in case if row.role in SAID]
    wrong = sum(SAID[row.role] * row.share < 0 for row in signs)
    every = [row for case in cases for row in case]
    bounded = [row for row in every if math.isfinite(row.interval[0]) and math.isfinite(row.interval[1])]
    inside = [row.interval[0] <= row.part <= row.interval[1] for row in bounded]
    yield ""
    yield f"As parts of the whole: {_part(inside)} of those with bounds; {len(every) - len(bounded)} have none."
    total = len(every)
    yield f"moeparity says a sign of {len(signs)} of {total} shares (culprit, contributes, helps); wrong: {wrong}."


def width(cases: Sequence[Sequence[Row]], name: str) -> float:
    """The median over cases of the widest share's interval over the normal one's."""
    return statistics.median(max(row.width(name) for row in case) for case in cases)


def failed(cases: Sequence[Sequence[Row]]) -> bool:
    """Whether moeparity's interval is not what the page says."""
    name = "moeparity's"
    covered = sum(all(row.covered(name) for row in case) for case in cases)
    wrong = any(row.role in SAID and SAID[row.role] * row.share < 0 for case in cases for row in case)
    return wrong or covered < COVERED * len(cases) or width(cases, name) > WIDTH


def _part(right: Sequence[bool]) -> str:
    return f"{sum(right)} of {len(right)} ({sum(right) / len(right):.1%})"


def main() -> int:
    """Take the cases, print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tails", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="number of the first case (default: 0)")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "tails", help="where costs are kept"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    numbers = range(options.first, options.first + options.cases)
    cases = [list(rows(case(number, options.folder))) for number in numbers]
    finished = [case for case in cases if case]
    print(header(torch.get_num_threads()))
    print(f"{len(finished)} cases, {GIVEN} sequences given, {LARGER} others for the true shares\n")
    print("\n".join(table(finished)))
    return int(failed(finished))


if __name__ == "__main__":
    sys.exit(main())
