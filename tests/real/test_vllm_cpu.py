"""The profile `vllm-cpu*` that is of this CPU, against a real vLLM 0.32.0, bit for bit.

Prompts alone, requests that join a batch at any step, prompts in chunks, and tokens from a prefix cache.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from moeparity.plan.engine_profile import load_profile
from tests.engines.live import ROOT
from tests.opened import opened
from tests.real.served import (
    CACHED,
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
)
from tests.verified import HERE, record, record_plan

pytestmark = pytest.mark.live
LIVE = {
    "vllm-cpu": "vLLM 0.32.0 on CPU",
    "vllm-cpu-avx512": "vLLM 0.32.0 on CPU without BF16",
    "vllm-cpu-avx2": "vLLM 0.32.0 on CPU with AVX2",
}[PROFILE]
LONG = 1400
"""Of heads of 128 more than two whole blocks of queries, with 2 MiB of L2: the second attends to two tiles of keys."""
LENGTHS = {
    "quickstart": (5, 64, 190, 1),
    "qwen3_moe": (5, 656, LONG),
    "mixtral": (5, 70, 300),
    "gpt_oss": (5, 70, 300),
    "deepseek_v3": (5, 70, 300),
}
SHOWN: dict[str, dict[str, str | float]] = {
    "scale": {"**.attend:scale_on": "scores"},
    "exponential": {"**.attend:exponential": "exp2"},
    "values": {"**.attend:values_order": "reverse"},
    "row sum": {"**.attend:row_sum": "sequential"},
    "quotient": {"**.attend:normalize": "divide"},
    "lazy": {"**.attend:rescale_above": 0},
    "tiles": {"**.attend:kv_block": 64},
    "cache": {"**.attend:l2_bytes": 1 << 18},
    "silu": {"**.experts:logistic": "exp"},
    "experts' sums": {"**.experts:order": "reverse"},
    "rows": {"**.experts:output": "bf16"},
    "weights": {"**.combine:order": "reverse"},
    "router": {"**.router:scores": "fp32"},
    "residual": {"**.residual:output->rms_norm": "stored"},
    "norm": {"**.norm:normalized": "fp32"},
    "rope": {"**.rope:products": "bf16"},
}
"""Other values than the profile's, each of which some bit of the long prompt tells."""
BLIND = ("attention:contraction", "router:weights", "experts:gate_up")
"""What no bit tells: weights are made of scores in bf16 already, and sums in turn are alike in one GEMM and in two."""
ROPE_IS_WRONG = "deepseek_v3"
"""Of which vLLM's kernel rotates other numbers than its queries and keys, see tests/real/test_vllm_cpu_rope.py."""


def refuse_other_cpus() -> None:
    """Skip where no profile speaks of this CPU."""
    if torch.cpu.get_capabilities().get("amx_tile"):
        pytest.skip("not compared with a live engine: the profiles hold for CPUs without AMX")


@dataclass(frozen=True)
class Served:
    """A checkpoint, what it was asked, and what vLLM said."""

    name: str
    model: Model
    runs: list[Run]
    answers: list[dict[str, Any]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    random_folders = {name: checkpoint(name, tmp_path_factory.mktemp(name)) for name in LENGTHS if name != "quickstart"}
    return {"quickstart": ROOT / "checkpoints/quickstart", **random_folders}


def joined(vocab: int, **others: Any) -> Run:
    """A dozen requests that join the batch at random steps, and in another order than that of their numbers."""
    draw = random.Random(1)  # noqa: S311
    lengths, arrivals = ([draw.randrange(low, high) for _ in range(12)] for low, high in ((4, 60), (0, 16)))
    return Run(prompts=drawn_prompts(lengths, vocab, seed=2), new=12, arrivals=arrivals, **others)


@pytest.fixture(scope="module", params=LENGTHS)
def served(
    request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Served:
    refuse_other_cpus()
    model = opened(folders[request.param])
    alone = drawn_prompts(LENGTHS[request.param], model.vocab_size, seed=0)
    runs = [*(Run(prompts=[prompt], new=4) for prompt in alone), joined(model.vocab_size)]
    scratch, mended = tmp_path_factory.mktemp("served"), request.param == ROPE_IS_WRONG
    return Served(request.param, model, runs, serve(model.folder, runs, PLAIN, scratch, mended=mended))


def test_every_recorded_log_probability(served: Served, tmp_path: Path) -> None:
    """Of prompts and of drawn tokens, alone and in a batch."""
    for run, answer in zip(served.runs, served.answers, strict=True):
        of_prompts, of_drawn = shares(run, answer, replayed(served.model, run, answer, tmp_path / "steps")["log_probs"])
        assert of_prompts.whole or max(map(len, run.prompts)) == 1, (len(run.prompts[0]), of_prompts)
        assert of_drawn.whole, (len(run.prompts[0]), of_drawn)
    record_plan(served.model, LIVE, profile=PROFILE, dtype="bf16", blind=BLIND)
    if served.name == ROPE_IS_WRONG:
        record_latent_attention()


def record_latent_attention() -> None:
    """What the profile states of prompts' tokens and of drawn ones, in rules of their own."""
    rules = [rule for layer in load_profile(PROFILE, HERE).layers for rule in layer if rule.op == "mla"]
    of_prompts, *of_drawn = rules
    record("mla", dict(of_prompts.values), LIVE)
    values: dict[str, Any] = {}
    for rule in of_drawn:
        # A later rule sets some of an earlier one's values anew.
        values |= rule.values
        record("mla", values, LIVE)


def test_all_logits_of_prompts(served: Served) -> None:
    """Not only those of tokens that came: the last position is asked for first, then all before it."""
    for run, answer in zip(served.runs[:-1], served.answers[:-1], strict=True):
        (prompt,) = run.prompts
        first, *later = answer["logits"]
        theirs = torch.cat((*later[:1], first)) if len(prompt) > 1 else first
        ours = forward(served.model, torch.tensor(prompt)[None], profile=PROFILE)["logits"][0]
        assert same_bits(ours, theirs), len(prompt)


@pytest.mark.parametrize("served", ["qwen3_moe"], indirect=True)
def test_every_choice_shows(served: Served) -> None:
    """Other values have other bits than vLLM: it is these that were compared."""
    which = next(i for i, run in enumerate(served.runs) if len(run.prompts[0]) == LONG)
    answer, ids = served.answers[which], torch.tensor(served.runs[which].prompts)
    theirs = torch.cat((answer["logits"][1], answer["logits"][0]))
    for changed, settings in SHOWN.items():
        logits = forward(served.model, ids, profile=PROFILE, settings=settings)["logits"][0]
        assert not same_bits(logits, theirs), changed


@pytest.mark.parametrize("engine", [CHUNKS, CACHED], ids=["chunks", "prefix cache"])
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_chunks_and_prefix_cache(name: str, engine: dict[str, Any], folders: dict[str, Path], tmp_path: Path) -> None:
    """Prompts that several steps share, or that begin with the same 200 tokens and are found in the cache."""
    refuse_other_cpus()
    model = opened(folders[name])
    run = joined(model.vocab_size)
    if engine is CACHED:
        prompts = drawn_prompts([210, 230, 200, 260], model.vocab_size, seed=3, shared=200)
        run = Run(prompts=prompts, new=8, arrivals=[0, 3, 5, 5], prompt_logprobs=False)
    (answer,) = serve(model.folder, [run], engine, tmp_path)
    first = {number: (at, count) for step in reversed(answer["steps"]) for number, at, count in step}
    if engine is CACHED:
        assert any(at for at, _ in first.values()), "some tokens are found in the cache"
    else:
        assert any(count < len(run.prompts[number]) for number, (_, count) in first.items()), "some prompts are cut"
    of_prompts, of_drawn = shares(run, answer, replayed(model, run, answer, tmp_path / "steps")["log_probs"])
    assert of_drawn.whole, of_drawn
    assert of_prompts.whole or of_prompts == Share(), of_prompts
