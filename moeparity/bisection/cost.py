"""What a bisection would take, told without running it: seconds, memory and disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from moeparity.bisection.observe import Observation, bytes_per_token
from moeparity.bisection.options import Options
from moeparity.bisection.prepare import prepare
from moeparity.bisection.sample import sampled_length
from moeparity.engine.calibration import measured_rates
from moeparity.engine.duration import DRAWN, MADE, MOVED, READ, Amounts, Rates
from moeparity.engine.footprint import Footprint, estimate, shown_size
from moeparity.inputs.machine import available_bytes
from moeparity.inputs.model import open_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a recipe's first pass takes, and how many more there may be.

    variants: that walk in it. tokens: sequences and their length, sampled ones included. seconds: of the pass, if
    variants share nothing once they have differed, of which `loading` go into having the weights; checking: of opening
    the checkpoint. sampling: of continuing the prompts. available: bytes of memory that may be taken (None: unknown).
    stored: bytes of the weights' files.
    """

    variants: int
    tokens: tuple[int, int]
    footprint: Footprint
    seconds: float
    loading: float
    checking: float
    sampling: float
    available: float | None
    stored: int
    split: int
    attribute: bool

    @property
    def lines(self) -> dict[str, str]:
        """A line each of time, memory, disk and further passes, for people."""
        sequences, length = self.tokens
        further = [f"up to {self.split} more for `split`, each at most as long"] if self.split else []
        further += ["those of the mixtures for `attribute`, whose number the first one decides"] * self.attribute
        sampled = f", before it {shown_time(self.sampling)} to sample" if self.sampling else ""
        checked = f", and {shown_time(self.checking)} to check them" if self.checking else ""
        room = "" if self.available is None else f"; {shown_size(self.available)} may be taken"
        disk = f"{shown_size(self.stored)} of weights, read once to check them and once in a pass"
        return {
            "work": f"{self.variants} variants, {sequences} sequences of {length} tokens",
            "time": f"about {shown_time(self.seconds)} for the first pass, {shown_time(self.loading)} of it for weights"
            f"{sampled}{checked}",
            "memory": f"{shown_size(self.footprint.total)} at the most, in {self.footprint.at}{room}",
            "disk": disk if self.stored else "no weights are read: they are made from a seed, anew in each pass",
            "passes": "1" + "".join(f", and {text}" for text in further),
        }


def expected(
    recipe: Path, *, device: str = "auto", options: Options | None = None, rates: Rates | None = None
) -> Expected:
    """What a recipe takes on this machine. `rates` are measured where none are given.

    Config, tokens and profiles are read, of the weights only what the files say of themselves. Raises MoeparityError
    for whatever is wrong with them.
    """
    plan = prepare(recipe, device=device, options=options, opener=partial(open_model, check_weights=False))
    store = plan.model.weights
    toggles = [*plan.trial_toggles, *(toggle for _, toggle in plan.swaps.values() if toggle is not None)]
    walkers = Observation.of(plan, toggles).walkers
    sample = plan.recipe.tokens.sample
    sequences, length = plan.tokens.input_ids.shape
    new_tokens = 0 if sample is None else sample.new_tokens
    footprint = estimate(walkers, store, sequences, length + new_tokens, kept_bytes=bytes_per_token(plan))
    rates = rates or measured_rates(sorted({d for walker in walkers for d in walker.plan.dtypes}), store.device)
    amounts = footprint.amounts.repeated(plan.recipe.envelope)
    side = [walker for walker in walkers if sample is not None and walker.name == sample.source]
    columns = [sampled_length(walker, length + new_tokens, new_tokens) for walker in side]
    step = estimate(side, store, sequences, columns[0]).amounts if side else Amounts(of={})
    stored = int(amounts.of.get((READ, ""), 0))
    return Expected(
        variants=len(walkers),
        tokens=(sequences, length + new_tokens),
        footprint=footprint,
        seconds=rates.seconds_of(amounts),
        loading=rates.seconds_of(amounts.only(MADE, DRAWN)),
        checking=rates.seconds_of(Amounts(of={(MOVED, ""): stored})),
        sampling=new_tokens * rates.seconds_of(step),
        available=available_bytes(store.device) if plan.memory_limit is None else plan.memory_limit,
        stored=stored,
        split=plan.recipe.split,
        attribute=plan.recipe.attribute,
    )


def shown_time(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min`, `5.2 hours` or `3.1 days`."""
    for unit, least, size, digits in (("days", 48 * 3600, 86400, 1), ("hours", 5400, 3600, 1), ("min", 90, 60, 0)):
        if seconds >= least:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 2 else f"{seconds:.1f} s"
