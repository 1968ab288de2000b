"""Profile `vllm-cpu` against a real vLLM 0.32.0 on this CPU: logits and log-probabilities, prefilled and decoded, bit
for bit.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from tests.checkpoint_factory import make_random
from tests.engines.live import ROOT, run_in
from tests.opened import opened
from tests.verified import record_plan

pytestmark = pytest.mark.live
LIVE, PROFILE, NEW = "vLLM 0.32.0 on CPU", "vllm-cpu", 4
VARIABLES = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
GROUPED: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 96,
    "intermediate_size": 96,
    "vocab_size": 512,
    "norm_topk_prob": True,
    "max_position_embeddings": 4096,
}
LENGTHS = {"quickstart": (5, 17, 64, 190, 1), "grouped": (5, 300, 656)}
"""656: two whole blocks of queries, of which the second attends to three tiles of keys."""
SHOWN: dict[str, dict[str, str | float]] = {
    "scale": {"**.attend:scale_on": "scores"},
    "exponential": {"**.attend:exponential": "exp"},
    "values": {"**.attend:values_order": "reverse"},
    "row sum": {"**.attend:row_sum": "sequential"},
    "quotient": {"**.attend:normalize": "divide"},
    "lazy": {"**.attend:rescale_above": 0},
    "tiles": {"**.attend:kv_block": 1024},
    "silu": {"**.experts:logistic": "exp"},
    "experts' sums": {"**.experts:order": "reverse"},
    "rows": {"**.experts:output": "bf16"},
    "weights": {"**.combine:order": "sequential"},
    "router": {"**.router:scores": "fp32"},
    "residual": {"**.residual:output->rms_norm": "stored"},
    "norm": {"**.norm:normalized": "fp32"},
    "rope": {"**.rope:products": "bf16"},
}
"""Other values than the profile's, each of which some bit of the long prompt tells."""


BLIND = ("attention:contraction", "router:weights", "experts:gate_up")
"""What no bit tells: weights are made of scores in bf16 already, and sums in turn are alike in one GEMM and in two."""


def refuse_other_cpus() -> None:
    """Skip where the profile does not speak of this CPU."""
    able = torch.cpu.get_capabilities()
    fits = able.get("avx512_f") and not able.get("amx_tile") and able.get("l2_cache_size") == 1 << 20
    if not fits:
        pytest.skip("not compared with a live engine: vllm-cpu holds for AVX-512 without AMX and 1 MiB of L2")


def prompts(name: str, vocab: int) -> list[list[int]]:
    draw = random.Random(0)  # noqa: S311
    return [[draw.randrange(1, vocab) for _ in range(length)] for length in LENGTHS[name]]


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random(GROUPED, tmp_path_factory.mktemp("grouped"))


@pytest.fixture(scope="module", params=LENGTHS)
def served(
    request: pytest.FixtureRequest, grouped: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Model, list[dict[str, torch.Tensor]]]:
    """A checkpoint, and what vLLM says of each of its prompts."""
    refuse_other_cpus()
    model = opened(grouped if request.param == "grouped" else ROOT / "checkpoints/quickstart")
    folder = tmp_path_factory.mktemp("served")
    cases, answers_file = folder / "cases.pt", folder / "answers.pt"
    every = prompts(request.param, model.vocab_size)
    torch.save({"folder": str(model.folder), "prompts": every, "new": NEW}, cases)
    run_in("vllm-cpu", ROOT / "tests/real/vllm_cpu.py", [str(cases), str(answers_file)], VARIABLES)
    answers = [
        {"prompt": torch.tensor(prompt), **answer}
        for prompt, answer in zip(every, torch.load(answers_file), strict=True)
    ]
    return request.param, model, answers


def chosen(log_probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Of [T, V] those of the tokens, as vLLM gives them, in fp64."""
    return log_probs.gather(1, tokens[:, None])[:, 0].double()


def test_prefill_and_decode(served: tuple[str, Model, list[dict[str, torch.Tensor]]]) -> None:
    name, model, answers = served
    for answer in answers:
        prompt = answer["prompt"]
        ours = forward(model, prompt[None], profile=PROFILE, save=["log_probs"])
        assert same_bits(ours["logits"][0], answer["logits"]), len(prompt)
        assert same_bits(chosen(ours["log_probs"][0, :-1], prompt[1:]), answer["prompt_logprobs"])
        if len(prompt) <= 320:
            decoded = forward(
                model,
                torch.cat((prompt, answer["tokens"]))[None],
                profile=PROFILE,
                schedule={"decode": {"from": len(prompt)}},
                save=["log_probs"],
            )
            assert same_bits(
                chosen(decoded["log_probs"][0, len(prompt) - 1 : -1], answer["tokens"]), answer["logprobs"]
            )
    if name == "grouped":
        record_plan(model, LIVE, profile=PROFILE, dtype="bf16", blind=BLIND)


@pytest.mark.parametrize("served", ["grouped"], indirect=True)
def test_every_choice_shows(served: tuple[str, Model, list[dict[str, torch.Tensor]]]) -> None:
    """Other values have other bits than vLLM: it is these that were compared."""
    _, model, (*_, answer) = served
    for changed, settings in SHOWN.items():
        logits = forward(model, answer["prompt"][None], profile=PROFILE, settings=settings)["logits"][0]
        assert not same_bits(logits, answer["logits"]), changed
