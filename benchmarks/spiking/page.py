"""The page of the benchmark: figures of every model, and what the pairs of shapes say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from textwrap import fill

import torch

from benchmarks.spiking.runs import ABOVE, ALL_REDUCE, RANKS, Figures, Size
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
    parts = (_opening(size, steps), _short(figures), _table(figures), _causes(figures), _pairs(figures), _limits())
    return "\n".join(line for part in parts for line in part)


def _opening(size: Size, steps: int) -> Iterator[str]:
    machine = f"{datetime.now(UTC):%Y-%m-%d}, {cpu_name()}, torch {torch.__version__}, 1 thread"
    yield from (
        "# Spikes by shape of the model",
        "",
        "The same sums are added in other orders, and one model's tokens jump while another's do not. What decides it?",
        "",
        f"{machine}.",
        "Written by `python -m scripts.pages spiking`.",
        "",
        _filled(
            f"Each shape has 4 layers of width 96 and is trained for {steps} steps on the same bytes of Python's "
            "standard library, once for each seed; the shipped quickstart is one more model. Each continues "
            f"{size.sequences} prompts by {size.new_tokens} tokens. One sum is drawn {size.draws} times in order of "
            f"arrival, on both sides: what {RANKS} ranks hand to an all-reduce (behind attention and MLP, every "
            "addition rounded to bf16), or the experts' rows on one rank. A token spikes if its probability differs by "
            f"a factor of more than {ABOVE:g} (`docs/variance.md`). Brackets hold 95 % intervals over draws."
        ),
        "",
    )


def _short(figures: Sequence[Figures]) -> Iterator[str]:
    """What the figures answer, in sentences made of them."""
    reduced = [of for of in figures if of.sum == ALL_REDUCE and of.seed is not None]
    routed, dense = ([of for of in reduced if (of.flips is None) == is_dense] for is_dense in (False, True))
    shipped = [of for of in figures if of.sum == ALL_REDUCE and of.seed is None]
    yield from ("## In short", "")
    if routed and dense:
        yield _filled(
            f"- **Routers do.** Under the all-reduce models with experts have {_between(of.rate[0] for of in routed)} "
            f"spikes in 1,000 tokens, dense ones {_between(of.rate[0] for of in dense)}. Without those that forced "
            f"routes end, {_between(of.rate[0] * (1 - of.routes) for of in routed)} are left. The mean error differs "
            f"far less: {_between(of.mean[0] for of in routed)} against {_between(of.mean[0] for of in dense)} "
            "thousandths."
        )
    normed = [pair for pair in _in_pairs(figures) if pair[0] == PAIRS[0][0]]
    if normed:
        means, rates = ([_side(getattr(a, name), getattr(b, name)) for _, a, b in normed] for name in ("mean", "rate"))
        yield _filled(
            "- **The norm of queries and keys is not shown to.** With it the mean error is higher, with intervals "
            f"apart, in {means.count('higher')} of {len(means)} pairs; the rate of spikes in {rates.count('higher')}. "
            "And its models have the lower loss after as many steps, which may be what raises their error."
        )
    if shipped and routed:
        of = shipped[0]
        yield _filled(
            f"- **Training may do more than the shape.** The shipped quickstart, of the shape `{routed[0].model}` and "
            f"trained far longer (loss {of.loss:.2f}), has {1e3 * of.rate[0]:.1f} spikes in 1,000 tokens. Forced "
            f"routes end {of.routes:.0%} of them, {of.unlikely:.0%} are of unlikely tokens, and of {of.not_told:.0%} "
            "the cause is not told. It is one model: what else differs was not varied."
        )
    yield _filled(
        "- **Two terms have no order.** a + b is b + a, so with 2 experts for each token their sum spikes nowhere; the "
        "all-reduce still does."
    )
    yield ""


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
    for differs, first, second in _in_pairs(figures):
        means, rates = (_compared(first.mean, second.mean), _compared(first.rate, second.rate))
        yield _row(differs, first.model, second.model, first.sum, str(first.seed), means, rates)
    yield from (
        "",
        "higher, lower: of the first shape, where the intervals over draws do not overlap; else *not told apart*.",
        "",
        *_without_routes(figures),
    )


def _in_pairs(figures: Sequence[Figures]) -> Iterator[tuple[str, Figures, Figures]]:
    """What two shapes differ in, and the figures of both, under each sum and seed that both have."""
    by_key = {(of.model, of.seed, of.sum): of for of in figures if of.seed is not None}
    for differs, first, second in PAIRS:
        for model, seed, of_sum in by_key:
            if model == first and (second, seed, of_sum) in by_key:
                yield differs, by_key[first, seed, of_sum], by_key[second, seed, of_sum]


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


def _side(first: Estimate, second: Estimate) -> str:
    if first[1] > second[2]:
        return "higher"
    return "lower" if first[2] < second[1] else "not told apart"


def _compared(first: Estimate, second: Estimate) -> str:
    return f"{1e3 * first[0]:.2f} : {1e3 * second[0]:.2f}, {_side(first, second)}"


def _between(values: Iterable[float]) -> str:
    thousandths = [1e3 * value for value in values]
    return f"{min(thousandths):.1f} to {max(thousandths):.1f}"


def _filled(text: str) -> str:
    """A paragraph, or an item of a list, in lines of up to 120 characters."""
    return fill(text, 120, subsequent_indent="  " * text.startswith("- "), break_on_hyphens=False)


def _bounded(value: Estimate, unit: float) -> str:
    estimate, low, high = (unit * number for number in value)
    return f"{estimate:.2f} [{low:.2f}, {high:.2f}]"


def _head(titles: Sequence[str]) -> Iterator[str]:
    yield _row(*titles)
    yield _row(*("---" for _ in titles))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
