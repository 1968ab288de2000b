"""Whether the diagnosis names planted semantics faults in simulated logs, and names none in clean ones.

Every case is drawn in three styles of model, at several sizes and noises, with many seeds. A case is right when exactly
the expected causes of tier 1 are named (E[rho] aside, which only repeats them); open when nothing wrong is named and an
expected cause is left undecided; wrong otherwise. Open is allowed only for the cases and sizes in `Case.may_be_open`.
Exits with 1 on any other outcome than these.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.language import NOISES, STYLES, Setting, Side, log
from moeparity.inputs.machine import cpu_name
from moeparity.logs.diagnosis import Diagnosis, Observer

SIZES = ((32, 100), (64, 200), (128, 200))
SMALL = (SIZES[0],)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A planted fault, or none. noises: which of `NOISES` it is drawn with. expected: the names that must be named."""

    name: str
    setting: Setting
    expected: frozenset[str] = frozenset()
    noises: tuple[str, ...] = ("moe", "moe, high")
    may_be_open: tuple[tuple[int, int], ...] = ()


def _case(name: str, setting: Setting, *expected: str, may_be_open: tuple[tuple[int, int], ...] = ()) -> Case:
    return Case(name=name, setting=setting, expected=frozenset(expected), may_be_open=may_be_open)


def _tempered(temperature: float, *may_be_open: tuple[int, int]) -> Iterator[Case]:
    """A temperature that only one side's column has, both ways."""
    side = Side(temperature=temperature)
    yield _case(
        f"sampler at T = {temperature:g}, trainer at 1",
        Setting(temperature=temperature, rollout=side),
        "temperature",
        may_be_open=may_be_open,
    )
    yield _case(
        f"sampler and trainer at T = {temperature:g}, rollout raw",
        Setting(temperature=temperature, trainer=side),
        "raw log-probs (temperature)",
        may_be_open=may_be_open,
    )


KEPT = Side(truncated=True)
CASES = (
    Case(name="clean", setting=Setting(entropy=True), noises=tuple(NOISES)),
    Case(name="clean, both sides at T = 0.7", setting=Setting(
        temperature=0.7, rollout=Side(temperature=0.7), trainer=Side(temperature=0.7), entropy=True)),
    Case(name="clean, other weights", setting=Setting(drift=0.3)),
    *_tempered(0.7),
    *_tempered(0.9, *SMALL),
    *_tempered(1.2),
    _case("sampler at 1, trainer at T = 0.7", Setting(trainer=Side(temperature=0.7)), "temperature"),
    _case("top_p = 0.9", Setting(top_p=0.9, rollout=KEPT), "truncation"),
    _case("top_p = 0.95", Setting(top_p=0.95, rollout=KEPT), "truncation", may_be_open=SMALL),
    _case("top_k = 20", Setting(top_k=20, rollout=KEPT), "truncation", may_be_open=SMALL),
    _case("top_k = 50", Setting(top_k=50, rollout=KEPT), "truncation", may_be_open=SMALL),
    _case("min_p = 0.05", Setting(min_p=0.05, rollout=KEPT), "truncation", may_be_open=SMALL),
    _case("min_p = 0.3", Setting(min_p=0.3, rollout=KEPT), "truncation"),
    _case("top_p = 0.9, rollout raw, trainer on the kept set", Setting(top_p=0.9, trainer=KEPT),
          "raw log-probs (truncation)"),
    _case("a token that is never drawn", Setting(banned=1, rollout=KEPT), "truncation"),
    _case("a repetition penalty of 1.2", Setting(penalty=1.2)),
    _case("T = 0.7 and top_p = 0.9", Setting(temperature=0.7, top_p=0.9, rollout=Side(temperature=0.7, truncated=True)),
          "truncation", "temperature", may_be_open=SIZES),
    _case("T = 0.7 and min_p = 0.1", Setting(temperature=0.7, min_p=0.1, rollout=Side(temperature=0.7, truncated=True)),
          "truncation", "temperature", may_be_open=SIZES),
    _case("T = 0.7, both columns raw", Setting(temperature=0.7, entropy=True), "sampling"),
    _case("top_p = 0.9, both columns raw", Setting(top_p=0.9, entropy=True), "sampling"),
    _case("one token late", Setting(shift=1), "misaligned"),
    _case("one token early", Setting(shift=-1), "misaligned"),
    _case("two tokens late", Setting(shift=2), "misaligned"),
    _case("another tokenizer", Setting(other_ids=True), "unrelated"),
    _case("base-2 logarithms", Setting(factor=1 / math.log(2)), "log base"),
    _case("base-10 logarithms", Setting(factor=1 / math.log(10)), "log base"),
    _case("sign swapped", Setting(values="negated"), "not logs"),
    _case("probabilities", Setting(values="P"), "not logs"),
    _case("5 % placeholder zeros", Setting(zeros=0.05), "placeholders"),
    _case("a quarter by other weights, versions known", Setting(drift=1.0, drifted=0.25, lags=True), "stale weights"),
    _case("a quarter by other weights, versions unknown", Setting(drift=1.0, drifted=0.25), "outlier sequences"),
)  # fmt: skip


def named_causes(diagnosis: Diagnosis) -> set[str]:
    """The causes named: of tier 1 all, and of the others those that a case plants."""
    names = set(diagnosis.names("named", "semantics")) - {"E[rho]"}
    return names | (set(diagnosis.names("named")) & {"stale weights", "outlier sequences"})


def outcome(case: Case, diagnosis: Diagnosis) -> str:
    """right, open or wrong."""
    names = named_causes(diagnosis)
    if names == case.expected:
        return "right"
    missing = case.expected - names
    is_open = names < case.expected and missing <= set(diagnosis.names("undecided"))
    return "open" if is_open else "wrong"


def run(case: Case, size: tuple[int, int], seeds: range) -> tuple[Counter[str], list[str]]:
    """Outcomes of a case at one size, over styles, noises and seeds; and what went wrong, in words."""
    counts: Counter[str] = Counter()
    wrong = []
    for style, seed in itertools.product(STYLES, seeds):
        noise = case.noises[seed % len(case.noises)]
        observer = Observer()
        observer.add(
            log(case.setting, STYLES[style], NOISES[noise], sequences=size[0], tokens=size[1], seed=1000 + seed)
        )
        diagnosis = observer.diagnosis()
        result = outcome(case, diagnosis)
        counts[result] += 1
        if result == "wrong" or (result == "open" and size not in case.may_be_open):
            words = f"named {sorted(named_causes(diagnosis))}, open {diagnosis.names('undecided')}"
            wrong.append(f"{case.name}, {style}, {noise} noise, {size}, seed {seed}: {result}: {words}")
    return counts, wrong


def table(seeds: int, sizes: tuple[tuple[int, int], ...]) -> tuple[str, list[str]]:
    """The result as a Markdown table, and every failure."""
    head = " | ".join(f"{b} x {n}" for b, n in sizes)
    rows = [f"| planted | must be named | {head} |", f"|---|---|{'---|' * len(sizes)}"]
    failures: list[str] = []
    for case in CASES:
        cells = []
        for size in sizes:
            # A long log costs as much as many short ones; every noise has its turn even so.
            least = max(len(case.noises), seeds // 4)
            counts, wrong = run(case, size, range(seeds if size in SMALL else least))
            failures += wrong
            total = counts.total()
            cells.append(f"{counts['right']}/{total}" + (f", {counts['open']} open" if counts["open"] else ""))
        allowed = (
            f" (open allowed at {', '.join(f'{b} x {n}' for b, n in case.may_be_open)})" if case.may_be_open else ""
        )
        planted = ", ".join(sorted(case.expected)) or "nothing"
        rows.append(f"| {case.name} | {planted}{allowed} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    return "\n".join(rows), failures


def main() -> int:
    """Print the table, write it to a file where asked, and say what failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=8, help="at the smallest size; a quarter at the others")
    parser.add_argument("--out", type=Path, help="write the table, as Markdown, to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    text, failures = table(options.seeds, SIZES)
    machine = (
        f"{cpu_name()}, torch {torch.__version__}, {datetime.now(UTC).date()}; {options.seeds} seeds at "
        f"{SIZES[0][0]} x {SIZES[0][1]}, a quarter at the others (at least one with each noise), in each of three "
        f"styles; {time.process_time() - started:.0f} s of processor time."
    )
    print(machine)
    for failure in failures:
        print(f"FAILED: {failure}")
    if options.out is not None:
        options.out.write_text(f"{machine}\n\n{text}\n", "utf-8")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
