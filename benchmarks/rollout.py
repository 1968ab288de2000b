"""A rollout replayed layer by layer against the generation that it is a replay of, and against its own prefill.

    python -m benchmarks.rollout [--sequences 25] [--prompt 8] [--new 200] [--repetitions 5]

transformers generates greedily from the shipped checkpoint, with a dynamic cache; then `moeparity.forward` computes the
same tokens in the same steps, and has to give the same bits. A profile of which every sum has a stated order computes
them in steps too, and all at once, which is the same bits again. Both of a pair run in this process, in alternating
order. A ratio is the median over the repetitions: of processor time, which other programs on the machine change least,
and of wall time beside it. On either side a forward ends with the logits on the CPU; loading is in neither.

Exits with 1 when a weight is read more than once or not at all, or when a ratio of processor time is above its bound.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from benchmarks.turns import header
from moeparity.engine.forward import forward
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from moeparity.plan.schedule.steps import Schedule, rectangle
from tests.hf.reference import ARGUMENTS, load

CHECKPOINT = Path(__file__).parent.parent / "checkpoints" / "quickstart"
STATED = "vllm-batch-invariant"
BOUNDS = {"generate": 0.7, "prefill": 1.3}
"""The most processor time that a replay may take, as a multiple of what it is held against."""

Run = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Seconds of a replay and of what it is held against, of processor time and of wall time; `same`: their bits."""

    profile: str
    against: str
    replay: tuple[float, float]
    other_trainer: tuple[float, float]
    ratio: tuple[float, float]
    same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many sequences, and of each how many tokens are its prompt and how many are generated."""

    sequences: int
    prompt: int
    new: int

    @property
    def schedule(self) -> Schedule:
        """The steps of `generate`: the last token that it gives goes through no step."""
        last = self.prompt + self.new - 1
        decode = (rectangle(0, self.sequences, at, at + 1, "decode") for at in range(self.prompt, last))
        whole = rectangle(0, self.sequences, 0, self.prompt, "prefill")
        prefill = replace(whole, scored=tuple(range(self.sequences)))
        return Schedule(steps=(prefill, *decode), positions="tokens")


def main() -> int:
    """Print the table; 1 when a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=25)
    parser.add_argument("--prompt", type=int, default=8)
    parser.add_argument("--new", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = Load(sequences=options.sequences, prompt=options.prompt, new=options.new)
    print(f"{header(1)}, transformers {transformers.__version__}")
    print(f"{CHECKPOINT.name}: {size.sequences} sequences, prompts of {size.prompt} tokens, {size.new} new ones each")
    read, stored = weights_read(size)
    print(f"weights: {read:,} bytes read in a replay, {stored:,} bytes stored")
    rows = list(measured(size, options.repetitions))
    print(table(rows))
    if not all(row.same for row in rows):
        raise SystemExit("Where bits differ, times say nothing.")
    return int(read != stored or any(row.ratio[0] > BOUNDS[row.against] for row in rows))


def weights_read(size: Load) -> tuple[int, int]:
    """The bytes that a replay in all its steps reads from the checkpoint, and those of its tensors."""
    model = open_model(CHECKPOINT, device="cpu")
    before = model.weights.bytes_read
    ids = torch.zeros(size.sequences, size.prompt + size.new - 1, dtype=torch.int64)
    forward(model, ids, schedule=size.schedule)
    stored = sum(tensor.nbytes for tensor in load(CHECKPOINT, "hf-eager", torch.bfloat16).state_dict().values())
    return model.weights.bytes_read - before, stored


def measured(size: Load, repetitions: int) -> Iterator[Row]:
    """Each transformers profile against `generate`, then stated orders against their own prefill of the last tokens."""
    model = open_model(CHECKPOINT, device="cpu", residency="resident")
    ids = torch.empty(0, 0)
    for profile in ARGUMENTS:
        live = load(CHECKPOINT, profile, torch.bfloat16)
        with without_end(live):
            ids, _ = generated(live, size)
            replay = partial(_replayed, model, ids, size, profile)
            yield _row(profile, "generate", replay, partial(_generated_logits, live, size), repetitions)
    in_steps = partial(_logits, model, ids, profile=STATED, schedule=size.schedule)
    at_once = partial(_logits, model, ids, profile=STATED)
    yield _row(STATED, "prefill", in_steps, at_once, repetitions)


def generated(live: PreTrainedModel, size: Load) -> tuple[torch.Tensor, torch.Tensor]:
    """What transformers generates: the tokens that went through a step, and the logits [B, new, V]."""
    start = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, live.config.vocab_size, (size.sequences, size.prompt), generator=start)
    output: Any = live.generate(  # type: ignore[operator]
        prompts,
        # Token 0 is also the padding's, so that it would be taken for padding.
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=size.new,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        pad_token_id=0,
    )
    return output.sequences[:, :-1], torch.stack(output.logits, 1)


def _generated_logits(live: PreTrainedModel, size: Load) -> torch.Tensor:
    return generated(live, size)[1]


@contextmanager
def without_end(live: PreTrainedModel) -> Iterator[None]:
    """Every sequence is generated to the last token asked for."""
    ends = live.generation_config.eos_token_id
    live.generation_config.eos_token_id = None
    try:
        yield
    finally:
        live.generation_config.eos_token_id = ends


def _replayed(model: Model, ids: torch.Tensor, size: Load, profile: str) -> torch.Tensor:
    """The logits that `generate` gives too."""
    logits = _logits(model, ids, profile=profile, schedule=size.schedule)
    return logits[:, size.prompt - 1 :].float()


def _logits(model: Model, ids: torch.Tensor, **how: Any) -> torch.Tensor:
    return forward(model, ids, **how)["logits"]


def _row(profile: str, against: str, replay: Run, rollout: Run, repetitions: int) -> Row:
    """Both in alternating order, after one call of each that compares bits."""
    sides: Mapping[str, Run] = {"replay": replay, against: rollout}
    same = same_bits(replay().float(), rollout().float())
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for repetition in range(repetitions):
        for name in list(sides)[:: 1 if repetition % 2 else -1]:
            times[name].append(_timed(sides[name]))
    pairs = list(zip(times["replay"], times[against], strict=True))
    clocks = range(2)
    return Row(
        profile=profile,
        against=against,
        replay=_pair(statistics.median(ours[clock] for ours, _ in pairs) for clock in clocks),
        other_trainer=_pair(statistics.median(theirs[clock] for _, theirs in pairs) for clock in clocks),
        ratio=_pair(statistics.median(ours[clock] / theirs[clock] for ours, theirs in pairs) for clock in clocks),
        same=same,
    )


def _timed(run: Run) -> tuple[float, float]:
    """Seconds of processor time and of wall time."""
    processor, wall = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - processor, time.perf_counter() - wall


def _pair(values: Iterator[float]) -> tuple[float, float]:
    processor, wall = values
    return processor, wall


def table(rows: list[Row]) -> str:
    """A line for each row, of processor time; ratios of wall time stand behind."""
    head = f"{'profile':<22}{'against':<10}{'replay':>9}{'other':>9}{'ratio':>8}{'wall':>8}  bits"
    lines = [
        f"{row.profile:<22}{row.against:<10}{row.replay[0]:>7.2f} s{row.other_trainer[0]:>7.2f} s{row.ratio[0]:>8.2f}"
        f"{row.ratio[1]:>8.2f}  {'same' if row.same else 'differ'}"
        for row in rows
    ]
    return "\n".join([head, *lines])


if __name__ == "__main__":
    raise SystemExit(main())
