"""A trainer that scored texts tokenised again: what `moeparity metrics` says of it, for docs/logs.md.

`python -m benchmarks.retokenised` lets transformers score tokens of the shipped checkpoint twice: as they were sampled,
and as a tokenizer that merges `ab` and `c` to `abc` gives them back. An eighth of the sequences has such a place, and
in another eighth a run of two image placeholders has become one of four.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from moeparity.inputs.machine import cpu_name
from tests.logs.vocabulary import IMAGE, ids, tokenizer_file

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "quickstart"
TOKENS, SEQUENCES, PROMPT = 16, 32, 4
LETTERS = "abcdefghijklmnopqrstuvwxyz"
COMMAND = "moeparity metrics sampled.jsonl --trainer scored.jsonl --tokenizer . --by retokenised"


def main() -> None:
    """Print the session and what it ran on."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        command = [sys.executable, "-m", "moeparity.cli", *COMMAND.split()[1:]]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)  # noqa: S603
    lines = done.stdout.rstrip().splitlines()
    end = next(place for place, line in enumerate(lines) if line.strip().startswith("ruled out"))
    print("\n".join(["```", f"$ {COMMAND}", *lines[:end], "[...]", "```", ""]))
    print(f"{datetime.now(UTC):%Y-%m-%d}, {cpu_name()}, torch {torch.__version__}, 1 thread")


def write(folder: Path) -> None:
    """The tokenizer and the logs of both sides."""
    tokenizer = tokenizer_file(folder, LETTERS)
    drawn = torch.randint(2, 28, (SEQUENCES, TOKENS), generator=torch.Generator().manual_seed(7)).tolist()
    apart, whole, image = ids(tokenizer, "ab", "c"), ids(tokenizer, "abc"), ids(tokenizer, IMAGE)
    model: Any = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16)
    model.eval()
    sides: dict[str, list[str]] = {"sampled": [], "scored": []}
    for number, row in enumerate(drawn):
        between = {0: (apart, whole), 1: (image * 2, image * 4)}.get(number % 8, ([], []))
        for side, inserted in zip(sides, between, strict=True):
            tokens = [*row[:8], *inserted, *row[8:]]
            scored = [place >= PROMPT and token != image[0] for place, token in enumerate(tokens)]
            with torch.no_grad():
                logits = model(torch.tensor([tokens]), use_cache=False).logits[0, :-1].float()
            values = logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[1:, None])[:, 0]
            record = {"id": number, "input_ids": tokens, "mask": list(map(int, scored)), "prompt_tokens": PROMPT}
            sides[side].append(json.dumps({**record, "logprobs": [None, *values.tolist()]}))
    for side, lines in sides.items():
        (folder / f"{side}.jsonl").write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
