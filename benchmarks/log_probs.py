"""What each way to take log-probabilities costs a token, from the logits on.

    python -m benchmarks.log_probs [--tokens 2048] [--vocabulary 32768]

Logits are normal with a deviation of 2, tokens drawn from their softmax; the truth is their log-softmax in fp64, over
the same temperature. Every row calls the op's own kernel on those logits in fp32 or rounded to bf16, as a head leaves
them. Prints a table in Markdown; nothing is timed.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch

from benchmarks.turns import header
from moeparity.ops.kernels.log_probs import log_probs as reported
from moeparity.ops.registry import OPS

FP32, BF16, FP64 = torch.float32, torch.bfloat16, torch.float64
DEVIATION = 2.0
DEFAULTS: dict[str, Any] = {a.name: a.default for a in OPS["log_probs"].attributes}
DEFAULTS |= dict.fromkeys(("inputs", "scaled", "output"), FP32)
ROUNDED_07 = float(torch.tensor(0.7, dtype=BF16))

ROWS: tuple[tuple[str, float, torch.dtype, dict[str, Any]], ...] = (
    ("fp32 logits, (x - max) - log sum in fp32", 1, FP32, {"form": "shifted"}),
    ("fp32 logits, x - (max + log sum) in fp32", 1, FP32, {"form": "minus_logsumexp"}),
    ("fp32 logits, log(softmax) in fp32", 1, FP32, {"form": "log_of_softmax"}),
    ("bf16 logits, nothing else rounded", 1, BF16, {"form": "unrounded"}),
    ("bf16 logits, (x - max) - log sum in fp32", 1, BF16, {"form": "shifted"}),
    ("fp32 logits, log-probabilities in bf16", 1, FP32, {"form": "shifted", "output": BF16}),
    ("bf16 logits, log-probabilities in bf16", 1, BF16, {"form": "shifted", "output": BF16}),
    ("bf16 logits over 0.7 in fp32", 0.7, BF16, {"form": "shifted"}),
    ("bf16 logits over 0.7 in bf16", 0.7, BF16, {"form": "shifted", "scaled": BF16}),
    (
        f"bf16 logits over 0.7 in bf16, the temperature too ({ROUNDED_07:g})",
        0.7,
        BF16,
        {"form": "shifted", "scaled": BF16, "temperature": ROUNDED_07},
    ),
)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=32768)
    options = parser.parse_args()
    print(header(torch.get_num_threads()))
    size = f"{options.tokens} tokens, vocabulary {options.vocabulary}"
    print(f"{size}, error of a drawn token's log-probability in nats, its size and its own mean\n")
    print("| what is rounded | mean size | largest | mean |\n|---|---:|---:|---:|")
    generator = torch.Generator().manual_seed(0)
    logits = DEVIATION * torch.randn(options.tokens, options.vocabulary, generator=generator)
    for title, temperature, head, settings in ROWS:
        differences = errors(logits, temperature, head, settings)
        cells = (differences.abs().mean(), differences.abs().max(), differences.mean())
        print(f"| {title} | {' | '.join(f'{float(cell):.2g}' for cell in cells)} |")
    return 0


def errors(logits: torch.Tensor, temperature: float, head: torch.dtype, settings: dict[str, Any]) -> torch.Tensor:
    """Error of the log-probability of one drawn token per row, fp64 [N]; a thousand rows at a time."""
    generator = torch.Generator().manual_seed(1)
    differences = []
    for rows in torch.split(logits, 1024):
        truth = (rows.double() / temperature).log_softmax(-1)
        token = torch.multinomial(truth.exp(), 1, generator=generator)
        at = DEFAULTS | {"temperature": temperature} | settings
        log_probs = reported(rows.to(head)[None], w={}, p={}, at=at)[0].double()
        log_probs = log_probs.log_softmax(-1) if at["form"] == "unrounded" else log_probs
        differences.append((log_probs - truth).gather(-1, token).squeeze(-1))
    return torch.cat(differences)


if __name__ == "__main__":
    sys.exit(main())
