"""Public cases retold at small size: each planted in a program of transformers in the way of the bug, with the doctor's
screen beside what people found.

    python -m benchmarks.doctor.retold [--out PAGE]

The issues were read on 2026-11-28.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moeparity.inputs.machine import cpu_name
from tests.doctor.faulty import cut_to, older_prompt
from tests.doctor.programs import drifted, log, scored, tokens, two_layers

_PROMPT = 8
_BASE = 1e4
"""The checkpoint's rope_theta."""
_YARN = 1.4159


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A public case. people: what was reported, found and done, in sentences. planted: what stands for it here. off:
    which side has it. values: what that side says of the tokens, by the weights, those before the update, and the ids.
    says: how what the doctor names is their cause; "" where it is so by its name.
    """

    title: str
    people: str
    planted: str
    off: str
    values: Callable[[Path, Path, Tensor], Tensor]
    says: str = ""


def rotated_in_part(width: int, model: Any) -> None:
    """Queries and keys of which only the first columns are rotated, in pairs and by frequencies of that width."""
    powers = torch.arange(0, width, 2) / width

    def rotate(_: Any, __: Any, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1])[:, None] * _BASE**-powers
        cos, sin = (torch.cat([of, of], -1)[:, None] for of in (angles.cos(), angles.sin()))
        part = x[..., :width].float()
        low, high = part.chunk(2, -1)
        turned = part * cos + torch.cat([-high, low], -1) * sin
        return torch.cat([turned.to(x.dtype), x[..., width:]], -1)

    # Its own rotation is by no angle.
    model.model.rotary_emb.inv_freq *= 0
    for layer in model.model.layers:
        layer.self_attn.q_norm.register_forward_hook(rotate)
        layer.self_attn.k_norm.register_forward_hook(rotate)


def lengthened(factor: float, model: Any) -> None:
    """A rotation that makes queries and keys longer, as YaRN's factor of attention does."""
    model.model.rotary_emb.attention_scaling = factor


CASES = (
    Told(
        title="huggingface/trl#4159: a temperature on one side",
        people="GRPO with vLLM and a temperature of 0.6: the importance ratio of first tokens printed as 2, in place"
        " of 0.85 to 1.15. vLLM returned log-probabilities of the raw logits, the trainer's were divided by "
        "the temperature. Reported on 2025-09-28; the pull request that asks for processed log-probabilities "
        "(#4163) is of the next day.",
        planted="the trainer divides by 0.6, the sampler does not",
        off="trainer",
        values=lambda current, _, ids: scored(current, ids, 4, temperature=0.6),
    ),
    Told(
        title="huggingface/trl#6789: log-probabilities of a truncated distribution",
        people="With top_p, top_k or min_p, vLLM's processed log-probabilities are of the tokens that are left, the "
        "trainer's of the whole vocabulary: the importance ratio is biased by the mass that is kept. Reported"
        " on 2026-08-18, with two other frameworks named that had met it before; open when it was read.",
        planted="the sampler renormalises over the 20 likeliest tokens",
        off="sampler",
        values=lambda current, _, ids: cut_to(current, ids, 20),
    ),
    Told(
        title="PrimeIntellect-ai/prime-rl#1650: a prefix cache that outlives an update",
        people="The KL between trainer and sampler had grown since another package was updated (#1572): prompt log-"
        "probabilities were no longer asked for, so vLLM began to cache prefixes, and these were not reset "
        "after weight updates. Mended by a pull request of 2026-01-24 that resets it.",
        planted="keys and values of the prompt by the weights before the update, the response behind them by those "
        "after",
        off="sampler",
        values=lambda current, previous, ids: older_prompt(current, previous, ids, _PROMPT),
    ),
    Told(
        title="huggingface/transformers#48241: another rotary width",
        people="transformers did not read `rotary_dim` of MiniMax-M2 and rotated all columns of a head in place of "
        "half of them: a mean KL of 13.1. NVIDIA-NeMo/Automodel#3643 met it with the reference on the wrong "
        "side: 0.086 once mended. Reported on 2026-08-23, of 5.12.1 and later; the pull request that was "
        "merged (#48486) is of 2026-09-02.",
        planted="the other way round, since this model rotates all 32 columns of a head: the trainer rotates 16, in "
        "pairs and by frequencies of that width",
        off="trainer",
        values=lambda current, _, ids: scored(current, ids, 4, patch=partial(rotated_in_part, 16)),
    ),
    Told(
        title="PrimeIntellect-ai/prime-rl#3028: YaRN's factor of attention",
        people="A checkpoint sets `attention_factor` to 1, which transformers takes; vLLM reads another key and "
        "derives 0.1 ln(64) + 1 = 1.4159. The mismatch KL was 0.0242 before and 0.0027 after the trainer was "
        "made to derive it too (2026-07-14).",
        planted="the sampler's queries and keys are 1.4159 times as long",
        off="sampler",
        values=lambda current, _, ids: scored(current, ids, 4, patch=partial(lengthened, _YARN)),
        says=f"Queries and keys that are both {_YARN} times as long make scores {_YARN**2:.4f} times as large, which "
        "is what a softmax scale of that size makes.",
    ),
)


def main() -> int:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doctor.retold", description=__doc__)
    parser.add_argument("--out", type=Path, help="write the page, as Markdown, to this file")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    text = "\n".join(_page()) + "\n"
    print(text) if out is None else out.write_text(text, "utf-8")
    return 0


def _page() -> Iterator[str]:
    day = f"{datetime.now(UTC):%Y-%m-%d}, on {cpu_name()}, one thread"
    versions = f"torch {version('torch')}, transformers {version('transformers')}, Python {platform.python_version()}"
    yield "# The doctor on public cases\n"
    yield f"Written by `python -m scripts.pages doctor-cases` on {day}; {versions}.\n"
    yield (
        "Five cases that others met and told of, retold at small size: a program of transformers with the bug and one "
        "without it score 24 sequences of 24 tokens with two layers of the shipped checkpoint, and the doctor is given "
        "the log, the checkpoint and the one before the update (weights 20 % off). What was planted it was not told. "
        "Models and sizes of those who met them were others, and so are their figures.\n"
    )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ids = tokens(24, 24)
        current = two_layers(folder / "step-120")
        previous = drifted(current, folder / "step-119")
        right = scored(current, ids, 1, kernel="eager")
        for case in CASES:
            wrong = case.values(current, previous, ids)
            sides = (wrong, right) if case.off == "sampler" else (right, wrong)
            log(folder / "log.jsonl", ids, *sides, prompt=_PROMPT)
            yield from _lines(case, _screen(folder))


def _lines(case: Told, screen: str) -> Iterator[str]:
    yield f"## {case.title}\n"
    yield f"**What people found.** {case.people}\n"
    yield f"**Planted here.** {case.planted[0].upper()}{case.planted[1:]}.\n"
    yield "**The doctor.**\n"
    yield f"```\n{screen}\n```\n"
    if case.says:
        yield f"{case.says}\n"


def _screen(folder: Path) -> str:
    arguments = ("log.jsonl", "--checkpoint", "step-120", "--previous", "step-119", "--sampler", "hf-eager")
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "moeparity.cli", "doctor", *arguments, "--device", "cpu"],
        cwd=folder,
        env={**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in {0, 1, 3}:
        raise SystemExit(done.stderr)
    # A long screen ends with its first lines once more.
    first = done.stdout.partition("\n")[0]
    screen = done.stdout.rpartition(f"\n{first}\n")[0] or done.stdout
    return "$ moeparity doctor " + " ".join(arguments) + "\n" + screen.rstrip()


if __name__ == "__main__":
    raise SystemExit(main())
