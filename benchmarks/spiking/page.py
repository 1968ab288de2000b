"""The page of the benchmark: figures of every model, and what the pairs of shapes say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import torch

from benchmarks.spiking.runs import ABOVE, ALL_REDUCE, COMBINE, RANKS, Figures, Size
from moeparity.inputs.machine import cpu_name

PAIRS = (
    ("queries and keys normed, or not", "qwen3_moe, 6 of 24", "mixtral, 6 of 24"),
    ("queries and keys normed, or not", "qwen3, dense", "llama, dense"),
    ("6 of 24 experts, or 2 of 8", "mixtral, 6 of 24", "mixtral, 2 of 8"),
    ("experts, or one MLP", "qwen3_moe, 6 of 24", "qwen3, dense"),
    ("experts, or one MLP", "mixtral, 6 of 24", "llama, dense"),
)
"""What the two shapes of a pair differ in."""

Estimate = Sequence[float]
"""An estimate, and the bounds of its 95 % interval over draws."""


def page(figures: Sequence[Figures], size: Size, steps: int) -> str:
    """The page, as Markdown."""
    return "\n".join([*_opening(size, steps), *_table(figures), *_causes(figures), *_pairs(figures), *_limits()])


def _opening(size: Size, steps: int) -> Iterator[str]:
    machine = f"{datetime.now(UTC):%Y-%m-%d}, {cpu_name()}, torch {torch.__version__}, 1 thread"
    yield from (
        "# Spikes by shape of the model",
        "",
        "The same sums are added in other orders, and one model's tokens jump while another's do not. What decides it?",
        "",
        f"{machine}. Written by `python -m scripts.pages spiking`.",
        "",
        f"Each shape has 4 layers of width 96 and is trained for {steps} steps on the same bytes of Python's standard",
        "library, once for each seed; the shipped quickstart is one more model. Each continues",
        f"{size.sequences} prompts by {size.new_tokens} tokens. One sum is drawn {size.draws} times in order of",
        f"arrival, on both sides: what {RANKS} ranks hand to an all-reduce (behind attention and MLP, every addition",
        "rounded to bf16), or the experts' rows on one rank. A token spikes if its probability differs by a factor of",
        f"more than {ABOVE:g}",
        "(`docs/variance.md`). Brackets hold 95 % intervals over draws.",
        "",
    )


def _table(figures: Sequence[Figures]) -> Iterator[str]:
    titles = (
        *("model", "seed", "sum", "loss", "token_mult_prob_error - 1, 1e-3", "highest factor"),
        *("spikes in 1,000 tokens", "tokens that spike", "in every draw"),
    )
    yield from _head(titles)
    for of in figures:
        yield _row(
            *(of.model, "" if of.seed is None else str(of.seed), of.sum, f"{of.loss:.2f}"),
            *(_bounded(of.mean, 1e3), f"{of.highest:.3f}", _bounded(of.rate, 1e3)),
            *(f"{of.tokens} of {of.scored}", str(of.always)),
        )
    yield from ("", "loss: of held-out bytes, in nats per byte.", "")


def _causes(figures: Sequence[Figures]) -> Iterator[str]:
    yield from ("## What ends the spikes", "")
    titles = ("model", "seed", "sum", "spikes", "routes", "unlikely", "not told", "not tried", "token-layers that flip")
    yield from _head((*titles, "P below 0.1: of spikes", "of all tokens"))
    for of in figures:
        shares = (of.routes, of.unlikely, of.not_told, of.not_tried) if of.spikes else ()
        yield _row(
            *(of.model, "" if of.seed is None else str(of.seed), of.sum, str(of.spikes)),
            *([f"{share:.0%}" for share in shares] or [""] * 4),
            "" if of.flips is None else f"{of.flips:.2%}",
            *("" if math.isnan(share) else f"{share:.0%}" for share in of.unlikely_p),
        )
    yield from (
        "",
        "routes: gone with the reference's experts forced. unlikely: not by routes, and the likeliest token at the",
        "same place does not spike in the same draw. not told: by no trial.",
        "",
    )


def _pairs(figures: Sequence[Figures]) -> Iterator[str]:
    yield from ("## What decides it", "", "Two shapes that differ in one thing, under one sum and one seed.", "")
    yield from _head(
        ("differs", "first", "second", "sum", "seed", "mean error, first : second", "spikes in 1,000 tokens")
    )
    by_key = {(of.model, of.seed, of.sum): of for of in figures}
    for differs, first, second in PAIRS:
        for seed in sorted({of.seed for of in figures if of.seed is not None}):
            for of_sum in (ALL_REDUCE, COMBINE):
                pair = [by_key.get((name, seed, of_sum)) for name in (first, second)]
                if pair[0] is not None and pair[1] is not None:
                    means, rates = (_compared(pair[0].mean, pair[1].mean), _compared(pair[0].rate, pair[1].rate))
                    yield _row(differs, first, second, of_sum, str(seed), means, rates)
    yield from (
        "",
        "higher, lower: of the first shape, where the intervals over draws do not overlap; else *not told apart*.",
        "",
        *_without_routes(figures),
    )


def _without_routes(figures: Sequence[Figures]) -> Iterator[str]:
    """What is left of the spikes of models with experts where those made by routes are taken away."""
    yield "Spikes in 1,000 tokens under the all-reduce, and without those that forced routes end:"
    yield ""
    yield from _head(("model", "seed", "spikes", "without those by routes"))
    for of in figures:
        if of.sum == ALL_REDUCE:
            others = of.rate[0] * (1 - of.routes)
            seed = "" if of.seed is None else str(of.seed)
            yield _row(of.model, seed, f"{1e3 * of.rate[0]:.2f}", f"{1e3 * others:.2f}")
    yield ""


def _limits() -> Iterator[str]:
    yield from (
        "## What this does not say",
        "",
        "- These are small models, trained for minutes, on one CPU: rates of large ones are others.",
        "- Intervals are over draws. They do not hold what another training would give; the seeds show how much that",
        "  is. A difference that changes sides between seeds is one between two trainings.",
        "- Spikes by routes need a router, so a dense model can't have them. Why Qwen3-4B spikes and Llama-3.1-8B does",
        "  not, both dense, is asked by the pair `qwen3, dense` and `llama, dense` alone.",
        "",
    )


def _compared(first: Estimate, second: Estimate) -> str:
    if first[1] > second[2]:
        words = "higher"
    elif first[2] < second[1]:
        words = "lower"
    else:
        words = "not told apart"
    return f"{1e3 * first[0]:.2f} : {1e3 * second[0]:.2f}, {words}"


def _bounded(value: Estimate, unit: float) -> str:
    estimate, low, high = (unit * number for number in value)
    return f"{estimate:.2f} [{low:.2f}, {high:.2f}]"


def _head(titles: Sequence[str]) -> Iterator[str]:
    yield _row(*titles)
    yield _row(*("---" for _ in titles))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
