"""The page that the trainings write: no figure by hand, and no sentence that claims what an interval leaves open."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from benchmarks.rl_loop import task
from benchmarks.rl_loop.model import CONFIG, LAYERS, TEMPERATURE, WARM_UP
from benchmarks.rl_loop.objective import CLIP
from benchmarks.rl_loop.run import RATE, TESTED
from benchmarks.rl_loop.seeds import WINDOW, Over, Rows, Seeds, at_end, beside, growth, mean, mean_at_start, push, ratio
from benchmarks.rl_loop.settings import SETTINGS
from moeparity.inputs.machine import cpu_name
from moeparity.output.words import enumerated

LEAST_ESS = 0.5
"""Below this effective share of tokens a mean of ratios hangs on few of them, and its interval is not to be trusted."""
SAME_REWARD = 1e-6
"""Mean rewards that lie closer are those of samples with as many digits at their places."""
ENDS = {
    "entropy": "entropy at the end",
    "reward": "reward of rollouts at the end",
    "tested": "greedy reward at the end",
}
Trainings = Mapping[str, Seeds]


def page(trainings: Trainings, by_trl: Mapping[str, Rows]) -> str:
    """The page of all settings, and of TRL's trainings of the first seed, by the settings that they are held to."""
    parts = [_head(trainings), *_short(trainings), *_record(trainings), *_policy(trainings), *_growth(trainings)]
    return "\n".join([*parts, *_trl(trainings, by_trl), _METHOD.format(**_METHOD_VALUES)])


def reading(seeds: Seeds) -> str:
    """Whether the record pushes or only adds variance, as far as the seeds decide it."""
    of = push(seeds)
    if all(row["mean_abs_delta"] == 0 for rows in seeds for row in rows):
        return "has equal bits"
    if mean(seeds, "ess_fraction").mean < LEAST_ESS or not math.isfinite(of.low):
        return "is not decided: few tokens carry the mean"
    return "pushes" if of.sign else "adds variance, no push shown"


def _head(trainings: Trainings) -> str:
    seeds = next(iter(trainings.values()))
    machine = f"{cpu_name()}, one thread, torch {version('torch')}, transformers {version('transformers')}"
    return f"""# Mismatch over updates: what pushes a policy, and what only adds noise?

Your sampler and your trainer differ: in rounding, in the meaning of a log-probability, in the age of weights or keys.
Does the difference push the policy somewhere, or does it only add variance? And does it grow as training goes on?

A toy of {LAYERS} layers of {CONFIG["num_experts"]} experts learns to sort five digits: {len(trainings)} settings, \
{len(seeds)} seeds of each, {len(seeds[0])} updates.
`python -m scripts.pages rl-loop rl-loop-curves` wrote this page on {datetime.now(UTC):%Y-%m-%d}, \
{machine}.
In brackets: 95 % intervals of Student's t over seeds.

![Six panels over the updates, mean of the seeds and their range](rl-loop.svg)
"""


def _short(trainings: Trainings) -> Iterator[str]:
    yield "**In short**\n"
    readings = {name: reading(seeds) for name, seeds in trainings.items()}
    for text in dict.fromkeys(readings.values()):
        names = [name for name, of in readings.items() if of == text]
        yield f"- The record {text}: {_names(names)}."
    yield from _moved(trainings)
    grown = {name: growth(seeds, "k3") for name, seeds in trainings.items() if readings[name] != "has equal bits"}
    yield from _signed(grown, "growth of k3 shown", "decline of k3 shown", "neither growth nor decline of k3 shown")
    yield ""


def _moved(trainings: Trainings) -> Iterator[str]:
    others = {name: seeds for name, seeds in trainings.items() if name != "matched"}
    for column, noun in ENDS.items():
        of = {name: beside(seeds, trainings["matched"], column) for name, seeds in others.items()}
        yield from _signed(of, f"{noun} above matched", f"{noun} below matched", f"no difference in {noun} shown")


def _signed(of: Mapping[str, Over], above: str, below: str, neither: str) -> Iterator[str]:
    for text, sign in ((above, 1), (below, -1), (neither, 0)):
        if names := [name for name, value in of.items() if value.sign == sign]:
            yield f"- {text[0].upper()}{text[1:]}: {_names(names)}."


def _record(trainings: Trainings) -> Iterator[str]:
    yield f"""## Does the record push?

delta = log P_trainer - log P_record of the sampled tokens, rho = exp(delta). For a record that is the sampler's true
distribution the mean of rho is 1, however far the two are apart: weights of the record then correct exactly, and what
is left is variance. The mean of delta does not tell: it is minus the KL, below 0 for every true record. A mean of rho
that is surely not 1 says that the record is not what was sampled from. *Is not decided*: the effective sample size is
below {LEAST_ESS:.0%}, and a few heavy weights, or their absence, make the mean.
"""
    columns: Mapping[str, Callable[[Seeds], str]] = {
        "mean abs(delta)": lambda seeds: f"{mean(seeds, 'mean_abs_delta').mean:.2g}",
        "k3": lambda seeds: _between(mean(seeds, "k3")),
        "mean delta": lambda seeds: _between(_negative(mean(seeds, "k1"))),
        "mean rho - 1": lambda seeds: _between(push(seeds)),
        "reading": reading,
    }
    yield from _table(trainings, columns)


def _policy(trainings: Trainings) -> Iterator[str]:
    matched = trainings["matched"]
    yield f"""## What becomes of the policy

Clip rate: tokens that the clip of {CLIP} leaves without a gradient; 0 by construction where the record is not the
ratio's denominator. ESS: of all tokens, that the ratios leave effective. Lag: updates between the sampler's weights and
the trainer's. Entropy, and reward of the rollouts: of the last {WINDOW} steps, less that of the matched training of the
same seed, which ends at entropy {_end(matched, "entropy")} and reward {_end(matched, "reward")}, from \
{_begin(matched, "entropy")} and {_begin(matched, "reward")}. Greedy: the same of
{TESTED} other prompts, completed greedily by the trainer's own weights at the end.
"""
    columns: Mapping[str, Callable[[Seeds], str]] = {
        "clip rate": lambda seeds: f"{mean(seeds, 'clip rate').mean:.2%}",
        "ESS": lambda seeds: f"{mean(seeds, 'ess_fraction').mean:.3f}",
        "lag": lambda seeds: f"{mean(seeds, 'lag').mean:.1f}",
        "entropy": lambda seeds: _between(beside(seeds, matched, "entropy"), "+.3f"),
        "reward": lambda seeds: _between(beside(seeds, matched, "reward"), "+.3f"),
        "greedy": lambda seeds: _between(beside(seeds, matched, "tested"), "+.3f"),
    }
    yield from _table(trainings, columns)


def _growth(trainings: Trainings) -> Iterator[str]:
    yield f"""## How does it grow?

k3 and the mean of abs(delta) over the last {WINDOW} steps, as multiples of steps 2 to {WINDOW + 1}. (In the first step
nothing is stale, and a lag of 16 is reached in step 17.) Flips: token-layers in which sampler and trainer choose other
sets of experts.
"""
    columns: Mapping[str, Callable[[Seeds], str]] = {
        "k3 first": lambda seeds: f"{statistics.fmean(mean_at_start(rows, 'k3') for rows in seeds):.2g}",
        "k3 times": lambda seeds: _times(growth(seeds, "k3")),
        "abs(delta) times": lambda seeds: _times(growth(seeds, "mean_abs_delta")),
        "flips": lambda seeds: f"{mean(seeds, 'flips').mean:.2%}" if "flips" in seeds[0][0] else "",
    }
    yield from _table(trainings, columns)
    of = ratio(trainings["fp8, replay"], trainings["fp8"], "k3")
    yield f"Expert ids replayed make fp8's k3 {_times(of)} times as large{_unless_sure(of)}.\n"


def _unless_sure(of: Over) -> str:
    return "" if of.sign else ": no effect shown"


def _trl(trainings: Trainings, by_trl: Mapping[str, Rows]) -> Iterator[str]:
    yield """## Is this the objective that people run?

GRPO of TRL 1.16.0 trains the same model on the same prompts and noise; transformers samples, token after token. TRL
computes advantages, loss and updates, and the metrics below are made of its own log-probabilities. It corrects by a
record only where a vLLM has sampled; it is told that one has, and weighs tokens (`token_truncate`, at 2).
"""
    columns = (
        "first step with another reward",
        "before it: abs(difference) of entropy",
        "of mean delta",
        "reward at the end",
    )
    yield f"| setting, seed 0 | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}"
    for name, rows in by_trl.items():
        pairs = list(zip(rows, trainings[name][0], strict=True))
        differing = (step for step, (a, b) in enumerate(pairs) if abs(a["reward"] - b["reward"]) > SAME_REWARD)
        first = next(differing, len(pairs))
        most = [max((abs(a[key] - b[key]) for a, b in pairs[:first]), default=math.nan) for key in ("entropy", "k1")]
        ends = f"{at_end(rows, 'reward'):.3f}, in this loop {at_end(trainings[name][0], 'reward'):.3f}"
        place = f"{first + 1} of {len(pairs)}" if first < len(pairs) else "none"
        yield f"| {name} | {place} | {' | '.join(f'at most {value:.0e}' for value in most)} | {ends} |"
    yield "\nOnce a last bit gives another sample, both trainings go their own ways.\n"


_METHOD = """## How it is made

- **Model and task**: `benchmarks/rl_loop/model.py` (fp32, vocabulary of 16), warmed up by {warm} supervised steps. The
  reward is the share of digits at their places. {prompts} prompts x {group} completions a step, GRPO's advantages, one
  update of Adam (rate {rate}) for each batch, temperature {temperature}.
- **Same noise**: settings of one seed begin with the same weights, and get the same prompts and the same Gumbel noise;
  a sample is the argmax of noise and log-probabilities. So rows are compared seed by seed.
- **The objective** takes its clipped ratio to the record, as PipelineRL does. *TIS* and *MIS* take it to the trainer's
  own log-probabilities, and weigh each token by rho, truncated at 2, or 0 outside of 1/2 to 2. What is cut off so is a
  bias of their own, with any record.
- **The sampler**: with a profile (matched, bf16 head, fp8) moeparity's forward computes the distributions, as one
  prefill, and samples are drawn from exactly these; otherwise transformers decodes with a cache.
- **fp8** is `moeparity quantise --like fp8` of each update's weights (a scale for each row), multiplied out;
  activations stay in fp32. **Stale prefix**: keys and values of the four header tokens are those of the weights before
  the first update.
- **Why raw can push**: recorded before a temperature below 1, likely tokens have a ratio above 1 before any update.
  Above the clip they have no gradient where the advantage is positive, and keep it where it is negative.
- The settings are defined in `benchmarks/rl_loop/settings.py`, the metrics in `docs/metrics.md`.

## What it cannot say

- Whether your model behaves so. The toy is small, its updates are large, and there are few of them: *no difference
  shown* is said of these seeds and updates, not of your run. What carries over is the reading of the mean of rho.
- What bf16 in all ops, other kernels and updates in mid-rollout do: they are not trained here.
  `docs/guides/weight-updates.md` splits the difference of one rollout.
- Some of many intervals at 95 % miss by chance: each is read by itself here.
- `python -m benchmarks.rl_loop FOLDER --setting fp8 --steps 200` trains one setting, and goes on where it was killed.
"""
_METHOD_VALUES = {
    "warm": WARM_UP,
    "prompts": task.PROMPTS,
    "group": task.GROUP,
    "rate": RATE,
    "temperature": TEMPERATURE,
}


def _table(trainings: Trainings, columns: Mapping[str, Callable[[Seeds], str]]) -> Iterator[str]:
    yield f"| setting | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}"
    for name, seeds in trainings.items():
        yield f"| **{name}**: {SETTINGS[name].says} | {' | '.join(cell(seeds) for cell in columns.values())} |"
    yield ""


def _names(names: Sequence[str]) -> str:
    return enumerated([f"*{name}*" for name in names])


def _between(of: Over, digits: str = ".2g") -> str:
    return f"{of.mean:{digits}} [{of.low:{digits}}, {of.high:{digits}}]" if math.isfinite(of.mean) else ""


def _times(of: Over) -> str:
    times = Over(*(math.exp(min(bound, 700.0)) for bound in (of.mean, of.low, of.high)))
    return _between(times) if math.isfinite(of.mean) else ""


def _negative(of: Over) -> Over:
    return Over(0.0 - of.mean, 0.0 - of.high, 0.0 - of.low)


def _end(seeds: Seeds, name: str) -> str:
    return f"{statistics.fmean(row[name] for rows in seeds for row in rows[-WINDOW:]):.2f}"


def _begin(seeds: Seeds, name: str) -> str:
    return f"{statistics.fmean(row[name] for rows in seeds for row in rows[:WINDOW]):.2f}"
