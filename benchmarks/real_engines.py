"""How many log-probabilities that a real vLLM for CPUs recorded the profile of this CPU reproduces, every bit.

`python -m benchmarks.real_engines` serves small checkpoints of four models with vLLM in an environment of its own
(`python -m tests.engines.live` makes it), in five modes and on two ranks, and computes the same tokens in the engine's
own steps. On the page that `--out` names this machine's part is replaced; what other machines showed stays.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from moeparity.inputs.machine import cpu_name
from moeparity.inputs.model import Model, open_model
from tests.engines.live import ENVIRONMENTS, FOLDER, INSTALLED, ROOT
from tests.real.ranks import LENGTHS, WIDTHS, checkpoint_for_ranks, serve_on_ranks, share_of_ranks
from tests.real.served import (
    CACHED,
    CHECKPOINTS,
    CHUNKS,
    PLAIN,
    PROFILE,
    Run,
    Share,
    checkpoint,
    drawn_prompts,
    replayed,
    serve,
    shares,
)  # fmt: skip

SHIPPED = "qwen3_moe, shipped"
ALONE, SEED = (5, 70, 300, 900), 4
MENDED = "deepseek_v3, rope mended"
BY_SHIPPED = ("joining",)
"""The mode of the shipped checkpoint, of which 32 requests draw 48 tokens each."""
HEAD = """# Held to a real vLLM

How much of what a real server recorded does this tool give again, bit for bit?

Written by `python -m scripts.pages real-engines`, a part for each machine; vLLM runs in an environment of its own. It
has a library of kernels for each of three instruction sets, and each library a profile.

Small checkpoints of random weights in bf16 (`tests/real/served.py`), and the shipped one, are served by vLLM's own
engine, scheduler, paged cache, kernels and sampler. It records the log-probability of every token of its prompts and of
every token that it draws. The same tokens are then computed in the steps that its worker ran. A token counts as
reproduced if all 64 bits of its recorded log-probability are those computed here. There is no tolerance.

- *alone*: prompts of {alone} tokens, one request at a time. *together*: all requests at once. *joining*: each request
  is added before a random step, so that prompts and drawn tokens share steps.
- *chunks*: as joining, with at most 48 tokens in a step, and prompts of more. *prefix cache*: requests that begin with
  the same tokens, some of which are found in the cache; vLLM looks up no cache for a request that asks for
  log-probabilities of its prompt.
- *two ranks*: tensor parallelism of two, each rank in a process of its own; the requests decode together.
"""
TABLE = """
Run on {date} with one thread a rank, torch {torch}, {engine}.

| model | mode | requests | steps | tokens of prompts | drawn tokens |
|---|---|---|---|---|---|
"""
PART = re.compile(r"^## (.*, profile `.*`)\n((?:.*\n)*?)(?=\n## )", re.MULTILINE)
"""A machine's heading, and what stands below it."""
CAUSES = """
## What is not reproduced, and why

- **deepseek_v3**, as vLLM {version} computes it: its rotary embedding for CPUs takes the stride of heads for that of
  tokens (csrc/cpu/pos_encoding.cpp, `rotary_embedding`; vllm/model_executor/layers/mla.py hands it three axes). Of
  queries and keys other numbers are rotated than those that are meant, by other positions. That is a mistake, and no
  choice. `tests/real/test_vllm_cpu_rope.py` calls the kernel and finds every bit of this mistake. In the rows of
  *rope mended* the engine's process hands that kernel two axes, and nothing else is changed.
- **deepseek_v3 in chunks** takes as many steps as joining: no prompt was cut. How a later part of a prompt attends to
  what is in the cache is not shown, and not stated.
- **gpt_oss in chunks**, one token on the Xeon: probably the second of the causes below. That part was measured before
  it was known.

Three causes were found on the AMD EPYC, where the engine had equal bits when it served one batch twice. Before,
up to 51 of 388 tokens of a run had other bits, in four models, and all of deepseek_v3 on two ranks.

- Experts take `exp` from Sleef, where the profile had the C library's: `silu_and_mul` of `_C_AVX2.abi3.so` calls
  `Sleef_expf8_u10`. In 3.6 % of all numbers silu has another last bit of fp32, which shows where the product lies at a
  border between two numbers of bf16: of token 3 in one prompt of 55, and then in all that attend to it.
  `tests/real/test_vllm_cpu_experts.py` gives the kernel 4,096 such products.
- Routing weights are torch's softmax of bf16, where the profile had a formula that divides by the sum. torch's kernel
  multiplies by its reciprocal: that is another weight in 43 of 16 million.
  `tests/ops/test_router_forms.py` has a row of logits that vLLM served, and the kernel step by step.
- On two ranks one all-reduce adds up routed and shared experts, which each rank has added before, where the profile had
  an all-reduce of each.

## One thread and two

One vLLM gives other bits with two threads than with one (AMD EPYC with AVX2, qwen3_moe, 2026-11-27). Of 12 prompts that
have 5 to 900 tokens one differs, that of 300 tokens: from token 224 on, in 62 of its 299 log-probabilities, by up to
0.28 nats. Of two captures (`--level op,module`) `moeparity diff` says that `vllm.unified_attention_with_output` of the
first layer is the first op that gives other bits on equal inputs, in 19 of 2,400 rows. With two threads it takes fewer
queries at a time, so that more keys fit into the cache beside them: all 300 in one tile, where one thread has two. With
both records in one recipe, and `kv_block: 512` for the candidate, `moeparity bisect` gives back 299 of 299 of each side
with every bit and blames `kv_block` for all of it. `tests/real/test_vllm_cpu_threads.py` holds both to the engine.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one mode of one model."""

    model: str
    mode: str
    requests: int
    steps: int
    of_prompts: Share
    of_drawn: Share

    @property
    def text(self) -> str:
        """As a row of the table."""
        cells = (self.model, self.mode, self.requests, self.steps, _cell(self.of_prompts), _cell(self.of_drawn))
        return f"| {' | '.join(map(str, cells))} |"


def _cell(share: Share) -> str:
    if not share.of:
        return "not recorded"
    return f"{share.equal:,} of {share.of:,} ({100 * share.equal / share.of:.4g} %)"


def runs_of(vocab: int, requests: int, new: int) -> dict[str, tuple[Mapping[str, Any], list[Run]]]:
    """Each mode's engine and its runs."""
    draw = random.Random(SEED)  # noqa: S311
    lengths, arrivals = ([draw.randrange(low, high) for _ in range(requests)] for low, high in ((4, 60), (0, 24)))
    prompts = [drawn_prompts(lengths, vocab, seed) for seed in range(2)]
    cut = drawn_prompts([length + 48 for length in lengths], vocab, SEED + 1)
    shared = drawn_prompts([length + 256 for length in lengths[:8]], vocab, SEED, shared=256)
    alone = [Run(prompts=[prompt], new=4) for prompt in drawn_prompts(ALONE, vocab, SEED)]
    cached = Run(prompts=shared, new=new, arrivals=[3 * i for i in range(8)], prompt_logprobs=False)
    return {
        "alone": (PLAIN, alone),
        "together": (PLAIN, [Run(prompts=prompts[0], new=new)]),
        "joining": (PLAIN, [Run(prompts=prompts[1], new=new, arrivals=arrivals)]),
        "chunks": (CHUNKS, [Run(prompts=cut, new=new, arrivals=arrivals)]),
        "prefix cache": (CACHED, [cached]),
    }


def row_of_ranks(name: str, title: str, folder: Path) -> Row:
    """The row of a model on two ranks, by the name that it has in the table."""
    model = open_model(checkpoint_for_ranks(name, folder / "checkpoint"))
    answer = serve_on_ranks(folder, model, mended=title == MENDED)
    return Row(title, "two ranks", len(LENGTHS), answer.steps, Share(), share_of_ranks(model, answer, ranks=2))


def rows_of(name: str, model: Model, modes: Mapping[str, tuple[Mapping[str, Any], list[Run]]]) -> Iterator[Row]:
    """The rows of one model; modes of the same engine are served by one process."""
    for engine in (PLAIN, CHUNKS, CACHED):
        of_engine = {mode: runs for mode, (arguments, runs) in modes.items() if arguments is engine}
        if not of_engine:
            continue
        with tempfile.TemporaryDirectory(prefix="real-engines-") as folder:
            every = [run for runs in of_engine.values() for run in runs]
            answers = iter(serve(model.folder, every, engine, Path(folder), mended=name == MENDED))
            for mode, runs in of_engine.items():
                yield _row(name, model, mode, [(run, next(answers)) for run in runs], Path(folder) / "steps")


def _row(name: str, model: Model, mode: str, pairs: list[tuple[Run, dict[str, Any]]], file: Path) -> Row:
    of_prompts, of_drawn = Share(), Share()
    for run, answer in pairs:
        prompts, drawn = shares(run, answer, replayed(model, run, answer, file)["log_probs"])
        of_prompts, of_drawn = of_prompts + prompts, of_drawn + drawn
    requests, steps = (sum(len(x) for x in xs) for xs in zip(*((r.prompts, a["steps"]) for r, a in pairs), strict=True))
    return Row(name, mode, requests, steps, of_prompts, of_drawn)


def models(folder: Path, only: str) -> Iterator[tuple[str, Model, int, int]]:
    """Each model's name in the table, itself, and how many requests draw how many tokens."""
    for name in CHECKPOINTS:
        titles = [title for title in ((name, MENDED) if name == "deepseek_v3" else (name,)) if only in title]
        if titles:
            path = checkpoint(name, folder / name)
            yield from ((title, open_model(path), 16, 16) for title in titles)
    if only in SHIPPED:
        yield SHIPPED, open_model(ROOT / "checkpoints/quickstart"), 32, 48


def every_row(only: str) -> Iterator[Row]:
    """The rows of models whose name has the text `only`, as they are measured."""
    with tempfile.TemporaryDirectory(prefix="real-engines-") as folder:
        for name, model, requests, new in models(Path(folder), only):
            modes = runs_of(model.vocab_size, requests, new)
            modes = {mode: of for mode, of in modes.items() if name != SHIPPED or mode in BY_SHIPPED}
            yield from rows_of(name, model, modes)
        for name in WIDTHS:
            title = MENDED if name == "deepseek_v3" else name
            if only in title:
                (on_ranks := Path(folder) / f"{name} on ranks").mkdir()
                yield row_of_ranks(name, title, on_ranks)


def main() -> None:
    """Read the command line, serve and compare, print, write."""
    options = _options()
    if not (FOLDER / f"vllm-cpu{INSTALLED}").exists():
        sys.exit("there is no vLLM for CPUs here: python -m tests.engines.live makes its environment")
    torch.set_num_threads(1)
    rows: list[Row] = []
    start = time.monotonic()
    for row in every_row(options.only):
        rows.append(row)
        print(row.text, f"{time.monotonic() - start:.0f} s", flush=True)
        if options.out is not None:
            text = options.out.read_text("utf-8") if options.out.exists() else ""
            options.out.write_text(page(text, rows), "utf-8")


def page(text: str, rows: list[Row]) -> str:
    """The page `text` with these rows in place of those that it has of this machine and profile."""
    engine = ENVIRONMENTS["vllm-cpu"][0]
    table = TABLE.format(date=f"{datetime.now(UTC):%Y-%m-%d}", torch=torch.__version__, engine=engine)
    parts = dict(PART.findall(text)) | {
        f"{cpu_name()}, profile `{PROFILE}`": table + "".join(f"{row.text}\n" for row in rows)
    }
    machines = "".join(f"\n## {title}\n{parts[title]}" for title in sorted(parts))
    return HEAD.format(alone=", ".join(map(str, ALONE))) + machines + CAUSES.format(version=engine.partition("==")[2])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_engines", description=__doc__)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--only", default="", help="print the rows of models whose name has this text")
    choice.add_argument("--out", type=Path, help="the page, as Markdown, of which this machine's part is replaced")
    return parser.parse_args()


if __name__ == "__main__":
    main()
