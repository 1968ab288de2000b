"""What a bisection would take (seconds, memory, disk), estimated without running it.

The seconds are those of a machine on which nothing else runs. How many mixtures `attribute:` needs becomes known in the
first pass only, so the fewest and the most are told.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moeparity.bisection.observe import Observation, bytes_per_token
from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import first_toggles
from moeparity.bisection.prepare import prepare
from moeparity.bisection.rates import MachineRates, machine_rates
from moeparity.bisection.replay.traps import expected_traps
from moeparity.bisection.sample import sampled_length
from moeparity.bisection.shares.search import MixtureCounts, expected_mixtures
from moeparity.bisection.spikes.search import expected_forced
from moeparity.bisection.toggles.data import LeftOut
from moeparity.bisection.toggles.measure import left_out
from moeparity.bisection.toggles.show import left_out_words
from moeparity.engine.duration import DRAWN, MADE, MOVED, READ, Amounts, Rates
from moeparity.engine.footprint import Footprint, estimate, shown_size
from moeparity.inputs.machine import available_bytes

OF_A_VARIANT = 0.5
"""The time of a mixture, as a fraction of that of a variant in the first pass, which has more observers. In the shipped
recipes it is 0.3 to 0.6.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a recipe's first pass takes, and how many passes may follow.

    variants: how many run in the first pass. tokens: number of sequences and their length, sampled tokens included.
    starting: seconds until everything is read and bound. checking: seconds to read and check all weights. sampling:
    seconds to continue the prompts. seconds: of the first pass, if variants share no work once they differ; `loading`
    of them go into reading weights. split: how many passes `split` may add. mixtures: how many mixtures `attribute` may
    add. forced: how many trials with forced routes `replay` and `spikes` may add in passes of their own, by key.
    available: bytes of memory that may be taken (None: unknown). stored: bytes of the weights' files. measured: when
    and on which machine the rates were measured (None: the caller gave them). left_out: trials that can't run.
    """

    variants: int
    tokens: tuple[int, int]
    footprint: Footprint
    starting: float
    seconds: float
    loading: float
    checking: float
    sampling: float
    available: float | None
    stored: int
    split: int
    mixtures: MixtureCounts | None
    forced: Mapping[str, MixtureCounts]
    left_out: tuple[LeftOut, ...]
    measured: MachineRates | None = None

    @property
    def total(self) -> tuple[float, float]:
        """Seconds from start to end: (fewest, most)."""
        first = self.starting + self.checking + self.sampling + self.seconds
        mixtures = self.mixtures or MixtureCounts(fewest=0, most=0)
        fewest = self._seconds_of(mixtures.fewest, 1) + sum(
            self._seconds_of(of.fewest, 2) for of in self.forced.values()
        )
        most = self._seconds_of(mixtures.most, 4) + sum(self._seconds_of(of.most, 2) for of in self.forced.values())
        return first + fewest, first + most + self.split * self.seconds

    def _seconds_of(self, mixtures: int, passes: int) -> float:
        """Seconds of this many mixtures, which take so many passes; 0 for none."""
        of_mixture = OF_A_VARIANT * (self.seconds - self.loading) / self.variants
        return mixtures * of_mixture + passes * self.loading if mixtures else 0.0

    @property
    def rows(self) -> list[tuple[str, str]]:
        """A title and a line each about time, memory, disk and further passes; then each trial that is left out."""
        sequences, length = self.tokens
        further = [f"up to {self.split} more for `split`, each at most as long"] if self.split else []
        further += [] if self.mixtures is None else [f"those of about {self.mixtures} for `attribute`"]
        further += [
            f"two of {of.of('trial')} with forced routes for `{key}`" for key, of in self.forced.items() if of.most
        ]
        sampled = f", before it {shown_time(self.sampling)} to sample" if self.sampling else ""
        checked = f", and {shown_time(self.checking)} to check them" if self.checking else ""
        room = "" if self.available is None else f"; {shown_size(self.available)} may be taken"
        disk = f"{shown_size(self.stored)} of weights, read once to check them and once in a pass"
        fewest, most = self.total
        whole = f"about {shown_time(fewest)}" if most < 1.5 * fewest else f"{shown_time(fewest)} to {shown_time(most)}"
        measured = {} if self.measured is None else {"rates": str(self.measured)}
        about = {
            "work": f"{self.variants} variants, {sequences} sequences of {length} tokens",
            "time": f"{whole} where nothing else runs",
            "of it": f"{shown_time(self.starting)} to start, {shown_time(self.seconds)} for the first pass, "
            f"{shown_time(self.loading)} of that for weights{sampled}{checked}",
            "memory": f"{shown_size(self.footprint.total)} at the most, in {self.footprint.at}{room}",
            "disk": disk if self.stored else "no weights are read: they are made from a seed, anew in each pass",
            "passes": "1" + "".join(f", and {text}" for text in further),
            **measured,
        }
        left_out = [("" if index else "left out", left_out_words(group)) for index, group in enumerate(self.left_out)]
        return [*about.items(), *left_out]


def expected(
    recipe: Path,
    *,
    device: str = "auto",
    options: Options | None = None,
    rates: Rates | None = None,
    begun: float = 0.0,
) -> Expected:
    """What a recipe takes on this machine. `rates`: if None, those kept of this machine, else they are measured now.
    `begun`: seconds that the process had taken before this call.

    Reads the config, tokens and profiles, and only the headers of the weights' files. Raises MoeparityError for
    whatever is wrong with them.
    """
    clock = time.process_time()
    study = prepare(recipe, device=device, options=options, values=False)
    starting = begun + time.process_time() - clock
    store = study.model.weights
    observation = Observation.of(study, first_toggles(study))
    walkers = observation.walkers
    sample = study.recipe.tokens.sample
    sequences, length = study.tokens.input_ids.shape
    new_tokens = 0 if sample is None else sample.new_tokens
    footprint = estimate(walkers, store, sequences, length + new_tokens, kept_bytes=bytes_per_token(study))
    measured = None
    if rates is None:
        measured = machine_rates(sorted({d for walker in walkers for d in walker.plan.dtypes}), store.device)
        rates = measured.rates
    amounts = footprint.amounts.repeated(study.recipe.envelope)
    side = [walker for walker in walkers if sample is not None and walker.name == sample.source]
    columns = [sampled_length(walker, length + new_tokens, new_tokens) for walker in side]
    step = estimate(side, store, sequences, columns[0]).amounts if side else Amounts(of={})
    stored, traps = int(amounts.of.get((READ, ""), 0)), expected_traps(study)
    return Expected(
        variants=len(walkers),
        tokens=(sequences, length + new_tokens),
        footprint=footprint,
        starting=starting,
        seconds=rates.seconds_of(amounts),
        loading=rates.seconds_of(amounts.only(MADE, DRAWN)),
        checking=rates.seconds_of(Amounts(of={(MOVED, ""): stored})),
        sampling=new_tokens * rates.seconds_of(step),
        available=available_bytes(store.device) if study.memory_limit is None else study.memory_limit,
        stored=stored,
        split=study.recipe.split,
        mixtures=expected_mixtures(study) if study.recipe.attribute else None,
        forced={"replay": MixtureCounts(fewest=traps, most=traps), "spikes": expected_forced(study)},
        measured=measured,
        left_out=left_out(observation.refused),
    )


def trials_left_out(recipe: Path) -> tuple[LeftOut, ...]:
    """The trials of a recipe's first pass that can't run; reads no weights. Raises MoeparityError."""
    study = prepare(recipe, values=False)
    return left_out(Observation.of(study, first_toggles(study)).refused)


def shown_time(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min`, `5.2 hours` or `3.1 days`."""
    for unit, least, size, digits in (("days", 48 * 3600, 86400, 1), ("hours", 5400, 3600, 1), ("min", 90, 60, 0)):
        if seconds >= least:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 2 else f"{seconds:.1f} s"
