"""The tokens of a starting recipe: text if the checkpoint has a tokenizer that can be read, else random ids."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from moeparity import paths
from moeparity.errors import TokensError, Where
from moeparity.inputs.tokens.tokenizer import open_tokenizer

PROMPTS = (
    "The river had risen in the night, and by morning the lower fields",
    "She closed the ledger, looked at the clock, and said",
    "In 1905 four papers appeared in the Annalen der Physik, of which the third",
    "Water boils at a lower temperature on a mountain because",
    "The committee could not agree on the budget, so the chair proposed",
    "To change a bicycle tyre, first release the brake and then",
    "The main difference between a stack and a queue is that",
    "A mixture-of-experts layer sends each token to",
    "Q: What is the capital of Portugal?\nA:",
    "Q: Why is the sky blue?\nA: Sunlight is scattered by",
    "User: My program prints nothing. What should I check first?\nAssistant:",
    "Translate to French: The train leaves at half past seven.\nFrench:",
    "Summarise in one sentence: The bridge was closed for repairs after the storm.\nSummary:",
    "def fibonacci(n: int) -> int:\n    ",
    "import torch\n\ndef rms_norm(x, weight, eps):\n    ",
    "SELECT name, COUNT(*) FROM orders WHERE",
    'fn main() {\n    let numbers = vec![3, 1, 2];\n    println!("',
    "#!/bin/sh\nfor file in *.txt; do\n",
    '{"name": "Ada", "born": 1815, "fields": [',
    "<ul>\n  <li>Apples</li>\n  <li>",
    "Let x + 3 = 11. Then x =",
    "17 * 24 =",
    "The sum of the first n odd numbers is n squared. Proof by induction:",
    "Theorem. There are infinitely many primes.\nProof. Suppose",
    "1. Preheat the oven.\n2. Mix the flour and the salt.\n3.",
    "Monday, Tuesday, Wednesday,",
    "Dear Dr. Okafor,\n\nThank you for your letter of 12 March. I am",
    "Der Zug nach Hamburg hat heute",
    "La biblioteca abre a las nueve y",
    "Les trois premiers chapitres racontent",
    "昨日は朝から雨が降っていたので、",
    "机器学习中的过拟合是指",
)
"""Text prompts: prose, dialogue, code, mathematics, lists and other languages."""

LENGTH = 12
"""The number of tokens of a random prompt: about as many as the text prompts have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Prompts as JSON lines, the tokenizer that they need (None for ids), and a comment that says what they are."""

    lines: str
    tokenizer: str | None
    comment: str


def prompts(checkpoint: Path, vocab_size: int) -> Prompts:
    """Prompts for a checkpoint. Each is a sequence of its own, so that there are enough sequences for a verdict.

    They are text if the folder has a readable tokenizer.json whose ids lie inside the vocabulary; else random ids.
    """
    reason = _obstacle(checkpoint, vocab_size)
    if reason is None:
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in PROMPTS]
        comment = f"{len(lines)} short prompts; put your own here"
        return Prompts(lines="\n".join(lines), tokenizer="checkpoint", comment=comment)
    generator = random.Random(0)  # noqa: S311  (no secret)
    rows = [[generator.randrange(vocab_size) for _ in range(LENGTH)] for _ in PROMPTS]
    lines = [json.dumps({"input_ids": row}) for row in rows]
    comment = f"{len(lines)} prompts of random ids, which are no text, since {reason}"
    return Prompts(lines="\n".join(lines), tokenizer=None, comment=comment)


def _obstacle(checkpoint: Path, vocab_size: int) -> str | None:
    """Why the text prompts can't be used; None if they can."""
    if not paths.is_file(checkpoint / "tokenizer.json"):
        return "the checkpoint has no tokenizer.json"
    try:
        tokenizer = open_tokenizer("checkpoint", Where(checkpoint), checkpoint)
    except TokensError as error:
        return str(error).partition(": ")[2].rstrip(".")
    ids = [tokenizer.encode(text) for text in PROMPTS]
    if not all(ids) or max(max(row) for row in ids) >= vocab_size:
        return "its tokenizer.json makes ids outside the vocabulary of config.json, or none"
    return None
