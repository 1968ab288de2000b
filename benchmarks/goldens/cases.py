"""The commands: every recipe, logs of each producer, traces of programs that differ, and the program reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.command import ROOT

RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
QUICKSTART = "recipes/rounding.yaml"
_FIXTURES = ROOT / "tests" / "logs" / "fixtures"
LOGS = {
    "jsonl": ("moeparity/log.jsonl", "--gate", "k3<1e-3", "--by", "position", "--set", "all"),
    "parquet": ("moeparity/log.parquet", "--gate", "k3<1"),
    "safetensors": ("moeparity/log.safetensors",),
    "nemo-rl": ("nemo-rl/train_data_step7.jsonl", "--set", "nemo-rl"),
    "prime-rl": ("prime-rl/token_exports/step_7/rank_0.jsonl", "--set", "prime-rl"),
    "miles": ("miles/train_data/7_0.pt", "--set", "miles"),
    "miles-rollout": ("miles/rollout_data/7.pt",),
    "slime": ("slime/train_7.pt", "--set", "slime", "--by", "position"),
    "openai": ("openai/completions.jsonl", "--trainer", "openai/scored.jsonl"),
    "sglang": ("sglang/generate.jsonl", "--trainer", "sglang/scored.jsonl"),
    "vllm": ("vllm/outputs.jsonl", "--trainer", "vllm/scored.jsonl", "--gate", "k3<1e-3"),
    "refused": ("nemo-rl/train_data_step7.jsonl", "--gate", "k4<1"),
}
"""Words of `moeparity metrics`; what has a slash lies in the fixtures."""
PROGRAMS = ("eager", "sdpa", "scaled", "stale", "swapped", "normless", "decoded", "padded", "fp32", "other_top_k")
"""Programs whose traces are taken (`programs.py`), the first of which is what the others are held to."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command's words, and the files that it is asked to write by their options."""

    name: str
    words: tuple[str, ...]
    writes: tuple[str, ...] = ("--json", "--html")


def cases(traces: Path) -> Iterator[Case]:
    """All of them; `traces` is the folder of the programs' traces."""
    for recipe in RECIPES:
        bisection = ("bisect", str(recipe.relative_to(ROOT)), "-v", "--device", "cpu")
        yield Case(f"bisect-{recipe.stem}", bisection, ("--json", "--html", "--markdown"))
    yield Case(
        "check", ("check", *(str(recipe.relative_to(ROOT)) for recipe in RECIPES), "--device", "cpu"), ("--html",)
    )
    yield from _of_quickstart()
    for name, (log, *words) in LOGS.items():
        placed = [str(_FIXTURES / word) if "/" in word else word for word in (log, *words)]
        yield Case(f"metrics-{name}", ("metrics", *placed))
    first, *programs = (str(traces / name) for name in PROGRAMS)
    for program in programs:
        name, of_trace = Path(program).name, f"{program}.yaml"
        explained = ("explain", program, "--checkpoint", "checkpoints/quickstart", "--node", "layers[0].**")
        yield Case(f"diff-{name}", ("diff", first, program), ("--json", "--html", "--markdown"))
        yield Case(f"explain-{name}", explained, ("--json",))
        yield Case(f"trace-{name}", ("bisect", of_trace, "-v", "--device", "cpu"))


def _of_quickstart() -> Iterator[Case]:
    quickstart = (QUICKSTART, "--device", "cpu")
    yield Case(
        "attribute", ("bisect", *quickstart, "-v", "--attribute", "--envelope", "4"), ("--json", "--html", "--markdown")
    )
    yield Case("short", ("bisect", *quickstart))
    yield Case("section", ("bisect", *quickstart, "--section", "starts", "--section", "nearest"), ())
    yield Case("no-section", ("bisect", *quickstart, "--section", "start"), ())
    yield Case("sweep", ("sweep", *quickstart, "--over", "micro_batch=4,8"))
    yield Case("flips", ("flips", *quickstart))
    yield Case("mine", ("flips", *quickstart, "--mine", "recipes/prompts.jsonl", "--tokenizer", "bytes", "--top", "4"))
    yield Case("variance", ("variance", *quickstart, "--batches", "1,4"))
    yield Case("show", ("show", "plan", QUICKSTART), ())
    yield Case("weights", ("weights", "checkpoints/quickstart", "checkpoints/quickstart"))
    yield Case("engines", ("show", "engines", "vllm", "sglang"), ())
    yield Case("ops", ("show", "ops", "combine"), ())
    yield Case("dry-run", ("bisect", *quickstart, "--dry-run"), ())
