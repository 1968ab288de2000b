"""The same draws on every model: the sums that are drawn, the recipe, and the figures of its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.spiking.shapes import Shape
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.spikes.data import NOT_TOLD, NOT_TRIED, ROUTES, UNLIKELY
from moeparity.metrics.interval import token_mean

PROMPTS = Path("recipes/prompts.jsonl")
SEQUENCES, NEW_TOKENS, DRAWS, ABOVE, RANKS = 16, 32, 10, 1.05, 8
ALL_REDUCE, COMBINE = "all-reduce", "experts' sum"
ORDERS: Mapping[str, str] = {ALL_REDUCE: "**.reduce:order", COMBINE: "layers[*].moe.combine:order"}
"""The sum that is drawn: what `RANKS` ranks hand to an all-reduce, or the rows of a token's experts on one rank."""
FURTHER: Mapping[str, str] = {
    ALL_REDUCE: '"**.reduce:collective": none, ',
    COMBINE: '"layers[*].moe.combine:accumulate": bf16, ',
}
"""What else is set on both sides, so that the order is what decides: every addition is rounded to bf16 in both."""

RECIPE = """\
kind: recipe
checkpoint: {checkpoint}
tokens: {{file: prompts.jsonl, tokenizer: bytes, sample: {{from: reference, new_tokens: {new_tokens}, seed: 0}}}}
reference: {{{side}, set: {{{set}"{order}": unordered(100)}}}}
candidate: {{{side}, set: {{{set}"{order}": unordered(0)}}}}
gate: {{metric: token_mult_prob_error, below: 1.05}}
floor: false
spikes: {{draws: {draws}, above: {above}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is run of each model."""

    sequences: int = SEQUENCES
    new_tokens: int = NEW_TOKENS
    draws: int = DRAWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One model under one sum. mean, rate: token_mult_prob_error less 1, and spikes per scored token, each as estimate
    and 95 % interval over draws. routes, unlikely, not_told, not_tried: fractions of the spikes. flips: token-layers
    with another expert set, in draw 0. unlikely_p: the fraction of spikes, and of all tokens, with P below 0.1. seed:
    None for the shipped checkpoint.
    """

    model: str
    seed: int | None
    sum: str
    loss: float
    scored: int
    mean: tuple[float, float, float]
    highest: float
    rate: tuple[float, float, float]
    spikes: int
    tokens: int
    always: int
    routes: float
    unlikely: float
    not_told: float
    not_tried: float
    flips: float | None
    unlikely_p: tuple[float, float]


def sums(shape: Shape) -> tuple[str, ...]:
    """The sums that a model of this shape has."""
    return (ALL_REDUCE, COMBINE) if shape.experts else (ALL_REDUCE,)


def run(model: str, seed: int | None, checkpoint: Path, of_sum: str, loss: float, folder: Path, size: Size) -> Figures:
    """Draw a sum of a model, and read the figures of the report."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = PROMPTS.read_text("utf-8").splitlines(keepends=True)[: size.sequences]
    (folder / "prompts.jsonl").write_text("".join(lines), "utf-8")
    text = RECIPE.format(
        checkpoint=checkpoint.resolve(),
        side=f"profile: hf-eager, micro_batch: 8, placement: {{tensor: {RANKS if of_sum == ALL_REDUCE else 1}}}",
        order=ORDERS[of_sum],
        set=FURTHER[of_sum],
        above=ABOVE,
        **{name: value for name, value in asdict(size).items() if name != "sequences"},
    )
    (folder / "recipe.yaml").write_text(text, "utf-8")
    report = bisect(folder / "recipe.yaml", device="cpu")
    spikes = report.spikes
    assert spikes is not None
    means = token_mean(torch.tensor([draw.mean - 1 for draw in spikes.draws]), torch.ones(len(spikes.draws)))
    shared = {trait.name: trait for trait in spikes.shared}
    layers = () if report.flips is None else report.flips.layers
    return Figures(
        model=model,
        seed=seed,
        sum=of_sum,
        loss=loss,
        scored=spikes.scored,
        mean=(means.estimate, means.low, means.high),
        highest=max(draw.highest for draw in spikes.draws),
        rate=(spikes.rate.estimate, spikes.rate.low, spikes.rate.high),
        spikes=spikes.spikes,
        tokens=spikes.tokens,
        always=spikes.always,
        routes=spikes.share(*ROUTES),
        unlikely=spikes.share(UNLIKELY),
        not_told=spikes.share(NOT_TOLD),
        not_tried=spikes.share(NOT_TRIED),
        flips=sum(layer.set_flips for layer in layers) / sum(layer.tokens for layer in layers) if layers else None,
        unlikely_p=(shared["P(token) below 0.1"].of_spikes, shared["P(token) below 0.1"].of_all),
    )
