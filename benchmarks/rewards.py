"""The validation loss of the shipped reward model under tensor parallel, and what of its change is noise.

    python -m benchmarks.rewards [--out docs/generated/rewards.md]

200 pairs of `recipes/reward.jsonl`, on 1, 2, 4 and 8 simulated ranks: o_proj and down_proj cut row-wise, with the score
head whole or cut row-wise too, or everything cut column-wise; in bf16, in fp32, and in fp32 under autocast. Each is
held against one rank, pair by pair. Some minutes on one free core.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import linear, softplus

from moeparity.bisection.rewards.data import Rewards
from moeparity.bisection.rewards.measure import rewards
from moeparity.engine.forward import forward
from moeparity.errors import Where
from moeparity.inputs.machine import cpu_name
from moeparity.inputs.model import Model, open_model
from moeparity.inputs.tokens import TokenSet, read_tokens
from moeparity.inputs.tokens.pairs import paired
from moeparity.numerics.bits import same_bits
from moeparity.ops.preference import CHOSEN

CHECKPOINT, PAIRS = Path("checkpoints/reward"), Path("recipes/reward.jsonl")
RANKS: Final = (1, 2, 4, 8)
BATCHES: Final = (2, 4, 16, 50)
MICRO_BATCH: Final = 8
BEHIND: Final = ("norm", "reduce", "preference")
"""The nodes behind the layers whose values are whole under every cut."""
GEMMS: Final = ((96, 96), (96, 192), (2048, 2048), (4096, 2560), (9728, 2560))
"""Inputs and outputs: two of the checkpoint, a square one, and o_proj and down_proj of Qwen3-4B."""
ROWS: Final = (1, 8, 48)

_CLOSING = ("layers[*].attention.o_proj", "layers[*].mlp.down_proj")
PLANS: Mapping[str, Mapping[str, str]] = {
    "row-wise": {},
    "row-wise, score too": {"score:parallel": "row"},
    "column-wise": {f"{node}:parallel": "column" for node in _CLOSING},
}
"""By name what is set of the cuts; the graph's own cut o_proj and down_proj row-wise, and leave the score head
whole."""


@dataclass(frozen=True)
class Numerics:
    """A dtype and a profile; `partial`: what partial sums are rounded to where not to the dtype."""

    profile: str
    dtype: str
    partial: str | None = None


NUMERICS: Mapping[str, Numerics] = {
    "bf16": Numerics("hf-default", "bf16"),
    "fp32, autocast": Numerics("hf-default-autocast-bf16", "fp32", partial="bf16"),
    "fp32": Numerics("hf-default", "fp32"),
}


@cache
def opened() -> tuple[Model, TokenSet]:
    """The checkpoint, and its pairs."""
    model = open_model(CHECKPOINT, device="cpu", residency="resident")
    return model, paired(read_tokens(PAIRS, checkpoint=CHECKPOINT), model.graph, Where(PAIRS))


def values(numerics: Numerics, plan: str, ranks: int, micro_batch: int = MICRO_BATCH) -> dict[str, Tensor]:
    """Every value of a forward over all pairs that is whole, by node; at real tokens alone, in order."""
    model, tokens = opened()
    settings: dict[str, Any] = dict(PLANS[plan]) if ranks > 1 else {}
    if ranks > 1:
        cut = [*(() if plan == "column-wise" else _CLOSING), *(["score"] if plan.endswith("too") else [])]
        settings |= {f"{node}:partial": numerics.partial for node in cut if numerics.partial}
        reduces = [
            *(() if plan == "column-wise" else ("layers[*].*.reduce",)),
            *(["reduce"] if plan.endswith("too") else []),
        ]
        settings |= {f"{node}:collective": "gloo.all_reduce" for node in reduces}
    return forward(
        model,
        tokens.input_ids,
        profile=numerics.profile,
        dtype=numerics.dtype,
        settings=settings,
        placement={"tensor": ranks},
        attention_mask=tokens.attention_mask,
        micro_batch=micro_batch,
        save=BEHIND,
    )


def margins(computed: Mapping[str, Tensor]) -> Tensor:
    """Of each pair the score of the chosen sequence minus that of the other: fp64 [pairs]."""
    _, tokens = opened()
    return computed["preference"][..., CHOSEN].double().sum(-1)[tokens.loss_mask.any(1)]


def has_bits_of(single: Mapping[str, Tensor], several: Mapping[str, Tensor]) -> bool:
    """Whether all values of real tokens behind the layers have the same bits: the last norm's, scores, differences."""
    _, tokens = opened()
    real = tokens.attention_mask
    return all(same_bits(single[node][real], several[node][real]) for node in BEHIND)


def rows(numerics: Numerics, single: Mapping[str, Tensor]) -> Iterator[str]:
    """A line of the table for each plan and number of ranks."""
    alone = margins(single)
    for plan in PLANS:
        for ranks in RANKS[1:]:
            several = values(numerics, plan, ranks)
            result = rewards(alone, margins(several))
            bits = "yes" if has_bits_of(single, several) else "no"
            yield f"| {plan} | {ranks} | {_loss(result)} | {_change(result)} | {result.turned} | {bits} |"


def noise(numerics: Numerics, single: Mapping[str, Tensor]) -> Iterator[str]:
    """A line for each other micro-batch on one rank."""
    for size in BATCHES:
        result = rewards(margins(single), margins(values(numerics, "row-wise", 1, size)))
        yield f"| one rank, micro-batch {size} | 1 | {_loss(result)} | {_change(result)} | {result.turned} | |"


def _loss(result: Rewards) -> str:
    return f"{result.candidate.estimate:.6f}"


def _change(result: Rewards) -> str:
    change = result.change
    if result.largest == 0:
        return "0, every pair | 0"
    return f"{change.estimate:+.1e} [{change.low:+.1e}, {change.high:+.1e}] | {result.largest:.1e}"


def batches(single: Mapping[str, Tensor]) -> str:
    """How far the loss of 25 batches of 8 pairs lies from one another."""
    losses = softplus(-margins(single)).view(-1, 8).mean(1)
    return f"{float(losses.min()):.3f} to {float(losses.max()):.3f}, standard deviation {float(losses.std()):.3f}"


def seen_cuts() -> Iterator[str]:
    """A line for each GEMM: over how many ranks its outputs are cut so that some have other bits than whole."""
    generator = torch.Generator().manual_seed(0)
    for inputs, outputs in GEMMS:
        weight, x = (torch.randn(n, inputs, generator=generator) for n in (outputs, max(ROWS)))
        for dtype in (torch.bfloat16, torch.float32):
            cells = []
            for count in ROWS:
                whole = linear(x[:count].to(dtype), weight.to(dtype))
                parts = {
                    ranks: [linear(x[:count].to(dtype), w) for w in weight.to(dtype).chunk(ranks)] for ranks in RANKS
                }
                differing = [str(ranks) for ranks, part in parts.items() if not same_bits(torch.cat(part, -1), whole)]
                cells.append(", ".join(differing) or "none")
            yield f"| {inputs} x {outputs} | {str(dtype).removeprefix('torch.')} | {' | '.join(cells)} |"


def page() -> str:
    """The whole page."""
    parts = [_HEAD.format(date=date.today().isoformat(), cpu=cpu_name(), torch=torch.__version__)]
    for name, numerics in NUMERICS.items():
        single = values(numerics, "row-wise", 1)
        alone = rewards(margins(single), margins(single)).reference
        parts.append(
            f"## {name}\n\nOne rank: loss {alone.estimate:.6f} [{alone.low:.3f}, {alone.high:.3f}] nats per pair over "
            f"other pairs; batches of 8 pairs: {batches(single)}.\n\n{_COLUMNS}\n"
            + "\n".join([*rows(numerics, single), *noise(numerics, single)])
            + "\n"
        )
    parts.append("\n".join([_CUTS, *seen_cuts(), ""]))
    return "\n".join([*parts, _ARTICLE])


_HEAD = """# A reward model under tensor parallel

How far does the validation loss of one reward model move with the number of ranks, and what of that is noise? Written
by `python -m scripts.pages rewards` on {date}, {cpu}, one thread, torch {torch}:
checkpoints/reward (dense Qwen3, 3 layers) on the 200 pairs of recipes/reward.jsonl, micro-batch 8, partial sums added
up by gloo. The ranks are simulated. That their bits are those of torch's `parallelize_module` is verified in bf16 and
fp32 (tests/hf/test_tensor_parallel.py, tests/hf/test_rewards.py), under autocast it is inferred.

*change* is the loss minus that on one rank, on the same pairs, with a 95 % interval over other pairs; *largest* is that
of a single pair. *turned*: pairs of which another sequence is preferred. *bits*: whether all values of real tokens
behind the layers (the last norm's, the scores, the differences) have the bits of one rank.
"""
_COLUMNS = """| cut | ranks | loss | change | largest | turned | bits of one rank |
|---|---|---|---|---|---|---|"""
_CUTS = """## Where a GEMM sees the cut

Column-wise each rank computes some of the outputs, with all inputs of the sum. Its bits are those of one rank as long
as the kernel does not choose its order by the number of outputs. Here torch's GEMM on random numbers, whole and cut:
the numbers of ranks at which some output has other bits.

| inputs x outputs | dtype | 1 row | 8 rows | 48 rows |
|---|---|---|---|---|"""
_ARTICLE = """## Beside the article

NeMo-RL's guide on DTensor tensor parallel prints 0.6035, 0.6010, 0.5864 and 0.6021 on 1, 2, 4 and 8 ranks, and the same
four numbers with and without autocast. These are losses at the end of a training under each number of ranks. The tables
above are of one checkpoint that is only evaluated, and so say what the ranks' sums alone do to a loss.
"""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/generated/rewards.md"))
    out = parser.parse_args().out
    torch.set_num_threads(1)
    out.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
